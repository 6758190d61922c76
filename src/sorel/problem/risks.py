"""Spectral risks: convex cumulative functions S and the weights that they give to ordered losses.

A spectral risk is a convex S: [0, 1] -> [0, 1] with S(0) = 0 and S(1) = 1. On n losses it is
``sum_i sigma_i l_[i]`` with ``l_[1] <= ... <= l_[n]`` and ``sigma_i = S(i/n) - S((i-1)/n)``; with
sample weights, i/n is replaced by the cumulative weight. A risk object holds only its parameters,
never n.

Spectral risks are those of Acerbi (2002), among them CVaR (Rockafellar and Uryasev 2000), ESRM
(Cotter and Dowd 2006) and extremiles (Daouia, Gijbels and Stupfler 2019). For deviations see
Rockafellar, Uryasev and Zabarankin (2006).

Everything is measured from the top of the distribution, through the tail ``T(v) = 1 - S(1 - v)``:
the weights that matter are there, and differences of S near 1 would cancel.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sorel._lib.inputs import check_numbers

__all__ = [
    "CVaR",
    "CustomSpectrum",
    "Deviation",
    "ESRM",
    "Extremile",
    "Max",
    "Mean",
    "Mixture",
    "Risk",
    "parse_risk",
]

FloatArray = npt.NDArray[np.float64]

# Cells of [0, 1] in which a spectrum is looked at: its jumps, and the panels of the Gauss-Legendre
# rule that integrates a user's density.
_PANELS = 8192
_GRID = np.linspace(0.0, 1.0, _PANELS + 1)
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(8)
_NODES = 0.5 * (_NODES + 1.0)


class Risk:
    """Base class of the spectral risks.

    A risk is an immutable value: two risks with the same parameters are equal, hash alike, and
    ``eval(repr(risk))`` gives the risk back. ``get_params`` and ``set_params`` follow scikit-learn,
    so that ``GridSearchCV`` can search ``risk__alpha``; only ``set_params`` changes an object in
    place.

    A subclass names its constructor's arguments in ``_parameters`` and implements ``_tail_at``, the
    function T; ``_weights`` and ``_increments`` may be overridden where a closed form is more
    accurate.

    Attributes
    ----------
    name : str
        The kind of risk, such as "cvar": the class in lower case, or what a subclass sets.

    Examples
    --------
    >>> from sorel import CVaR
    >>> risk = CVaR(0.5)
    >>> isinstance(risk, Risk)
    True
    >>> risk.weights(4)
    array([0. , 0. , 0.5, 0.5])
    """

    _parameters: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = "risk"

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = vars(cls).get("name", cls.__name__.lower())

    # The function S.

    def cumulative(self, u: npt.ArrayLike) -> Any:
        """Evaluate S(u), the weight of the fraction u of smallest losses.

        Parameters
        ----------
        u : float or array-like
            Points in [0, 1].

        Returns
        -------
        float or ndarray
            S(u), with the shape of ``u``.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.5).cumulative(0.75)
        0.5
        """
        # T(1) is 1, but for a deviation.
        whole = self._tail_at(np.ones(1))
        return _on_unit_interval(lambda x: whole - self._tail_at(1.0 - x), u, "u")

    def tail(self, v: npt.ArrayLike) -> Any:
        """Evaluate T(v) = 1 - S(1 - v), the weight of the fraction v of largest losses.

        Parameters
        ----------
        v : float or array-like
            Points in [0, 1].

        Returns
        -------
        float or ndarray
            T(v), with the shape of ``v``, free of the cancellation of ``1 - S(1 - v)``.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.5).tail(0.25)
        0.5
        """
        return _on_unit_interval(self._tail_at, v, "v")

    def _tail_at(self, v: FloatArray) -> FloatArray:
        raise NotImplementedError

    # Weights.

    def weights(self, n: int) -> FloatArray:
        """Return the weights of n ordered losses, smallest loss first.

        Parameters
        ----------
        n : int
            Number of losses, at least 1.

        Returns
        -------
        ndarray of shape (n,)
            ``sigma_i = S(i/n) - S((i-1)/n)``, nondecreasing, with sum 1.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.3).weights(5).round(4)
        array([0.    , 0.    , 0.    , 0.3333, 0.6667])
        """
        return self._weights(_count(n))

    def _weights(self, n: int) -> FloatArray:
        from scipy.optimize import isotonic_regression

        tail = self._tail_at(np.arange(n, -1, -1) / n)
        # A fit spreads the rounding of the differences, where a running maximum would let the
        # largest of it win.
        return _as_weights(isotonic_regression(tail[:-1] - tail[1:]).x)

    def increments(self, sample_weight: npt.ArrayLike) -> FloatArray:
        """Return the weights of losses that carry sample weights.

        Parameters
        ----------
        sample_weight : array-like of shape (n,)
            Nonnegative weights with sum 1, in ascending order of the losses.

        Returns
        -------
        ndarray of shape (n,)
            ``S(W_i) - S(W_{i-1})`` with W the cumulative weights. Values are not validated: this is
            called at every projection.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.5).increments([0.25, 0.5, 0.25])
        array([0. , 0.5, 0.5])
        """
        return self._increments(np.asarray(sample_weight, dtype=np.float64))

    def _increments(self, omega: FloatArray) -> FloatArray:
        reach = np.append(_running_sum(omega[::-1])[::-1], 0.0)
        np.minimum(reach, 1.0, out=reach)
        # The total is 1 up to rounding, and T(1) = 1 makes the differences telescope to exactly
        # that.
        reach[: np.count_nonzero(reach == reach[0])] = 1.0
        tail = self._tail_at(reach)
        return np.maximum(tail[:-1] - tail[1:], 0.0)

    def levels(
        self, n: int, sample_weight: npt.ArrayLike | None = None
    ) -> tuple[float, float] | None:
        """Return the two slopes of S when it has at most two, else None.

        The dual set is then a box cut by a plane: in density form ``q_i = lam_i / omega_i`` it is
        ``{low <= q_i <= high, sum_i omega_i q_i = 1}``, and a projection needs no sort.

        Parameters
        ----------
        n : int
            Number of losses.
        sample_weight : array-like of shape (n,), optional
            Sample weights; only whether they are given matters.

        Returns
        -------
        tuple of float or None
            ``(low, high)``, or None.

        Examples
        --------
        >>> from sorel import CVaR, Max
        >>> CVaR(0.25).levels(100)
        (0.0, 4.0)
        >>> Max().levels(100)
        (0.0, 100.0)
        """
        return self._levels(_count(n), sample_weight is not None)

    def _levels(self, n: int, weighted: bool) -> tuple[float, float] | None:
        return None

    def effective_share(self, n: int) -> float:
        """Return 1 / (n sum_i sigma_i^2): the share of n losses that carries the risk.

        Examples
        --------
        >>> from sorel import CVaR
        >>> round(CVaR(0.25).effective_share(100), 12)
        0.25
        """
        return _share_and_jump(self, min(_count(n), _PANELS))[0]

    def largest_jump(self, n: int) -> float:
        """Return the largest difference of neighbouring weights, relative to the largest weight.

        Next to nothing for many losses, where the spectrum has no jumps.

        Examples
        --------
        >>> from sorel import CVaR
        >>> round(CVaR(0.25).largest_jump(100), 12)
        1.0
        """
        return _share_and_jump(self, min(_count(n), _PANELS))[1]

    def __call__(self, losses: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the risk of a vector of losses.

        Parameters
        ----------
        losses : array-like of shape (n,)
            Losses, in any order.
        sample_weight : array-like of shape (n,), optional
            Nonnegative weights, not all zero; a weight of 2 is the same as giving the loss twice.

        Returns
        -------
        float
            The weighted sum of the ordered losses.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.5)([3.0, 1.0, 2.0, 4.0])
        3.5
        >>> CVaR(0.5)([3.0, 1.0], sample_weight=[1, 3])
        2.0
        """
        check_numbers(losses, "losses")
        values = np.asarray(losses, dtype=np.float64)
        if values.ndim != 1 or values.size == 0:
            raise ValueError(
                f"losses must be a non-empty vector, one loss per sample, got shape {values.shape}."
            )
        if np.isnan(values).any():
            raise ValueError("losses contain NaN; remove or repair those samples first.")
        if sample_weight is None:
            ordered, sigma = np.sort(values), self._weights(values.size)
        else:
            omega = normalised_sample_weight(sample_weight, values.size)
            values, omega = values[omega > 0.0], omega[omega > 0.0]
            order = np.argsort(values, kind="stable")
            ordered, sigma = values[order], self._increments(omega[order])
        # Weightless losses are left out, so that an infinite one among them does not turn into NaN.
        used = sigma > 0.0
        return float(np.sum(sigma[used] * ordered[used]))

    # A value with scikit-learn's parameter protocol.

    @property
    def spec(self) -> str | None:
        """The short form that `parse_risk` reads, such as ``"cvar:0.1"``, or None."""
        if type(self) not in _SHORT.values():
            return None
        return ":".join([self.name, *(repr(float(value)) for value in self._key())])

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        Parameters
        ----------
        deep : bool, default=True
            Accepted for scikit-learn's sake.

        Returns
        -------
        dict
            The arguments, exactly as given.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.5).get_params()
        {'alpha': 0.5}
        """
        return {name: getattr(self, name) for name in self._parameters}

    def set_params(self, **params: Any) -> Risk:
        """Change parameters in place, with the constructor's validation.

        Meant for scikit-learn, which works on its own clones. Elsewhere build a new risk: a changed
        one is lost to any set or dictionary that holds it.

        Parameters
        ----------
        **params
            New values by name.

        Returns
        -------
        Risk
            The risk itself.

        Examples
        --------
        >>> from sorel import CVaR
        >>> CVaR(0.5).set_params(alpha=0.1)
        CVaR(alpha=0.1)
        """
        current = self.get_params(deep=False)
        for name in params:
            if name not in current:
                known = ", ".join(current) or "none"
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; its parameters are: {known}."
                )
        # A fresh object first: when validation fails, this one stays as it was.
        changed = type(self)(**{**current, **params})
        self.__dict__.clear()
        self.__dict__.update(changed.__dict__)
        return self

    def _store(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{type(self).__name__} is immutable; build a new one instead of setting {name!r}."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot delete {name!r}.")

    def _key(self) -> tuple[Any, ...]:
        return tuple(self.get_params(deep=False).values())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))

    def __repr__(self) -> str:
        shown = (f"{k}={_shown(v)}" for k, v in self.get_params(deep=False).items())
        return f"{type(self).__name__}({', '.join(shown)})"


@lru_cache(maxsize=64)
def _share_and_jump(risk: Risk, n: int) -> tuple[float, float]:
    sigma = risk.weights(n)
    share, jump = 1.0 / (n * np.vdot(sigma, sigma)), np.max(np.diff(sigma), initial=0.0) / sigma[-1]
    return float(share), float(jump)


class Mean(Risk):
    """The average loss: S(u) = u.

    Examples
    --------
    >>> from sorel import Mean
    >>> Mean()([1.0, 2.0, 6.0])
    3.0
    """

    def _tail_at(self, v: FloatArray) -> FloatArray:
        return v.copy()

    def _weights(self, n: int) -> FloatArray:
        return np.full(n, 1.0 / n)

    def _increments(self, omega: FloatArray) -> FloatArray:
        return omega.copy()

    def _levels(self, n: int, weighted: bool) -> tuple[float, float] | None:
        return (1.0, 1.0)


class CVaR(Risk):
    """Conditional value at risk: the mean of the worst fraction alpha of the losses.

    ``S(u) = max(0, (u - (1 - alpha)) / alpha)``. Where ``n * alpha`` is not an integer, the loss at
    the edge gets the fraction that is left over.

    Parameters
    ----------
    alpha : float
        Fraction of the losses, in (0, 1]. 1 is the mean, and anything up to 1/n is the maximum.

    Examples
    --------
    >>> from sorel import CVaR
    >>> CVaR(0.5)([1.0, 2.0, 3.0, 5.0])
    4.0
    """

    _parameters = ("alpha",)
    alpha: float

    def __init__(self, alpha: float) -> None:
        check_real("alpha", alpha, 0.0, 1.0, low_open=True, hint="CVaR(0.1) is the worst tenth")
        self._store(alpha=alpha)

    def _tail_at(self, v: FloatArray) -> FloatArray:
        alpha = float(self.alpha)
        return np.minimum(v, alpha) / alpha

    def _weights(self, n: int) -> FloatArray:
        # Rational arithmetic: n * alpha in floating point can land on the wrong side of an integer.
        reach = n * Fraction(float(self.alpha))
        whole = math.floor(reach)
        sigma = np.zeros(n)
        if whole == 0:
            sigma[-1] = 1.0
        else:
            sigma[n - whole :] = float(1 / reach)
            if whole < n:
                sigma[n - whole - 1] = float((reach - whole) / reach)
        return sigma

    def _increments(self, omega: FloatArray) -> FloatArray:
        alpha = float(self.alpha)
        return np.clip(alpha - _above(omega), 0.0, omega) / alpha

    def _levels(self, n: int, weighted: bool) -> tuple[float, float] | None:
        alpha = float(self.alpha)
        if alpha == 1.0:
            return (1.0, 1.0)
        return (0.0, 1.0 / alpha if weighted else min(1.0 / alpha, float(n)))


class ESRM(Risk):
    """Exponential spectral risk measure: weights that grow like exp(rho u).

    ``S(u) = (exp(-rho (1 - u)) - exp(-rho)) / (1 - exp(-rho))``.

    Parameters
    ----------
    rho : float
        Risk aversion, positive. Near 0 it is the mean; the larger, the nearer to the maximum.

    Examples
    --------
    >>> from sorel import ESRM
    >>> ESRM(2.0).weights(3).round(4)
    array([0.1483, 0.2889, 0.5627])
    """

    _parameters = ("rho",)
    rho: float

    def __init__(self, rho: float) -> None:
        check_real("rho", rho, 0.0, math.inf, low_open=True, hint="ESRM(2.0) is a usual choice")
        self._store(rho=rho)

    def _tail_at(self, v: FloatArray) -> FloatArray:
        rho = float(self.rho)
        return np.expm1(-rho * v) / math.expm1(-rho)

    def _weights(self, n: int) -> FloatArray:
        # The weights are powers of one number.
        return _as_weights(np.exp(-float(self.rho) * (np.arange(n - 1, -1, -1) / n)))

    def _increments(self, omega: FloatArray) -> FloatArray:
        rho = float(self.rho)
        sigma = np.exp(-rho * _above(omega)) * np.expm1(-rho * omega)
        return sigma / sigma.sum()


class Extremile(Risk):
    """Extremile: the expected maximum of r independent losses, S(u) = u**r.

    Parameters
    ----------
    r : float
        Order, at least 1. 1 is the mean; the larger, the nearer to the maximum.

    Examples
    --------
    >>> from sorel import Extremile
    >>> Extremile(2.0).weights(4)
    array([0.0625, 0.1875, 0.3125, 0.4375])
    """

    _parameters = ("r",)
    r: float

    def __init__(self, r: float) -> None:
        check_real("r", r, 1.0, math.inf, hint="Extremile(2.0) is a usual choice")
        self._store(r=r)

    def _tail_at(self, v: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return -np.expm1(float(self.r) * np.log1p(-v))

    def _weights(self, n: int) -> FloatArray:
        rank = np.arange(1.0, n + 1.0)
        return _as_weights(self._masses(rank / n, 1.0 / rank))

    def _increments(self, omega: FloatArray) -> FloatArray:
        reach = np.cumsum(omega)
        reach /= reach[-1]
        # Leading zero weights leave 0 / 0.
        share = np.divide(omega, reach, out=np.zeros_like(omega), where=reach > 0.0)
        sigma = self._masses(reach, np.minimum(share, 1.0))
        return sigma / sigma.sum()

    def _masses(self, reach: FloatArray, share: FloatArray) -> FloatArray:
        """S(u) - S(u (1 - share)) at u = reach, without cancellation."""
        r = float(self.r)
        with np.errstate(divide="ignore"):
            return np.power(reach, r) * -np.expm1(r * np.log1p(-share))


class Max(Risk):
    """The largest loss: S jumps from 0 to 1 at u = 1.

    Examples
    --------
    >>> from sorel import Max
    >>> Max()([1.0, 5.0, 3.0])
    5.0
    """

    def _tail_at(self, v: FloatArray) -> FloatArray:
        return (v > 0.0).astype(np.float64)

    def _levels(self, n: int, weighted: bool) -> tuple[float, float] | None:
        # With sample weights the cap 1 / omega_i differs from item to item.
        return None if weighted else (0.0 if n > 1 else 1.0, float(n))


class Mixture(Risk):
    """A convex combination of risks: S = sum_k w_k S_k.

    Parameters
    ----------
    components : sequence of Risk
        The risks that are combined.
    weights : sequence of float
        Their weights: finite, nonnegative, not all zero. They are normalised to sum 1 when used.

    Examples
    --------
    >>> from sorel import CVaR, Mean, Mixture
    >>> Mixture([Mean(), CVaR(0.5)], [0.5, 0.5]).weights(4)
    array([0.125, 0.125, 0.375, 0.375])
    """

    _parameters = ("components", "weights")
    components: tuple[Risk, ...]
    _given: tuple[float, ...]
    _shares: tuple[float, ...]

    def __init__(self, components: Sequence[Risk], weights: Sequence[float]) -> None:
        parts, shares = _as_tuple("components", components), _as_tuple("weights", weights)
        if not parts:
            raise ValueError(
                "components is empty; give at least one risk, e.g. [Mean(), CVaR(0.1)]."
            )
        for part in parts:
            if not isinstance(part, Risk):
                raise TypeError(f"components must be risks such as CVaR(0.1), got {part!r}.")
        if len(shares) != len(parts):
            raise ValueError(
                f"weights must have one entry per component, got {len(shares)} for {len(parts)}."
            )
        for share in shares:
            check_real("weights", share, 0.0, math.inf, hint="give each component a share")
        total = math.fsum(float(share) for share in shares)
        if not 0.0 < total < math.inf:
            raise ValueError(f"weights must have a positive finite sum, got {list(shares)!r}.")
        normal = tuple(float(share) / total for share in shares)
        self._store(components=parts, _given=shares, _shares=normal)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        Parameters
        ----------
        deep : bool, default=True
            Accepted for scikit-learn's sake.

        Returns
        -------
        dict
            ``components`` and ``weights``, as tuples.

        Examples
        --------
        >>> from sorel import Mean, Mixture
        >>> Mixture([Mean()], [1.0]).get_params()
        {'components': (Mean(),), 'weights': (1.0,)}
        """
        return {"components": self.components, "weights": self._given}

    @property
    def spec(self) -> str | None:
        """The short form that :func:`parse_risk` reads; None where a component has none."""
        texts = [risk.spec for risk in self.components]
        # A mixture inside another has no text: its commas would be those of the outer one.
        if any(text is None or text.startswith("mix:") for text in texts):
            return None
        pairs = zip(texts, self._given, strict=True)
        return "mix:" + ",".join(f"{text}={float(weight)!r}" for text, weight in pairs)

    def _combine(self, parts: Iterator[FloatArray]) -> FloatArray:
        return np.asarray(sum(map(operator.mul, self._shares, parts)))

    def _tail_at(self, v: FloatArray) -> FloatArray:
        return self._combine(risk._tail_at(v) for risk in self.components)

    def _weights(self, n: int) -> FloatArray:
        return self._combine(risk._weights(n) for risk in self.components)

    def _increments(self, omega: FloatArray) -> FloatArray:
        return self._combine(risk._increments(omega) for risk in self.components)

    def _levels(self, n: int, weighted: bool) -> tuple[float, float] | None:
        low = high = 0.0
        edge = None
        for share, risk in zip(self._shares, self.components, strict=True):
            if share == 0.0:
                continue
            pair = risk._levels(n, weighted)
            if pair is None:
                return None
            low += share * pair[0]
            high += share * pair[1]
            if pair[0] < pair[1]:
                # Two slopes only if every part has its kink at the same u.
                bend = (1.0 - pair[0]) / (pair[1] - pair[0])
                if edge is not None and bend != edge:
                    return None
                edge = bend
        return (low, high) if edge is not None else (1.0, 1.0)


class CustomSpectrum(Risk):
    """A spectrum of the user's own.

    Parameters
    ----------
    density : array-like or callable, optional
        Either a nondecreasing, nonnegative vector of any length m, read as a density that is
        constant on each of m equal cells of [0, 1] (so ``weights(m)`` is the vector, normalised),
        or a function that is finite, nonnegative and nondecreasing on [0, 1]. It need not be
        normalised.
    cumulative : callable, optional
        Instead of a density, the function S itself: convex and nondecreasing with S(0) = 0. It may
        jump at 1.

    Examples
    --------
    >>> from sorel import CustomSpectrum
    >>> CustomSpectrum([1, 1, 2]).weights(3)
    array([0.25, 0.25, 0.5 ])
    >>> CustomSpectrum(lambda u: 2 * u).weights(2).round(12)
    array([0.25, 0.75])
    >>> CustomSpectrum(cumulative=lambda u: u**3).weights(2)
    array([0.125, 0.875])
    """

    name = "custom"
    _parameters = ("density", "cumulative")
    density: Any
    _given: Any
    _kind: str
    _total: float
    _mass: FloatArray
    _beyond: FloatArray

    def __init__(
        self,
        density: npt.ArrayLike | Callable[[Any], Any] | None = None,
        *,
        cumulative: Callable[[Any], Any] | None = None,
    ) -> None:
        if (density is None) == (cumulative is None):
            raise ValueError(
                "CustomSpectrum takes either a density (vector or function) or cumulative=S; "
                f"got {'neither' if density is None else 'both'}."
            )
        if cumulative is not None:
            self._store(density=None, _given=cumulative, _kind="cumulative")
            self._prepare_cumulative(cumulative)
        elif callable(density):
            self._store(density=density, _given=None, _kind="density")
            self._prepare_density(density)
        else:
            values = _as_tuple("density", density)
            self._store(density=values, _given=None, _kind="vector")
            self._prepare_vector(values)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name.

        Parameters
        ----------
        deep : bool, default=True
            Accepted for scikit-learn's sake.

        Returns
        -------
        dict
            ``density`` and ``cumulative``; a vector comes back as a tuple.

        Examples
        --------
        >>> from sorel import CustomSpectrum
        >>> CustomSpectrum([1.0, 3.0]).get_params()
        {'density': (1.0, 3.0), 'cumulative': None}
        """
        return {"density": self.density, "cumulative": self._given}

    def __repr__(self) -> str:
        if self._given is not None:
            return f"CustomSpectrum(cumulative={self._given!r})"
        return f"CustomSpectrum({_shown(self.density)})"

    def _prepare_vector(self, values: tuple[Any, ...]) -> None:
        try:
            mass = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                "density must be a vector of numbers or a function on [0, 1]."
            ) from None
        if mass.ndim != 1 or mass.size == 0:
            raise ValueError(
                f"density must be a non-empty vector, got shape {mass.shape}; "
                "give one weight per cell, smallest loss first."
            )
        _check_spectrum(mass, 0.0)
        # Scaling by the largest first keeps sums of very large or very small entries in range.
        mass /= mass[-1]
        mass /= math.fsum(mass)
        mass.flags.writeable = False
        self._store(_mass=mass)

    def _prepare_density(self, density: Callable[[Any], Any]) -> None:
        values = _evaluate(density, _GRID.copy())
        _check_spectrum(values, 1e-12 * values.max())
        self._store(_total=1.0)
        panels = self._integrate(_GRID[:-1], np.full(_PANELS, 1.0 / _PANELS))
        total = math.fsum(panels)
        panels /= total
        self._store(_total=total, _beyond=np.append(np.cumsum(panels[::-1])[::-1], 0.0))

    def _prepare_cumulative(self, function: Callable[[Any], Any]) -> None:
        values = _evaluate(function, _GRID.copy())
        total = float(values[-1])
        _check_spectrum(np.diff(values), 1e-12 * abs(total), "the slope of cumulative")
        if abs(values[0]) > 1e-12 * total:
            raise ValueError(
                f"cumulative(0) must be 0, got {values[0]!r}; subtract it from the function."
            )
        self._store(_total=total)

    def _integrate(self, left: FloatArray, width: FloatArray) -> FloatArray:
        total = np.zeros_like(left)
        for node, weight in zip(_NODES, _NODE_WEIGHTS, strict=True):
            values = _evaluate(self.density, left + width * node)
            if not np.isfinite(values).all() or values.min() < 0.0:
                raise ValueError("density must be finite and nonnegative on all of [0, 1].")
            total += weight * values
        return total * width / self._total

    def _tail_at(self, v: FloatArray) -> FloatArray:
        if self._kind == "cumulative":
            return 1.0 - np.clip(_evaluate(self._given, 1.0 - v) / self._total, 0.0, 1.0)
        if self._kind == "vector":
            m = self._mass.size
            reach = np.append(0.0, np.cumsum(self._mass[::-1]))
            return np.interp(v, np.arange(m + 1) / m, reach)
        cell = (v * _PANELS).astype(np.intp)
        part = self._integrate(1.0 - v, v - cell / _PANELS)
        return np.minimum(self._beyond[_PANELS - cell] + part, 1.0)

    def _weights(self, n: int) -> FloatArray:
        if self._kind == "vector" and n == self._mass.size:
            return self._mass.copy()
        return super()._weights(n)


class Deviation(Risk):
    """A risk minus the mean, or minus a share of it: how far losses spread upwards.

    It does not change when one number is added to all losses, and is convex in them, but not
    increasing. So it is for affine losses alone (``loss="linear"``), where it stays convex in the
    parameters. CVaR deviations give quantile regression, extremile deviations rank regression and
    Gini portfolios.

    Parameters
    ----------
    risk : Risk
        The risk.
    share : float, default=1.0
        How much of the mean is taken off, at least 0.

    Examples
    --------
    >>> from sorel import CVaR, Deviation
    >>> Deviation(CVaR(0.5))([3.0, 1.0, 2.0, 4.0])
    1.0
    >>> Deviation(CVaR(0.5)).weights(4)
    array([-0.25, -0.25,  0.25,  0.25])
    """

    _parameters = ("risk", "share")
    risk: Risk
    share: float

    def __init__(self, risk: Risk, share: float = 1.0) -> None:
        if not isinstance(risk, Risk) or isinstance(risk, Deviation):
            raise TypeError(f"risk must be a spectral risk such as CVaR(0.1), got {risk!r}.")
        check_real("share", share, 0.0, math.inf, hint="Deviation(risk) takes the mean off once")
        self._store(risk=risk, share=share)

    def _tail_at(self, v: FloatArray) -> FloatArray:
        return self.risk._tail_at(v) - self.share * v

    def _weights(self, n: int) -> FloatArray:
        return self.risk._weights(n) - self.share / n

    def _increments(self, omega: FloatArray) -> FloatArray:
        return self.risk._increments(omega) - self.share * omega

    def effective_share(self, n: int) -> float:
        """Return that of the risk, from whose set the weights come."""
        return self.risk.effective_share(n)

    def largest_jump(self, n: int) -> float:
        """Return that of the risk."""
        return self.risk.largest_jump(n)

    def __call__(self, losses: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the deviation of a vector of losses."""
        check_numbers(losses, "losses")
        values = np.asarray(losses, dtype=np.float64)
        return self.risk(values, sample_weight) - self.share * Mean()(values, sample_weight)

    @property
    def spec(self) -> str | None:
        """``"deviation:<risk>"``, where the risk has a short form and the share is 1."""
        inner = self.risk.spec
        return f"deviation:{inner}" if inner is not None and self.share == 1.0 else None


def parse_risk(risk: str | Risk) -> Risk:
    """Read a risk from its short form.

    Parameters
    ----------
    risk : str or Risk
        ``"mean"``, ``"max"``, ``"cvar:0.1"``, ``"esrm:2"`` or ``"extremile:2.5"``, in any case; a
        mixture of them with its weights, ``"mix:mean=0.7,cvar:0.1=0.3"``; or one of all these
        behind ``"deviation:"``. A risk is passed through.

    Returns
    -------
    Risk
        The risk.

    Examples
    --------
    >>> from sorel.risks import parse_risk
    >>> parse_risk("cvar:0.1")
    CVaR(alpha=0.1)
    >>> parse_risk("mix:mean=0.7,cvar:0.1=0.3").spec
    'mix:mean=0.7,cvar:0.1=0.3'
    """
    if isinstance(risk, Risk):
        return risk
    if not isinstance(risk, str):
        raise TypeError(f"risk must be a Risk or a string, got {risk!r}; known forms: {_FORMS}.")
    name, colon, argument = (part.strip() for part in risk.lower().partition(":"))
    if name == "deviation" and argument:
        return Deviation(parse_risk(argument))
    if name == "mix":
        return _parse_mixture(risk, argument)
    kind = _SHORT.get(name)
    if kind is None or bool(colon) != bool(kind._parameters) or bool(colon) != bool(argument):
        raise ValueError(f"unknown risk {risk!r}; known forms: {_FORMS}.")
    try:
        values = [float(argument)] if argument else []
    except ValueError:
        raise ValueError(
            f"cannot read {argument!r} in risk {risk!r} as a number; known forms: {_FORMS}."
        ) from None
    return kind(*values)


def spelled(risk: Risk) -> str:
    """The short form of a risk, or its representation where it has none."""
    return risk.spec or repr(risk)


def _parse_mixture(text: str, argument: str) -> Mixture:
    """A mixture from texts such as mean=0.7,cvar:0.1=0.3."""
    parts = [part.rpartition("=") for part in argument.split(",")]
    try:
        return Mixture([parse_risk(part) for part, _, _ in parts], [float(w) for *_, w in parts])
    except ValueError as error:
        raise ValueError(
            f"cannot read the mixture {text!r} ({str(error).rstrip('.')}); give risks with their "
            "weights, such as mix:mean=0.7,cvar:0.1=0.3."
        ) from None


# The risks that have a short form: their name, and their parameter if they have one.
_SHORT: dict[str, type[Risk]] = {kind.name: kind for kind in (Mean, Max, CVaR, ESRM, Extremile)}
_FORMS = '"mean", "max", "cvar:0.1", "esrm:2", "extremile:2.5", "mix:mean=0.7,cvar:0.1=0.3"'


def normalised_sample_weight(sample_weight: npt.ArrayLike, n: int) -> FloatArray:
    """Validate sample weights and scale them to sum 1.

    Parameters
    ----------
    sample_weight : array-like of shape (n,)
        Finite nonnegative weights, not all zero.
    n : int
        The expected length.

    Returns
    -------
    ndarray of shape (n,)
        The weights divided by their sum.

    Examples
    --------
    >>> from sorel.risks import normalised_sample_weight
    >>> normalised_sample_weight([1, 3], 2)
    array([0.25, 0.75])
    """
    check_numbers(sample_weight, "sample_weight")
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (n,):
        raise ValueError(f"sample_weight must have shape ({n},), got {weight.shape}.")
    complaints = (
        (~np.isfinite(weight), "has a value that is not finite"),
        (weight < 0.0, "must not be negative"),
    )
    for wrong, complaint in complaints:
        if wrong.any():
            at = int(np.argmax(wrong))
            raise ValueError(
                f"sample_weight {complaint}: sample_weight[{at}] = {float(weight[at])!r}; "
                "give finite, nonnegative weights"
            )
    top = weight.max()
    if top == 0.0:
        raise ValueError("sample_weight is zero everywhere; give at least one positive weight.")
    # Divided by the largest first: the sum of huge weights would overflow.
    weight = weight / top
    return weight / weight.sum()


def check_real(
    name: str, value: Any, low: float, high: float, *, hint: str, low_open: bool = False
) -> None:
    """Refuse what is no real number in [low, high], or in (low, high] with `low_open`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {value!r}; {hint}.")
    number = float(value)
    above = number > low if low_open else number >= low
    if not (above and number <= high and math.isfinite(number)):
        left, right = "(" if low_open else "[", ")" if math.isinf(high) else "]"
        raise ValueError(
            f"{name} must lie in {left}{low:g}, {high:g}{right}, got {value!r}; {hint}."
        )


def _count(n: Any) -> int:
    if isinstance(n, (bool, np.bool_)) or not isinstance(n, numbers.Integral):
        raise TypeError(f"n must be an integer, got {n!r}; pass the number of losses.")
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n!r}; pass the number of losses.")
    return int(n)


def _as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """Values as a tuple; one that is a tuple already is kept, as scikit-learn's clone asks."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be a sequence, got {values!r}.")
    return tuple(values)


def _shown(value: Any) -> str:
    """Write a parameter so that ``eval`` reads it without NumPy's names."""
    if isinstance(value, tuple):
        inner = ", ".join(_shown(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, numbers.Real):
        return repr(float(value))
    return repr(value)


def _on_unit_interval(function: Callable[[FloatArray], FloatArray], points: Any, name: str) -> Any:
    x = np.asarray(points, dtype=np.float64)
    if x.size and not (x.min() >= 0.0 and x.max() <= 1.0):
        raise ValueError(f"{name} must lie in [0, 1], got values from {x.min()!r} to {x.max()!r}.")
    values = function(x.ravel()).reshape(x.shape)
    return float(values) if x.ndim == 0 else values


def _evaluate(function: Callable[[Any], Any], points: FloatArray) -> FloatArray:
    """Call a user's function on an array, or point by point where it only takes scalars."""
    try:
        values = np.asarray(function(points), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.array([function(float(p)) for p in points], dtype=np.float64)
    return np.array(np.broadcast_to(values, points.shape))


def _check_spectrum(values: FloatArray, tolerance: float, what: str = "density") -> None:
    if not np.isfinite(values).all():
        raise ValueError(
            f"{what} must be finite; give a spectrum that is unbounded at 1 as cumulative=S."
        )
    if values.max() <= 0.0:
        raise ValueError(f"{what} is zero everywhere; give at least one positive weight.")
    if values.min() < -tolerance:
        raise ValueError(f"{what} must be nonnegative, found {float(values.min())!r}.")
    if values.size > 1 and np.diff(values).min() < -tolerance:
        where = int(np.argmin(np.diff(values)))
        raise ValueError(
            f"{what} must be nondecreasing (larger losses weigh no less), but falls from "
            f"{float(values[where])!r} to {float(values[where + 1])!r} at position {where + 1}."
        )


def _above(omega: FloatArray) -> FloatArray:
    """Total weight strictly above each item."""
    reach = np.zeros(omega.size)
    reach[:-1] = _running_sum(omega[:0:-1])[::-1]
    return reach


def _running_sum(x: FloatArray) -> FloatArray:
    """Running sums, in long doubles: all their errors would end up in the weight of one item."""
    return np.cumsum(x, dtype=np.longdouble).astype(np.float64)


def _as_weights(sigma: FloatArray) -> FloatArray:
    """Make computed weights nondecreasing and their sum 1, in place: both hold but for rounding."""
    np.maximum.accumulate(sigma, out=sigma)
    sigma /= sigma.sum()
    return sigma
