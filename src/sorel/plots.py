"""Pictures in scikit-learn's Display style: loss tails, convergence, spectra, paths, frontiers.

Each picture has a class, which holds the data and draws them as often as wanted, and a function,
which draws them once and returns the axes. Colours are those of Okabe and Ito, told apart in every
common form of colour blindness; line styles and markers tell them apart in grey. Matplotlib is
imported when something is drawn, and comes with ``pip install "sorel[plot]"``.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel.risks import CVaR, Mixture, Risk, parse_risk

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sorel.estimators import Frontier
    from sorel.metrics import LossLike
    from sorel.paths import PathResult

__all__ = [
    "ConvergenceDisplay",
    "FrontierDisplay",
    "LossTailDisplay",
    "PathDisplay",
    "SpectrumDisplay",
    "plot_convergence",
    "plot_frontier",
    "plot_loss_tails",
    "plot_path",
    "plot_spectrum",
]

FloatArray = NDArray[np.float64]
Curve = tuple[FloatArray, FloatArray]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (6, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# A gap of zero has no place on a logarithmic scale; no certificate is finer than this.
_SMALLEST_GAP = 1e-16
# More names than this do not fit beside the picture.
_NAMED_COEFFICIENTS = 10
_LINE_WIDTH = 1.6
# Labels that fit below a picture without touching, and how far apart they are on a log axis.
_TICKS, _APART = 9, 0.09
# A risk whose weights are this many times those of the others would leave them flat.
_TOWERING = 4.0


def style(position: int) -> dict[str, Any]:
    """Colour and dashes of the line at this position; the first 35 differ.

    Examples
    --------
    >>> from sorel.plots import style
    >>> style(0)
    {'color': '#0072B2', 'linestyle': '-'}
    """
    return {
        "color": COLORS[position % len(COLORS)],
        "linestyle": DASHES[position % len(DASHES)],
    }


def _marker(position: int) -> str:
    # Shifted by one in every round of colours, so that no pair of them comes back soon.
    return MARKERS[(position + position // len(COLORS)) % len(MARKERS)]


class LossTailDisplay:
    """The upper tails of the losses of one or several models.

    Parameters
    ----------
    losses : mapping of str to array
        The losses of each model on the same samples, by the name that the legend gives it.
    level : float, default=0.1
        The share of worst losses that is marked; the legend gives their mean, CVaR(level).
    loss_name : str, default="loss"
        What the axis calls a loss.

    Attributes
    ----------
    ax_, figure_ : Axes, Figure
        Where it was drawn.
    lines_ : list of Line2D
        One line per model.

    See Also
    --------
    plot_loss_tails : The same in one call.

    Examples
    --------
    >>> from sorel.plots import LossTailDisplay
    >>> display = LossTailDisplay({"a": [1.0, 2.0, 5.0], "b": [2.0, 2.0, 3.0]}, level=0.5)
    >>> display.plot().ax_.get_xlabel()
    'loss'
    """

    ax_: Axes
    figure_: Figure
    lines_: list[Any]

    def __init__(
        self, losses: Mapping[str, ArrayLike], *, level: float = 0.1, loss_name: str = "loss"
    ) -> None:
        if not losses:
            raise ValueError("there are no losses to draw; give at least one model")
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}")
        self.losses = {name: np.sort(_losses(name, values)) for name, values in losses.items()}
        self.level = level
        self.loss_name = loss_name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        loss: LossLike | None = None,
        level: float = 0.1,
        name: str | None = None,
        ax: Axes | None = None,
        kind: str = "survival",
    ) -> LossTailDisplay:
        """Draw the tail of one fitted model.

        Parameters
        ----------
        estimator : estimator
            Any fitted regressor or classifier of scikit-learn's kind.
        X, y : array-like
            Samples that it was not fitted to, and their targets.
        loss, level, ax, kind
            As in :func:`plot_loss_tails`.
        name : str, optional
            What the legend calls the model; its class by default.

        Returns
        -------
        LossTailDisplay

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import Ridge
        >>> from sorel.plots import LossTailDisplay
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = Ridge().fit(X[:300], y[:300])
        >>> display = LossTailDisplay.from_estimator(model, X[300:], y[300:])
        >>> display.ax_.get_xlabel()
        'loss (half the squared error)'
        """
        models = {name if name is not None else _model_name(estimator): estimator}
        return cls.from_estimators(models, X, y, loss=loss, level=level, ax=ax, kind=kind)

    @classmethod
    def from_estimators(
        cls,
        models: Mapping[str, Any] | Iterable[Any],
        X: Any,
        y: ArrayLike,
        *,
        loss: LossLike | None = None,
        level: float = 0.1,
        ax: Axes | None = None,
        kind: str = "survival",
    ) -> LossTailDisplay:
        """Draw the tails of several fitted models on the same samples.

        Parameters
        ----------
        models : mapping or iterable of estimators
            Fitted models, by name or with names made from their classes and risks.
        X, y, loss, level, ax, kind
            As in :func:`plot_loss_tails`.

        Returns
        -------
        LossTailDisplay
        """
        named = _named(models, _model_name)
        losses, title = _sample_losses(named, X, y, loss)
        return cls(losses, level=level, loss_name=title).plot(ax, kind=kind)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        *,
        level: float = 0.1,
        name: str = "predictions",
        ax: Axes | None = None,
        kind: str = "survival",
    ) -> LossTailDisplay:
        """Draw the tail of half the squared errors of predicted numbers.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n,)
            Targets and predictions.
        level, ax, kind
            As in :func:`plot_loss_tails`.
        name : str, default="predictions"
            What the legend calls them.

        Returns
        -------
        LossTailDisplay
        """
        residual = np.asarray(y_true, dtype=np.float64) - np.asarray(y_pred, dtype=np.float64)
        display = cls({name: 0.5 * residual**2}, level=level, loss_name=_TITLES["squared"])
        return display.plot(ax, kind=kind)

    def plot(
        self, ax: Axes | None = None, *, kind: str = "survival", show_cvar: bool = True
    ) -> LossTailDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default.
        kind : {"survival", "quantile"}, default="survival"
            For each loss the share of samples with a loss at least as large, on a logarithmic
            scale; or for each share the loss that it exceeds.
        show_cvar : bool, default=True
            Whether the legend gives the mean of the marked losses.

        Returns
        -------
        LossTailDisplay
            Itself, with ``ax_``, ``figure_`` and ``lines_`` set.
        """
        if kind not in ("survival", "quantile"):
            raise ValueError(f"kind must be 'survival' or 'quantile', got {kind!r}")
        self.ax_, self.figure_ = _axes(ax)
        self.lines_ = []
        tail = CVaR(self.level)
        for position, (name, values) in enumerate(self.losses.items()):
            label = f"{name}: CVaR({self.level:g}) = {tail(values):.3g}" if show_cvar else name
            share = np.arange(values.size) / values.size
            if kind == "survival":
                x, y, steps = values, 1.0 - share, "steps-pre"
            else:
                # The last point closes the step of the largest loss.
                x, y, steps = np.append(share, 1.0), np.append(values, values[-1]), "steps-post"
            look = {"drawstyle": steps, "linewidth": _LINE_WIDTH, **style(position)}
            self.lines_.extend(self.ax_.plot(x, y, label=label, **look))
        if kind == "survival":
            self.ax_.set_yscale("log")
            floor = min(0.5 * self.level, 0.8 / max(v.size for v in self.losses.values()))
            self.ax_.set_ylim(floor, 1.15)
            self.ax_.axhspan(floor, self.level, color="0.92", zorder=0, linewidth=0)
            self.ax_.annotate(
                _share_text(self.level),
                (0.0, 0.0),
                xycoords="axes fraction",
                xytext=(4, 4),
                textcoords="offset points",
                color="0.35",
                fontsize="small",
            )
            if min(values[0] for values in self.losses.values()) >= 0.0:
                self.ax_.set_xlim(left=0.0)
            self.ax_.set_xlabel(self.loss_name)
            self.ax_.set_ylabel("share of samples with at least this loss")
            self.ax_.yaxis.set_major_formatter(_percent_formatter())
        else:
            self.ax_.set_xlim(0.0, 1.0)
            self.ax_.axvspan(1.0 - self.level, 1.0, color="0.92", zorder=0, linewidth=0)
            self.ax_.annotate(
                _share_text(self.level),
                (1.0 - self.level, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                rotation=90,
                color="0.35",
                fontsize="small",
            )
            self.ax_.set_xlabel("share of samples with a smaller loss")
            self.ax_.set_ylabel(self.loss_name)
            self.ax_.xaxis.set_major_formatter(_percent_formatter())
        _legend_beside(self.ax_)
        return self


class ConvergenceDisplay:
    """The certified relative gap of one or several runs against the work that they took.

    What is drawn is the smallest gap so far: a solver returns the best pair that it has seen. Where
    the optimum is known, the distance to it can be drawn instead, which no solver can see.

    Parameters
    ----------
    curves : mapping of str to (work, gaps)
        For each run the passes or seconds at its checks, and the relative gaps or, where an optimum
        is given, the objectives.
    tol : float, optional
        The tolerance, drawn as a line.
    against : {"passes", "seconds"}, default="passes"
        What the work is measured in.
    optimum : float, optional
        The optimal value F*: the axis is then (F - F*) / abs(F*).

    Attributes
    ----------
    ax_, figure_ : Axes, Figure
        Where it was drawn.
    lines_ : list of Line2D
        One line per run.

    See Also
    --------
    plot_convergence : The same in one call.

    Examples
    --------
    >>> from sorel.plots import ConvergenceDisplay
    >>> display = ConvergenceDisplay({"run": ([0.0, 1.0, 2.0], [1.0, 2.0, 1e-3])}, tol=1e-2).plot()
    >>> display.lines_[0].get_ydata().tolist()
    [1.0, 1.0, 0.001]
    """

    ax_: Axes
    figure_: Figure
    lines_: list[Any]

    def __init__(
        self,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        tol: float | None = None,
        against: str = "passes",
        optimum: float | None = None,
    ) -> None:
        if against not in ("passes", "seconds"):
            raise ValueError(f"against must be 'passes' or 'seconds', got {against!r}")
        if not curves:
            raise ValueError("there are no curves to draw; give at least one run")
        if optimum is not None and not (np.isfinite(optimum) and optimum != 0.0):
            raise ValueError(f"optimum must be a finite number other than 0, got {optimum!r}")
        if optimum is not None:
            curves = {
                name: (work, (np.asarray(values, dtype=np.float64) - optimum) / abs(optimum))
                for name, (work, values) in curves.items()
            }
        self.curves = {name: _descent(name, *curve) for name, curve in curves.items()}
        self.tol = tol
        self.against = against
        self.optimum = optimum

    @classmethod
    def from_result(
        cls,
        result: Any,
        *,
        tol: float | None = None,
        against: str = "passes",
        optimum: float | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> ConvergenceDisplay:
        """Draw the history of a :class:`sorel.Result`.

        Parameters
        ----------
        result : Result
            What :func:`sorel.solve` returned.
        tol, against, optimum, ax
            As in :func:`plot_convergence`.
        name : str, optional
            What the legend calls the run; its solver by default.

        Returns
        -------
        ConvergenceDisplay

        Examples
        --------
        >>> import numpy as np, sorel
        >>> from sorel.plots import ConvergenceDisplay
        >>> X = np.random.default_rng(0).normal(size=(50, 2))
        >>> result = sorel.solve(sorel.Problem(X, X[:, 0] - X[:, 1] ** 2))
        >>> display = ConvergenceDisplay.from_result(result, tol=1e-6)
        >>> display.ax_.get_ylabel()
        'certified relative gap'
        """
        runs = {name if name is not None else _run_name(result): result}
        return cls._from_runs(runs, tol=tol, against=against, optimum=optimum).plot(ax)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        tol: float | None = None,
        against: str = "passes",
        optimum: float | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> ConvergenceDisplay:
        """Draw the history of a fitted estimator, or of the last step of a pipeline.

        Parameters
        ----------
        estimator : estimator
            One of sorel's, fitted.
        tol, against, optimum, ax
            As in :func:`plot_convergence`; the tolerance is the estimator's own by default.
        name : str, optional
            What the legend calls it; its class and risk by default.

        Returns
        -------
        ConvergenceDisplay
        """
        return cls.from_result(
            estimator, tol=tol, against=against, optimum=optimum, name=name, ax=ax
        )

    @classmethod
    def _from_runs(
        cls,
        runs: Mapping[str, Any],
        *,
        tol: float | None,
        against: str,
        optimum: float | None = None,
    ) -> ConvergenceDisplay:
        if tol is None:
            goals = {getattr(_last_step(run), "tol", None) for run in runs.values()}
            only = goals.pop() if len(goals) == 1 else None
            tol = float(only) if isinstance(only, numbers.Real) else None
        values = "best_relative_gap" if optimum is None else "best_objective"
        curves = {name: _history(run, against, values) for name, run in runs.items()}
        return cls(curves, tol=tol, against=against, optimum=optimum)

    def plot(self, ax: Axes | None = None) -> ConvergenceDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        ConvergenceDisplay
            Itself, with ``ax_``, ``figure_`` and ``lines_`` set.
        """
        self.ax_, self.figure_ = _axes(ax)
        self.lines_ = []
        for position, (name, (work, gaps)) in enumerate(self.curves.items()):
            # Runs may coincide: their markers sit at different places, and dashes leave gaps.
            every = max(1, len(work) // 10)
            line = self.ax_.plot(
                work,
                gaps,
                label=name,
                linewidth=_LINE_WIDTH,
                marker=_marker(position),
                markersize=5.5,
                markerfacecolor="white",
                markevery=(position % every, every),
                **style(position),
            )
            self.lines_.extend(line)
        if self.tol:
            self.ax_.axhline(self.tol, color="0.5", linewidth=0.9, zorder=0)
            # Beside the picture, where no curve passes.
            self.ax_.annotate(
                f"tolerance {_short(self.tol)}",
                (1.0, self.tol),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color="0.35",
                fontsize="small",
            )
        self.ax_.set_yscale("log")
        if self.against == "passes":
            self.ax_.set_xlabel("passes over the data")
        else:
            self.ax_.set_xlabel("seconds")
        first = min(float(work[0]) for work, _ in self.curves.values())
        longest = max(float(work[-1]) for work, _ in self.curves.values())
        if first > 0.0 and longest > 30.0 * first:
            self.ax_.set_xscale("log")
        else:
            self.ax_.set_xlim(left=0.0)
        if self.optimum is None:
            self.ax_.set_ylabel("certified relative gap")
        else:
            self.ax_.set_ylabel("relative suboptimality")
        _legend_beside(self.ax_)
        return self


class SpectrumDisplay:
    """The weights that risks give to ordered losses.

    Parameters
    ----------
    weights : mapping of str to array
        ``sigma``, smallest loss first, of each risk by its name; all of the same length.

    Attributes
    ----------
    ax_, figure_ : Axes, Figure
        Where it was drawn.
    lines_ : list of Line2D
        One line per risk.

    See Also
    --------
    plot_spectrum : The same in one call.

    Examples
    --------
    >>> import sorel
    >>> from sorel.plots import SpectrumDisplay
    >>> display = SpectrumDisplay.from_risks([sorel.Mean(), "cvar:0.5"], n=4)
    >>> [line.get_label() for line in display.lines_]
    ['mean', 'cvar:0.5']
    """

    ax_: Axes
    figure_: Figure
    lines_: list[Any]

    def __init__(self, weights: Mapping[str, ArrayLike]) -> None:
        if not weights:
            raise ValueError("there are no weights to draw; give at least one risk")
        self.weights = {
            name: np.asarray(sigma, dtype=np.float64).ravel() for name, sigma in weights.items()
        }

    @classmethod
    def from_risks(
        cls,
        risks: Risk | str | Mapping[str, Risk | str] | Iterable[Risk | str],
        n: int = 100,
        *,
        ax: Axes | None = None,
    ) -> SpectrumDisplay:
        """Draw the weights of risks for n losses.

        Parameters
        ----------
        risks, n, ax
            As in :func:`plot_spectrum`.

        Returns
        -------
        SpectrumDisplay
        """
        if isinstance(risks, (Risk, str)):
            risks = [risks]
        named = _named(risks, _risk_name)
        weights = {name: parse_risk(risk).weights(n) for name, risk in named.items()}
        return cls(weights).plot(ax)

    def plot(self, ax: Axes | None = None) -> SpectrumDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        SpectrumDisplay
            Itself, with ``ax_``, ``figure_`` and ``lines_`` set.
        """
        self.ax_, self.figure_ = _axes(ax)
        self.lines_ = []
        for position, (name, sigma) in enumerate(self.weights.items()):
            n = sigma.size
            # Weight times n: 1 for the mean, whatever n is.
            edges = np.arange(n + 1) / n
            line = self.ax_.step(
                edges,
                n * np.append(sigma, sigma[-1]),
                where="post",
                label=name,
                linewidth=_LINE_WIDTH,
                **style(position),
            )
            self.lines_.extend(line)
        self.ax_.set_xlim(0.0, 1.0)
        self.ax_.set_ylim(bottom=0.0)
        self.ax_.set_xlabel("losses in ascending order (share of the samples)")
        self.ax_.set_ylabel("weight relative to the mean's 1/n")
        self.ax_.xaxis.set_major_formatter(_percent_formatter())
        self._cut_towers()
        _legend_beside(self.ax_)
        return self

    def _cut_towers(self) -> None:
        """Let one risk that towers above all others leave the picture, with its height in words."""
        peaks = {name: sigma.size * float(sigma.max()) for name, sigma in self.weights.items()}
        (tallest, top), *rest = sorted(peaks.items(), key=lambda item: -item[1])
        if not rest or top <= _TOWERING * rest[0][1]:
            return
        self.ax_.set_ylim(0.0, 1.5 * rest[0][1])
        self.ax_.annotate(
            f"{tallest}: up to {top:.3g}",
            (1.0, 1.0),
            xycoords="axes fraction",
            xytext=(-8, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            color="0.35",
            fontsize="small",
        )


class PathDisplay:
    """Coefficients along a grid of risks or of l2.

    Parameters
    ----------
    coefficients : mapping of str to array of shape (m,)
        The values of each coefficient at the m points of the grid.
    grid : sequence of float or of str
        The points: numbers, drawn on a logarithmic axis, or names.
    grid_name : str, default="l2"
        What the axis calls them.
    converged : array of bool of shape (m,), optional
        Points that missed the tolerance are marked.

    Attributes
    ----------
    ax_, figure_ : Axes, Figure
        Where it was drawn.
    lines_ : list of Line2D
        One line per coefficient.

    See Also
    --------
    plot_path : The same in one call.

    Examples
    --------
    >>> from sorel.plots import PathDisplay
    >>> display = PathDisplay({"age": [1.0, 0.5]}, [0.1, 1.0]).plot()
    >>> display.ax_.get_xlabel(), display.ax_.get_xscale()
    ('l2', 'log')
    """

    ax_: Axes
    figure_: Figure
    lines_: list[Any]

    def __init__(
        self,
        coefficients: Mapping[str, ArrayLike],
        grid: Sequence[float] | Sequence[str],
        *,
        grid_name: str = "l2",
        converged: ArrayLike | None = None,
    ) -> None:
        if not coefficients:
            raise ValueError("there are no coefficients to draw")
        self.coefficients = {
            name: np.asarray(values, dtype=np.float64) for name, values in coefficients.items()
        }
        self.grid: list[Any] = list(grid)
        for name, values in self.coefficients.items():
            if values.shape != (len(self.grid),):
                raise ValueError(
                    f"{name} must have one value for each of the {len(self.grid)} points, "
                    f"got shape {values.shape}"
                )
        self.grid_name = grid_name
        done = np.ones(len(self.grid)) if converged is None else converged
        self.converged = np.asarray(done, dtype=bool)

    @classmethod
    def from_path(
        cls,
        path: PathResult,
        *,
        risk: Risk | str | None = None,
        l2: float | None = None,
        ax: Axes | None = None,
    ) -> PathDisplay:
        """Draw what :func:`sorel.path` returned.

        Parameters
        ----------
        path, risk, l2, ax
            As in :func:`plot_path`.

        Returns
        -------
        PathDisplay

        Examples
        --------
        >>> import numpy as np, sorel
        >>> from sorel.plots import PathDisplay
        >>> X = np.random.default_rng(0).normal(size=(50, 2))
        >>> solutions = sorel.path(X, X[:, 0] - X[:, 1] ** 2, risks=["mean", "cvar:0.2"])
        >>> display = PathDisplay.from_path(solutions)
        >>> [line.get_label() for line in display.lines_]
        ['x0', 'x1']
        """
        chosen = np.ones(len(path), dtype=bool)
        if risk is not None:
            wanted = parse_risk(risk)
            chosen &= np.array([other == wanted for other in path.risks])
        if l2 is not None:
            chosen &= np.isclose(path.l2, l2, rtol=1e-9, atol=0.0)
        points = np.flatnonzero(chosen)
        risks = [path.risks[point] for point in points]
        names = list(dict.fromkeys(_risk_name(other) for other in risks))
        strengths = np.unique(path.l2[points])
        if not points.size:
            raise ValueError("the path has no point with this risk and l2")
        if len(names) > 1 and strengths.size > 1:
            raise ValueError(
                f"the path has {len(names)} risks and {strengths.size} l2; "
                "choose one with risk=... or l2=..."
            )
        grid: list[Any]
        if len(names) == 1:
            grid, grid_name = path.l2[points].tolist(), "l2"
        elif all(type(other) is CVaR for other in risks):
            grid, grid_name = [float(other.get_params()["alpha"]) for other in risks], "CVaR level"
        else:
            grid, grid_name = [_risk_name(other) for other in risks], "risk"
        coefs = path.coefs[points]
        if coefs.ndim == 2:
            labels = list(path.feature_names)
        else:
            classes = [] if path.classes is None else path.classes.tolist()
            labels = [f"{label}: {name}" for label in classes for name in path.feature_names]
        table = coefs.reshape(len(points), -1).T
        display = cls(
            dict(zip(labels, table, strict=True)),
            grid,
            grid_name=grid_name,
            converged=path.converged[points],
        )
        return display.plot(ax)

    def plot(self, ax: Axes | None = None) -> PathDisplay:
        """Draw.

        The ten largest coefficients have names; where there are more, the others are grey.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        PathDisplay
            Itself, with ``ax_``, ``figure_`` and ``lines_`` set.
        """
        self.ax_, self.figure_ = _axes(ax)
        self.lines_ = []
        numeric = all(isinstance(point, numbers.Real) for point in self.grid)
        x = np.asarray(self.grid, dtype=np.float64) if numeric else np.arange(len(self.grid))
        order = np.argsort(x, kind="stable")
        by_size = sorted(
            self.coefficients, key=lambda name: -float(np.abs(self.coefficients[name]).max())
        )
        named = set(by_size[:_NAMED_COEFFICIENTS])
        others = len(by_size) - len(named)
        position = 0
        for name, values in self.coefficients.items():
            if name in named:
                look = {**style(position), "marker": _marker(position)}
                look.update(label=name, linewidth=_LINE_WIDTH, markersize=5)
                look.update(markerfacecolor="white")
                position += 1
            else:
                look = {"color": "0.8", "linewidth": 0.8, "zorder": 1}
            self.lines_.extend(self.ax_.plot(x[order], values[order], **look))
        if others:
            self.ax_.plot([], [], color="0.8", linewidth=0.8, label=f"{others} others")
        missed = ~self.converged
        if missed.any():
            self.ax_.plot(
                x[missed],
                np.zeros(int(missed.sum())),
                transform=self.ax_.get_xaxis_transform(),
                linestyle="",
                marker="x",
                color="0.2",
                clip_on=False,
                label="tolerance missed",
            )
        self.ax_.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
        if not numeric:
            self.ax_.set_xticks(x, labels=self.grid, rotation=30, ha="right")
        elif min(self.grid) > 0.0 and len(set(self.grid)) > 1:
            self.ax_.set_xscale("log")
            ticks = _readable_ticks(x.astype(np.float64))
            self.ax_.set_xticks(ticks, labels=[_short(tick) for tick in ticks])
            self.ax_.set_xticks([], minor=True)
        if self.grid_name == "CVaR level":
            self.ax_.set_xlabel("CVaR level (share of worst losses that counts)")
        else:
            self.ax_.set_xlabel(self.grid_name)
        self.ax_.set_ylabel("coefficient")
        # In the order in which the lines leave the picture on the right.
        last = {line.get_label(): float(line.get_ydata()[-1]) for line in self.lines_}
        handles, names = self.ax_.get_legend_handles_labels()
        places = sorted(range(len(names)), key=lambda place: -last.get(names[place], -np.inf))
        _legend_beside(
            self.ax_, [handles[place] for place in places], [names[place] for place in places]
        )
        return self


class FrontierDisplay:
    """The efficient frontier: mean return against risk, with the assets on their own.

    Parameters
    ----------
    risk, expected_return : array of shape (m,)
        Risk and mean return of the portfolios.
    assets : mapping of str to (risk, mean return), optional
        The assets alone.
    risk_name : str, default="risk"
        What the axis calls the risk.
    converged : array of bool of shape (m,), optional
        Points that missed the tolerance are marked.

    Attributes
    ----------
    ax_, figure_ : Axes, Figure
        Where it was drawn.
    line_ : Line2D
        The frontier.

    See Also
    --------
    plot_frontier : The same in one call.

    Examples
    --------
    >>> from sorel.plots import FrontierDisplay
    >>> display = FrontierDisplay([0.01, 0.02], [0.001, 0.0015], risk_name="CVaR(0.05)").plot()
    >>> display.ax_.get_xlabel()
    'CVaR(0.05) of the losses'
    """

    ax_: Axes
    figure_: Figure
    line_: Any

    def __init__(
        self,
        risk: ArrayLike,
        expected_return: ArrayLike,
        *,
        assets: Mapping[str, tuple[float, float]] | None = None,
        risk_name: str = "risk",
        converged: ArrayLike | None = None,
    ) -> None:
        self.risk = np.asarray(risk, dtype=np.float64)
        self.expected_return = np.asarray(expected_return, dtype=np.float64)
        if self.risk.ndim != 1 or self.risk.shape != self.expected_return.shape:
            raise ValueError(
                "risk and expected_return must have one value per portfolio, got shapes "
                f"{self.risk.shape} and {self.expected_return.shape}"
            )
        self.assets = dict(assets or {})
        self.risk_name = risk_name
        done = np.ones(len(self.risk)) if converged is None else converged
        self.converged = np.asarray(done, dtype=bool)

    @classmethod
    def from_frontier(cls, frontier: Frontier, *, ax: Axes | None = None) -> FrontierDisplay:
        """Draw what :meth:`sorel.SpectralRiskPortfolio.frontier` returned.

        Parameters
        ----------
        frontier, ax
            As in :func:`plot_frontier`.

        Returns
        -------
        FrontierDisplay
        """
        places = zip(frontier.asset_risk.tolist(), frontier.asset_return.tolist(), strict=True)
        display = cls(
            frontier.risk,
            frontier.expected_return,
            assets=dict(zip(frontier.names, places, strict=True)),
            risk_name=_risk_name(frontier.risk_measure),
            converged=frontier.converged,
        )
        return display.plot(ax)

    def plot(self, ax: Axes | None = None) -> FrontierDisplay:
        """Draw.

        Assets have names where there are few of them.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        FrontierDisplay
            Itself, with ``ax_``, ``figure_`` and ``line_`` set.
        """
        self.ax_, self.figure_ = _axes(ax)
        look = {**style(0), "marker": _marker(0), "markersize": 4, "linewidth": _LINE_WIDTH}
        (self.line_,) = self.ax_.plot(
            self.risk, self.expected_return, label="efficient frontier", zorder=3, **look
        )
        if self.assets:
            places = np.array(list(self.assets.values()))
            self.ax_.plot(
                places[:, 0], places[:, 1], linestyle="", marker="s", markersize=4, color="0.55",
                label="single assets", zorder=2,
            )  # fmt: skip
            if len(self.assets) <= _NAMED_COEFFICIENTS:
                for name, place in self.assets.items():
                    self.ax_.annotate(
                        name, place, xytext=(5, 3), textcoords="offset points", fontsize="small",
                        color="0.35",
                    )  # fmt: skip
        missed = ~self.converged
        if missed.any():
            self.ax_.plot(
                self.risk[missed], self.expected_return[missed], linestyle="", marker="x",
                markersize=8, color="0.2", label="tolerance missed", zorder=4,
            )  # fmt: skip
        self.ax_.set_xlabel(f"{self.risk_name} of the losses")
        self.ax_.set_ylabel("mean return")
        self.ax_.legend(frameon=False)
        return self


def plot_frontier(frontier: Frontier, *, ax: Axes | None = None) -> Axes:
    """Draw the efficient frontier, with the assets on their own.

    Parameters
    ----------
    frontier : Frontier
        What :meth:`sorel.SpectralRiskPortfolio.frontier` returned.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.plots import plot_frontier
    >>> R = np.random.default_rng(0).normal([0.01, 0.02], [0.01, 0.04], size=(200, 2))
    >>> frontier = sorel.SpectralRiskPortfolio().frontier(R, n_points=4)
    >>> plot_frontier(frontier).get_ylabel()
    'mean return'
    """
    return FrontierDisplay.from_frontier(frontier, ax=ax).ax_


def plot_loss_tails(
    models: Any,
    X: Any,
    y: ArrayLike,
    *,
    loss: LossLike | None = None,
    level: float = 0.1,
    kind: str = "survival",
    ax: Axes | None = None,
) -> Axes:
    """Draw the upper tails of the held-out losses of fitted models.

    Parameters
    ----------
    models : estimator, mapping or iterable of estimators
        Any fitted models of scikit-learn's kind, such as a ``Ridge`` beside sorel's own. A mapping
        gives their names.
    X, y : array-like
        Samples that the models were not fitted to, and their targets.
    loss : str, Loss or callable, optional
        The loss of one sample, the same for all models, as in :class:`sorel.metrics.TailScorer`.
        By default half the squared error of regressors, and minus the logarithm of the probability
        that classifiers give to the true label.
    level : float, default=0.1
        The share of worst losses that is marked; the legend gives their mean, CVaR(level).
    kind : {"survival", "quantile"}, default="survival"
        For each loss the share of samples with a loss at least as large, on a logarithmic scale;
        or for each share the loss that it exceeds.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sorel.plots import plot_loss_tails
    >>> X, y = load_diabetes(return_X_y=True)
    >>> models = {f"ridge {a:g}": Ridge(alpha=a).fit(X[:300], y[:300]) for a in (0.1, 10)}
    >>> ax = plot_loss_tails(models, X[300:], y[300:])
    >>> ax.get_legend().get_texts()[0].get_text()
    'ridge 0.1: CVaR(0.1) = ...'
    """
    if hasattr(models, "predict"):
        models = [models]
    display = LossTailDisplay.from_estimators(
        models, X, y, loss=loss, level=level, ax=ax, kind=kind
    )
    return display.ax_


def plot_convergence(
    runs: Any,
    *,
    tol: float | None = None,
    against: str = "passes",
    optimum: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the certified relative gap, or the distance to a known optimum, against the work done.

    Parameters
    ----------
    runs : Result, estimator, or a mapping or iterable of them
        Results of :func:`sorel.solve`, fitted estimators of sorel, or pipelines that end in one.
    tol : float, optional
        The tolerance, drawn as a line; by default that of the estimators, if it is the same for
        all.
    against : {"passes", "seconds"}, default="passes"
        The horizontal axis.
    optimum : float, optional
        The optimal value F*, such as ``result.dual`` of a run to a far smaller tolerance: draw
        (F - F*) / abs(F*) instead of the gap.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.plots import plot_convergence
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> problem = sorel.Problem(X, X[:, 0] - X[:, 1] ** 2)
    >>> runs = {name: sorel.solve(problem, name) for name in ("auto", "newton")}
    >>> plot_convergence(runs, tol=1e-6).get_yscale()
    'log'
    """
    if hasattr(runs, "history") or hasattr(runs, "predict"):
        runs = [runs]
    display = ConvergenceDisplay._from_runs(
        _named(runs, _run_name), tol=tol, against=against, optimum=optimum
    )
    return display.plot(ax).ax_


def plot_spectrum(
    risks: Risk | str | Mapping[str, Risk | str] | Iterable[Risk | str],
    n: int = 100,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the weights that risks give to n ordered losses.

    Parameters
    ----------
    risks : Risk, str, or a mapping or iterable of them
        Such as ``CVaR(0.1)`` or ``"esrm:2"``. A mapping gives their names.
    n : int, default=100
        Number of losses.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from sorel.plots import plot_spectrum
    >>> ax = plot_spectrum(["mean", "cvar:0.25", "esrm:2"], n=50)
    >>> ax.get_ylabel()
    "weight relative to the mean's 1/n"
    """
    return SpectrumDisplay.from_risks(risks, n, ax=ax).ax_


def plot_path(
    path: PathResult,
    *,
    risk: Risk | str | None = None,
    l2: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the coefficients along a grid of risks or of l2.

    Parameters
    ----------
    path : PathResult
        What :func:`sorel.path` returned.
    risk : Risk or str, optional
        Draw the points of this risk only; one of `risk` and `l2` is needed where both vary.
    l2 : float, optional
        Draw the points of this l2 only.
    ax : Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np, sorel
    >>> from sorel.plots import plot_path
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> solutions = sorel.path(X, X[:, 0] - X[:, 1] ** 2, l2=[0.01, 0.1, 1.0])
    >>> plot_path(solutions).get_xlabel()
    'l2'
    """
    return PathDisplay.from_path(path, risk=risk, l2=l2, ax=ax).ax_


_TITLES = {
    "squared": "loss (half the squared error)",
    "absolute": "loss (absolute error)",
    "logistic": "loss (minus the log of the true label's probability)",
    "log_loss": "loss (minus the log of the true label's probability)",
    "multinomial": "loss (minus the log of the true label's probability)",
}


def _sample_losses(
    models: Mapping[str, Any], X: Any, y: ArrayLike, loss: LossLike | None
) -> tuple[dict[str, FloatArray], str]:
    """Losses of each model on the same samples, and what to call them."""
    from sklearn.base import is_classifier

    from sorel.metrics import TailScorer

    if loss is None:
        kinds = {is_classifier(model) for model in models.values()}
        if len(kinds) > 1:
            raise ValueError("classifiers and regressors have no loss in common; give one")
        loss = "logistic" if kinds == {True} else "squared"
    scorer = TailScorer("mean", loss)
    losses = {name: scorer.losses(model, X, y) for name, model in models.items()}
    own_name = getattr(loss, "__name__", "loss") if callable(loss) else loss
    name = str(getattr(loss, "name", own_name))
    return losses, _TITLES.get(name, f"loss ({name.replace('_', ' ')})")


def _losses(name: str, values: ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} must have one loss per sample, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has losses that are not finite")
    return array


def _descent(name: str, work: ArrayLike, gaps: ArrayLike) -> Curve:
    """Work and the smallest gap so far; checks without a certificate are left out."""
    x, y = np.asarray(work, dtype=np.float64), np.asarray(gaps, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"{name} has work of shape {x.shape} but gaps of shape {y.shape}")
    known = np.isfinite(y)
    if not known.any():
        raise ValueError(f"{name} has no certified gap to draw")
    return x[known], np.maximum(np.minimum.accumulate(y[known]), _SMALLEST_GAP)


def _history(run: Any, against: str, values: str) -> Curve:
    last = _last_step(run)
    history = getattr(last, "history_", getattr(last, "history", None))
    if history is None:
        raise TypeError(
            f"{type(run).__name__} has no history to draw; give a result of sorel.solve or a "
            "fitted estimator of sorel"
        )
    if hasattr(history, "keys"):
        return (
            np.asarray(history[against], dtype=np.float64),
            np.asarray(history[values], dtype=np.float64),
        )
    return (
        np.array([getattr(record, against) for record in history], dtype=np.float64),
        np.array([getattr(record, values) for record in history], dtype=np.float64),
    )


def _last_step(model: Any) -> Any:
    while hasattr(model, "steps"):
        model = model.steps[-1][1]
    return model


def _model_name(model: Any) -> str:
    last = _last_step(model)
    risk = getattr(last, "best_risk_", getattr(last, "risk", None))
    return type(last).__name__ if risk is None else _risk_name(risk)


def _run_name(run: Any) -> str:
    return str(run.solver) if hasattr(run, "history") else _model_name(run)


def _risk_name(risk: Risk | str) -> str:
    if isinstance(risk, str):
        return risk
    if isinstance(risk, Mixture):
        parts = zip(risk.get_params()["weights"], risk.components, strict=True)
        return " + ".join(f"{weight:g} {_risk_name(part)}" for weight, part in parts)
    return risk.spec or repr(risk)


def _named(items: Any, name: Callable[[Any], str]) -> dict[str, Any]:
    """A mapping as it is; a sequence with a name made for each item, numbered where they repeat."""
    if isinstance(items, Mapping):
        return {str(key): value for key, value in items.items()}
    if not isinstance(items, Iterable):
        raise TypeError(f"expected a mapping or a sequence, got {type(items).__name__}")
    values: Sequence[Any] = list(items)
    names = [name(value) for value in values]
    result = {}
    for position, (text, value) in enumerate(zip(names, values, strict=True)):
        repeated = names.count(text) > 1
        number = names[: position + 1].count(text)
        result[f"{text} ({number})" if repeated else text] = value
    return result


def _short(number: float) -> str:
    if number >= 1e-3:
        return f"{number:.3g}"
    digits, _, power = f"{number:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _readable_ticks(points: FloatArray) -> list[float]:
    """Points of a grid to label on a logarithmic axis: as many as fit without touching.

    Powers of ten go first, then the ends, then numbers that start with 2 or 5.
    """
    values = np.unique(points)
    span = np.log(values[-1] / values[0])
    powers = np.log10(values)
    is_power = np.abs(powers - np.round(powers)) < 1e-9
    simple = np.isin([f"{value:.6e}"[0] for value in values], ["2", "5"])
    rank = np.where(is_power, 0, np.where(simple, 2, 3))
    rank[[0, -1]] = np.minimum(rank[[0, -1]], 1)
    chosen: list[float] = []
    for place in np.lexsort((values, rank)).tolist():
        value = float(values[place])
        if rank[place] > 1 and is_power.sum() > 2:
            break
        clear = all(abs(np.log(value / other)) >= _APART * span for other in chosen)
        if clear and len(chosen) < _TICKS:
            chosen.append(value)
    return sorted(chosen)


def _legend_beside(ax: Axes, handles: Any = None, labels: Any = None) -> None:
    """A legend on the right of the picture, where it covers no data."""
    if handles is None:
        handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles,
        labels,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        fontsize="small",
    )


def _share_text(level: float) -> str:
    return f"worst {100 * level:.3g}%"


def _percent_formatter() -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, position: f"{100 * value:.3g}%")


def _axes(ax: Axes | None) -> tuple[Axes, Any]:
    if ax is None:
        pyplot = _pyplot()
        _, ax = pyplot.subplots(figsize=(7.4, 4.4), layout="constrained")
    assert ax is not None
    ax.spines[["top", "right"]].set_visible(False)
    return ax, ax.figure


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError(
            'pictures need matplotlib: pip install "sorel[plot]"', name=error.name
        ) from None
    return matplotlib.pyplot
