"""The penalty that the settings of estimators, paths and commands stand for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sorel.problem.penalties.base import Penalty, check_number
from sorel.problem.penalties.builtin import L2, ElasticNet, NonNegative


def resolve_l2(l2: float | str, total: float) -> float:
    """The number that `l2` stands for when the sample weights add up to `total`.

    Examples
    --------
    >>> from sorel.penalties import resolve_l2
    >>> resolve_l2("auto", 50.0), resolve_l2(0.5, 50.0)
    (0.02, 0.5)
    """
    if isinstance(l2, str):
        if l2 != "auto":
            raise ValueError(f"l2 must be a number above 0 or 'auto', got {l2!r}")
        return 1.0 / total
    number = check_number(l2, "l2")
    if not 0.0 < number < math.inf:
        raise ValueError(
            f"l2 must be a finite number above 0, since certificates need some, got {l2!r}; use "
            "l2='auto', which is 1/n, or a small number such as 1e-6"
        )
    return number


def choose_penalty(
    penalty: Penalty | None, l2: float | str, l1: float, positive: bool, total: float
) -> Penalty:
    """The penalty itself where one is given, else that of l2, l1 and positive.

    Parameters
    ----------
    penalty : Penalty or None
        A penalty, which leaves nothing for the others to say: they must have their defaults.
    l2 : float or "auto"
        Weight of ``||w||^2 / 2``; "auto", the default, is 1 / total.
    l1 : float
        Weight of ``||w||_1``; 0 is the default.
    positive : bool
        Whether coefficients must not be negative; False is the default.
    total : float
        Sum of the sample weights.

    Examples
    --------
    >>> from sorel.penalties import Simplex, choose_penalty
    >>> choose_penalty(None, "auto", 0.0, False, 50.0)
    L2(l2=0.02)
    >>> choose_penalty(None, 0.5, 0.1, True, 50.0)
    NonNegative(l2=0.5, l1=0.1)
    >>> choose_penalty(Simplex(0.0), "auto", 0.0, False, 50.0)
    Simplex(l2=0.0)
    """
    if not isinstance(positive, (bool, np.bool_)):
        raise TypeError(f"positive must be True or False, got {positive!r}")
    if penalty is None:
        number = resolve_l2(l2, total)
        if positive:
            return NonNegative(number, l1)
        return ElasticNet(number, l1) if l1 else L2(number)
    if not isinstance(penalty, Penalty):
        raise TypeError(
            "penalty must be None, a penalty such as sorel.Simplex(0.0), or one of a subclass of "
            f"sorel.problem.penalties.Penalty, got {penalty!r}"
        )
    given: dict[str, Any] = {"l2": l2, "l1": l1, "positive": positive}
    defaults: dict[str, Any] = {"l2": "auto", "l1": 0.0, "positive": False}
    for name, value in given.items():
        if value != defaults[name]:
            raise ValueError(
                f"penalty={penalty!r} and {name}={value!r} are both given: drop {name}, which the "
                "penalty replaces, or drop penalty"
            )
    return penalty
