"""Pictures in scikit-learn's Display style: loss tails, convergence, spectra, paths, frontiers.

Each picture has a class, which holds the data and draws them as often as wanted, and a function,
which draws them once and returns the axes. Colours are those of Okabe and Ito, told apart in every
common form of colour blindness; line styles and markers tell them apart in grey. Matplotlib is
imported when something is drawn, and comes with ``pip install "sorel[plot]"``.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sorel._lib.extras import import_extra
from sorel.problem.risks import CVaR, Mixture, Risk, parse_risk, spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sorel.estimators.metrics import LossLike
    from sorel.estimators.paths import PathResult
    from sorel.estimators.portfolio import Frontier

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
_SMALLEST_GAP = np.finfo(np.float64).eps
# More names than this do not fit beside the picture.
_NAMED_COEFFICIENTS = 10
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
    return {"color": COLORS[position % len(COLORS)], "linestyle": DASHES[position % len(DASHES)]}


class _Display:
    """Axes to draw on, and what every picture has: lines that differ, notes in grey, a legend."""

    ax_: Axes
    figure_: Any
    lines_: list[Any]

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        self
            The display, with ``ax_``, ``figure_`` and ``lines_`` set.
        """
        self._draw(self._begin(ax))
        return self

    def _draw(self, ax: Axes) -> None:
        raise NotImplementedError

    def _begin(self, ax: Axes | None) -> Axes:
        if ax is None:
            pyplot = import_extra("matplotlib.pyplot", "pictures need", "plot")
            _, ax = pyplot.subplots(figsize=(7.4, 4.4), layout="constrained")
        assert ax is not None
        ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_, self.lines_ = ax, ax.figure, []
        return ax

    def _add(self, x: Any, y: Any, position: int, label: str, **look: Any) -> None:
        look = {**style(position), "label": label, **look}
        if "markersize" in look:
            marker = MARKERS[position % len(MARKERS)]
            look = {"marker": marker, "markerfacecolor": "white", **look}
        self.lines_.extend(self.ax_.plot(x, y, **look))

    def _note(self, text: str, xy: Any, xycoords: Any, offset: Any, **more: Any) -> None:
        more = {"textcoords": "offset points", "color": "0.35", "fontsize": "small", **more}
        self.ax_.annotate(text, xy, xycoords=xycoords, xytext=offset, **more)

    def _percent(self, axis: Any) -> None:
        axis.set_major_formatter(lambda value, position: f"{100 * value:.3g}%")

    def _missed(self, x: Any, y: Any, **more: Any) -> None:
        """Mark points that missed the tolerance."""
        if len(x):
            self.ax_.plot(x, y, "x", color="0.2", label="tolerance missed", **more)

    def _legend(self, order: Callable[[str], float] | None = None) -> None:
        """On the right of the picture, where it covers no data."""
        entries = list(zip(*self.ax_.get_legend_handles_labels(), strict=True))
        if order is not None:
            entries.sort(key=lambda entry: order(entry[1]))
        handles, labels = zip(*entries, strict=True)
        look: dict[str, Any] = {"frameon": False, "fontsize": "small", "borderaxespad": 0.0}
        self.ax_.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), **look)


class LossTailDisplay(_Display):
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

    def __init__(
        self, losses: Mapping[str, ArrayLike], *, level: float = 0.1, loss_name: str = "loss"
    ) -> None:
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, got {level!r}")
        self.losses = _arrays(losses, "losses")
        for name, values in self.losses.items():
            if values.ndim != 1 or not values.size:
                raise ValueError(f"{name} must have one loss per sample, got shape {values.shape}")
            if not np.isfinite(values).all():
                raise ValueError(f"{name} has losses that are not finite")
            values.sort()
        self.level, self.loss_name = level, loss_name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: ArrayLike, *, name: str | None = None, **options: Any
    ) -> LossTailDisplay:
        """Draw the tail of one fitted model.

        Parameters
        ----------
        estimator : estimator
            Any fitted regressor or classifier of scikit-learn's kind.
        X, y : array-like
            Samples that it was not fitted to, and their targets.
        name : str, optional
            What the legend calls the model; its class by default.
        **options
            loss, level, ax and kind, as in :func:`plot_loss_tails`.

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
        return cls.from_estimators({name or _model_name(estimator): estimator}, X, y, **options)

    @classmethod
    def from_estimators(
        cls,
        models: Any,
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
        models : estimator, mapping or iterable of estimators
            Fitted models, by name or with names made from their classes and risks.
        X, y, loss, level, ax, kind
            As in :func:`plot_loss_tails`.

        Returns
        -------
        LossTailDisplay
        """
        from sklearn.base import is_classifier

        from sorel.estimators.metrics import TailScorer

        named = _named(models, _model_name)
        if loss is None:
            kinds = {is_classifier(model) for model in named.values()}
            if len(kinds) > 1:
                raise ValueError("classifiers and regressors have no loss in common; give one")
            loss = "logistic" if kinds == {True} else "squared"
        scorer = TailScorer("mean", loss)
        losses = {name: scorer.losses(model, X, y) for name, model in named.items()}
        own_name = getattr(loss, "__name__", "loss") if callable(loss) else loss
        name = str(getattr(loss, "name", own_name))
        title = _TITLES.get(name, f"loss ({name.replace('_', ' ')})")
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
        ax, level, tail = self._begin(ax), self.level, CVaR(self.level)
        marked = f"worst {100 * level:.3g}%"
        for position, (name, values) in enumerate(self.losses.items()):
            label = f"{name}: CVaR({level:g}) = {tail(values):.3g}" if show_cvar else name
            share = np.arange(values.size) / values.size
            if kind == "survival":
                self._add(values, 1.0 - share, position, label, drawstyle="steps-pre")
            else:
                # The last point closes the step of the largest loss.
                x, y = np.append(share, 1.0), np.append(values, values[-1])
                self._add(x, y, position, label, drawstyle="steps-post")
        if kind == "survival":
            floor = 0.5 * min(level, *(1.0 / v.size for v in self.losses.values()))
            ax.set(yscale="log", ylim=(floor, 1.15), xlabel=self.loss_name)
            ax.set_ylabel("share of samples with at least this loss")
            ax.axhspan(floor, level, color="0.92", zorder=0, linewidth=0)
            self._note(marked, (0.0, 0.0), "axes fraction", (4, 4))
            if min(values[0] for values in self.losses.values()) >= 0.0:
                ax.set_xlim(left=0.0)
            self._percent(ax.yaxis)
        else:
            ax.set(xlim=(0.0, 1.0), ylabel=self.loss_name)
            ax.set_xlabel("share of samples with a smaller loss")
            start = 1.0 - level
            ax.axvspan(start, 1.0, color="0.92", zorder=0, linewidth=0)
            place = {"ha": "right", "va": "top", "rotation": 90}
            self._note(marked, (start, 1.0), ("data", "axes fraction"), (-3, -3), **place)
            self._percent(ax.xaxis)
        self._legend()
        return self


class ConvergenceDisplay(_Display):
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
        self.tol, self.against, self.optimum = tol, against, optimum
        self.curves = {name: self._descent(name, *curve) for name, curve in curves.items()}

    def _descent(self, name: str, work: ArrayLike, values: ArrayLike) -> Curve:
        """Work and the smallest gap so far; checks without a certificate are left out."""
        x, y = np.asarray(work, dtype=np.float64), np.asarray(values, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape:
            raise ValueError(f"{name} has work of shape {x.shape} but gaps of shape {y.shape}")
        known = np.isfinite(y)
        if not known.any():
            raise ValueError(f"{name} has no certified gap to draw")
        if self.optimum is not None:
            y = (y - self.optimum) / abs(self.optimum)
        return x[known], np.maximum(np.minimum.accumulate(y[known]), _SMALLEST_GAP)

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
        return cls._from_runs({name or _run_name(result): result}, tol, against, optimum).plot(ax)

    @classmethod
    def from_estimator(cls, estimator: Any, **options: Any) -> ConvergenceDisplay:
        """Draw the history of a fitted estimator, or of the last step of a pipeline.

        Parameters
        ----------
        estimator : estimator
            One of sorel's, fitted.
        **options
            tol, against, optimum, name and ax, as in :meth:`from_result`; the tolerance is the
            estimator's own by default, and the name made of its class and risk.

        Returns
        -------
        ConvergenceDisplay
        """
        return cls.from_result(estimator, **options)

    @classmethod
    def _from_runs(
        cls, runs: Mapping[str, Any], tol: float | None, against: str, optimum: float | None
    ) -> ConvergenceDisplay:
        if tol is None:
            goals = {getattr(_last_step(run), "tol", None) for run in runs.values()}
            tol = goals.pop() if len(goals) == 1 else None
        values = "best_relative_gap" if optimum is None else "best_objective"
        curves = {name: _history(run, against, values) for name, run in runs.items()}
        return cls(curves, tol=tol, against=against, optimum=optimum)

    def _draw(self, ax: Axes) -> None:
        for position, (name, (work, gaps)) in enumerate(self.curves.items()):
            # Runs may coincide: their markers sit at different places, and dashes leave gaps.
            every = max(1, len(work) // 10)
            look = {"markersize": 5.5, "markevery": (position % every, every)}
            self._add(work, gaps, position, name, **look)
        if self.tol:
            ax.axhline(self.tol, color="0.5", linewidth=0.9, zorder=0)
            # Beside the picture, where no curve passes.
            place = (1.0, self.tol), ("axes fraction", "data"), (4, 0)
            self._note(f"tolerance {self.tol:g}", *place, va="center")
        first = min(float(work[0]) for work, _ in self.curves.values())
        longest = max(float(work[-1]) for work, _ in self.curves.values())
        if first > 0.0 and longest > 30.0 * first:
            ax.set_xscale("log")
        else:
            ax.set_xlim(left=0.0)
        ax.set(
            yscale="log",
            xlabel="passes over the data" if self.against == "passes" else "seconds",
            ylabel="certified relative gap" if self.optimum is None else "relative suboptimality",
        )
        self._legend()


class SpectrumDisplay(_Display):
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

    def __init__(self, weights: Mapping[str, ArrayLike]) -> None:
        self.weights = _arrays(weights, "weights")

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
        named = _named(risks, _risk_name)
        weights = {name: parse_risk(risk).weights(n) for name, risk in named.items()}
        return cls(weights).plot(ax)

    def _draw(self, ax: Axes) -> None:
        peaks = []
        for position, (name, sigma) in enumerate(self.weights.items()):
            n = sigma.size
            # Weight times n: 1 for the mean, whatever n is.
            heights = n * np.append(sigma, sigma[-1])
            peaks.append((float(heights.max()), name))
            self._add(np.arange(n + 1) / n, heights, position, name, drawstyle="steps-post")
        ax.set(xlim=(0.0, 1.0), ylabel="weight relative to the mean's 1/n")
        ax.set_xlabel("losses in ascending order (share of the samples)")
        ax.set_ylim(bottom=0.0)
        self._percent(ax.xaxis)
        (top, tallest), *rest = sorted(peaks, reverse=True)
        if rest and top > _TOWERING * rest[0][0]:
            # It leaves the picture, with its height in words.
            ax.set_ylim(0.0, 1.5 * rest[0][0])
            text, place = f"{tallest}: up to {top:.3g}", {"ha": "right", "va": "top"}
            self._note(text, (1.0, 1.0), "axes fraction", (-8, -2), **place)
        self._legend()


class PathDisplay(_Display):
    """Coefficients along a grid of risks or of l2.

    The ten largest coefficients have names; where there are more, the others are grey.

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

    def __init__(
        self,
        coefficients: Mapping[str, ArrayLike],
        grid: Sequence[float] | Sequence[str],
        *,
        grid_name: str = "l2",
        converged: ArrayLike | None = None,
    ) -> None:
        self.coefficients = _arrays(coefficients, "coefficients")
        self.grid: list[Any] = list(grid)
        for name, values in self.coefficients.items():
            if values.shape != (len(self.grid),):
                raise ValueError(
                    f"{name} must have one value for each of the {len(self.grid)} points, "
                    f"got shape {values.shape}"
                )
        self.grid_name = grid_name
        self.converged = _flags(converged, len(self.grid))

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
            chosen &= [other == parse_risk(risk) for other in path.risks]
        if l2 is not None:
            chosen &= np.isclose(path.l2, l2, rtol=1e-9, atol=0.0)
        points = np.flatnonzero(chosen)
        if not points.size:
            raise ValueError("the path has no point with this risk and l2")
        risks = [path.risks[point] for point in points]
        grid: list[Any] = [_risk_name(other) for other in risks]
        grid_name, count, strengths = "risk", len(set(grid)), len(set(path.l2[points]))
        if count > 1 and strengths > 1:
            raise ValueError(
                f"the path has {count} risks and {strengths} l2; choose one with risk=... or l2=..."
            )
        if count == 1:
            grid, grid_name = path.l2[points].tolist(), "l2"
        elif all(type(other) is CVaR for other in risks):
            grid, grid_name = [other.get_params()["alpha"] for other in risks], "CVaR level"
        coefs, labels = path.coefs[points], list(path.feature_names)
        if coefs.ndim == 3:
            classes = np.asarray(path.classes).tolist()
            labels = [f"{label}: {name}" for label in classes for name in labels]
        table = dict(zip(labels, coefs.reshape(len(points), -1).T, strict=True))
        return cls(table, grid, grid_name=grid_name, converged=path.converged[points]).plot(ax)

    def _draw(self, ax: Axes) -> None:
        numeric = all(isinstance(point, numbers.Real) for point in self.grid)
        x = np.asarray(self.grid, dtype=np.float64) if numeric else np.arange(len(self.grid))
        order = np.argsort(x, kind="stable")
        sizes = {name: float(np.abs(values).max()) for name, values in self.coefficients.items()}
        named = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED_COEFFICIENTS]
        grey: dict[str, Any] = {"color": "0.8", "linewidth": 0.8}
        position = 0
        for name, values in self.coefficients.items():
            if name in named:
                self._add(x[order], values[order], position, name, markersize=5)
                position += 1
            else:
                self.lines_.extend(ax.plot(x[order], values[order], zorder=1, **grey))
        if len(sizes) > len(named):
            ax.plot([], [], label=f"{len(sizes) - len(named)} others", **grey)
        missed = x[~self.converged]
        self._missed(
            missed, np.zeros_like(missed), transform=ax.get_xaxis_transform(), clip_on=False
        )
        ax.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
        if not numeric:
            ax.set_xticks(x, labels=self.grid, rotation=30, ha="right")
        elif min(self.grid) > 0.0:
            ax.set_xscale("log")
        more = " (share of worst losses that counts)" if self.grid_name == "CVaR level" else ""
        ax.set(xlabel=self.grid_name + more, ylabel="coefficient")
        # In the order in which the lines leave the picture on the right.
        last = {line.get_label(): float(line.get_ydata()[-1]) for line in self.lines_}
        self._legend(lambda name: -last.get(name, -np.inf))


class FrontierDisplay(_Display):
    """The efficient frontier: mean return against risk, with the assets on their own.

    Assets have names where there are few of them.

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
        self.assets, self.risk_name = dict(assets or {}), risk_name
        self.converged = _flags(converged, len(self.risk))

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

    def _draw(self, ax: Axes) -> None:
        self._add(self.risk, self.expected_return, 0, "efficient frontier", markersize=4, zorder=3)
        (self.line_,) = self.lines_
        if self.assets:
            places = np.array(list(self.assets.values())).T
            ax.plot(*places, "s", color="0.55", label="single assets", zorder=2, markersize=4)
        for name, place in self.assets.items() if len(self.assets) <= _NAMED_COEFFICIENTS else ():
            self._note(name, place, "data", (5, 3))
        missed = ~self.converged
        self._missed(self.risk[missed], self.expected_return[missed], markersize=8, zorder=4)
        ax.set(xlabel=f"{self.risk_name} of the losses", ylabel="mean return")
        ax.legend(frameon=False)


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
    options: dict[str, Any] = {"loss": loss, "level": level, "ax": ax, "kind": kind}
    return LossTailDisplay.from_estimators(models, X, y, **options).ax_


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
    named = _named(runs, _run_name)
    return ConvergenceDisplay._from_runs(named, tol, against, optimum).plot(ax).ax_


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


_LOG_LOSS = "loss (minus the log of the true label's probability)"
_TITLES = {
    "squared": "loss (half the squared error)",
    "absolute": "loss (absolute error)",
    **dict.fromkeys(("logistic", "log_loss", "multinomial"), _LOG_LOSS),
}


def _arrays(columns: Mapping[str, ArrayLike], what: str) -> dict[str, FloatArray]:
    if not columns:
        raise ValueError(f"there are no {what} to draw; give at least one")
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def _flags(converged: ArrayLike | None, m: int) -> NDArray[np.bool_]:
    return np.ones(m, dtype=bool) if converged is None else np.asarray(converged, dtype=bool)


def _history(run: Any, against: str, values: str) -> Curve:
    last = _last_step(run)
    history = getattr(last, "history_", getattr(last, "history", None))
    if history is None:
        raise TypeError(
            f"{type(run).__name__} has no history to draw; give a result of sorel.solve or a "
            "fitted estimator of sorel"
        )
    if not hasattr(history, "keys"):
        history = {name: [getattr(r, name) for r in history] for name in (against, values)}
    work, gaps = (np.asarray(history[name], dtype=np.float64) for name in (against, values))
    return work, gaps


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
    return spelled(risk)


def _named(items: Any, name: Callable[[Any], str]) -> dict[str, Any]:
    """A mapping as it is; else one item or several, with names, numbered where they repeat."""
    if isinstance(items, Mapping):
        return {str(key): value for key, value in items.items()}
    # Some models are sequences, of models.
    single = isinstance(items, str) or hasattr(items, "predict") or not isinstance(items, Iterable)
    values = [items] if single else list(items)
    names = [name(value) for value in values]
    result = {}
    for position, (text, value) in enumerate(zip(names, values, strict=True)):
        number = f" ({names[: position + 1].count(text)})" if names.count(text) > 1 else ""
        result[text + number] = value
    return result
