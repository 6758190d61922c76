"""What a reproduction covers: datasets, risks, methods, grids, seeds and budgets.

The values are those of the paper's appendix where it gives them: three risks, mu = 1/n, eight step
sizes alpha, nine constants C, batches of 64. It leaves the number of seeds and of passes open.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from sorel.problem.risks import parse_risk
from sorel.research.datasets import PAPER_DATASETS

FIGURES = ("1", "2", "3")
DATASETS = (*PAPER_DATASETS, "diabetes", "generated")
"""The sets of the paper, scikit-learn's bundled one, and one made from a seed."""

STEP_SIZES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
DUAL_STEPS = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 1.0, 2.0, 4.0)
TARGETS = (1e-3, 1e-6, 1e-9)

PAPER_METHODS = ("sgd", "lsvrg", "prospect", "sorel")
ALL_METHODS = (*PAPER_METHODS, "sorel-auto", "lbfgs")
APPENDIX_METHODS = ("admm", "pdhg", "apd", "stochastic_pd", "drago")
"""Methods of the related work that the paper names and does not run, with default settings."""

FULL_METHODS = ("lbfgs", "admm", "pdhg", "apd")
"""Methods that take all samples in every step, whatever the size of a mini-batch."""

# What pictures and tables call each method, and its line: colours of Okabe and Ito, and dashes that
# tell the lines apart in grey.
_LOOKS: dict[str, tuple[str, str, Any]] = {
    "sgd": ("SGD (batch 64)", "#999999", (0, (1, 1))),
    "lsvrg": ("LSVRG", "#E69F00", "--"),
    "prospect": ("Prospect", "#CC79A7", "-."),
    "sorel": ("SOREL (published, tuned)", "#D55E00", "-"),
    "sorel-auto": ("SOREL (no knobs)", "#0072B2", "-"),
    "lbfgs": ("L-BFGS", "#000000", ":"),
    "admm": ("ADMM", "#009E73", "-"),
    "pdhg": ("PDHG", "#56B4E9", "--"),
    "apd": ("APD", "#CC79A7", "-."),
    "stochastic_pd": ("Stochastic primal-dual", "#E69F00", "-"),
    "drago": ("Drago (smoothed)", "#999999", (0, (4, 1, 1, 1))),
}
LABELS = {name: label for name, (label, _, _) in _LOOKS.items()}
STYLES = {name: {"color": color, "linestyle": dash} for name, (_, color, dash) in _LOOKS.items()}

_TEXTS = resources.files("sorel.research.reproduce") / "texts.toml"
TEXTS = tomllib.loads(_TEXTS.read_text(encoding="utf-8"))
"""Words of the report, by section and name."""


@dataclass(frozen=True)
class Settings:
    """One reproduction. Everything that changes a number is here.

    Attributes
    ----------
    figures : tuple of {"1", "2", "3"}
        Which figures to make: level sets, without mini-batches, with mini-batches.
    datasets : tuple of str
        Names of the paper's sets, "diabetes" or "generated".
    risks : tuple of str
        Short forms of the risks, such as "cvar:0.5".
    seeds, tuning_seeds : int
        Seeds 1, 2, ... of the curves, and of the choice of the settings.
    passes, batch_passes : int
        Budget of a run without and with mini-batches.
    late_iterations : int
        Outer iterations of the runs that watch the published schedule for long.
    step_sizes, dual_steps : tuple of float
        The grids of alpha and C.
    batch_size : int
        Samples per step with mini-batches, and of SGD in any case.
    tolerance : float
        Relative gap to which the optimal values are certified.
    quick : bool
        Whether this is the short form of the run.
    """

    figures: tuple[str, ...] = FIGURES
    datasets: tuple[str, ...] = PAPER_DATASETS
    risks: tuple[str, ...] = ("esrm:2", "extremile:2.5", "cvar:0.5")
    seeds: int = 5
    tuning_seeds: int = 5
    passes: int = 300
    batch_passes: int = 600
    late_iterations: int = 3000
    step_sizes: tuple[float, ...] = STEP_SIZES
    dual_steps: tuple[float, ...] = DUAL_STEPS
    batch_size: int = 64
    tolerance: float = 1e-12
    quick: bool = False

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Batch sizes of the figures asked for: 1 for the second, `batch_size` for the third."""
        sizes = {"2": 1, "3": self.batch_size}
        return {figure: sizes[figure] for figure in self.figures if figure in sizes}

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes alone."""
        return tuple(self.batch_sizes.values())

    def budget(self, batch: int) -> int:
        """Passes of a run with this batch size."""
        return self.passes if batch == 1 else self.batch_passes

    def grid(self, method: str) -> list[dict[str, float]]:
        """The settings among which `method` is tuned; one empty setting where it has none."""
        if method == "sorel":
            return [{"alpha": a, "C": c} for a in self.step_sizes for c in self.dual_steps]
        if method in PAPER_METHODS:
            return [{"alpha": a} for a in self.step_sizes]
        return [{}]


def make_settings(
    figure: str = "all",
    datasets: Sequence[str] | None = None,
    risks: Sequence[str] | None = None,
    quick: bool = False,
) -> Settings:
    """Settings from what the command line offers.

    Examples
    --------
    >>> from sorel.reproduce.settings import make_settings
    >>> make_settings("2", ["yacht"], quick=True).datasets
    ('yacht',)
    """
    settings = Settings()
    if quick:
        settings = replace(settings, quick=True, seeds=3, tuning_seeds=1)
        settings = replace(settings, passes=150, batch_passes=200, late_iterations=1000)
    return replace(
        settings,
        figures=FIGURES if figure == "all" else (figure,),
        datasets=tuple(dict.fromkeys(datasets or settings.datasets)),
        risks=tuple(dict.fromkeys(risks or settings.risks)),
    )


def risk_label(risk: str) -> str:
    """The name of a risk as the paper writes it.

    Examples
    --------
    >>> from sorel.reproduce.settings import risk_label
    >>> risk_label("extremile:2.5")
    'Extremile(2.5)'
    """
    parsed = parse_risk(risk)
    values = ", ".join(f"{value:g}" for value in parsed.get_params().values())
    return f"{type(parsed).__name__}({values})" if values else type(parsed).__name__
