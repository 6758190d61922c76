"""The problem: data, risk, loss and penalty, and the objective that they make.

min_w F(w) = sum_i sigma_i l_[i](w) + g(w) = min_w max_{lam in P(sigma)} lam . l(w) + g(w)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sorel._lib.copies import shallow_copy
from sorel._lib.devices import to_numpy
from sorel.certificate import MANY_PRODUCTS, Certificate, certify, constant_loss, gap_wanted, unit
from sorel.certificate.rounding import ROUNDINGS
from sorel.engines.base import Engine, FloatArray, Point, Spec
from sorel.files.fingerprints import describe, fingerprint_array
from sorel.problem.losses import Loss, Squared, SquaredHinge, parse_loss
from sorel.problem.penalties import AGREEMENT, L2, Penalty, check_penalty, sample_values
from sorel.problem.risks import CVaR, Max, Risk, parse_risk
from sorel.problem.validation import check_affine, check_data, check_margin_offset, counting

# Losses whose spread is a smaller share of their mean tie, as those of labels do at w = 0.
_TIED = 1e-3


class Problem:
    """A spectral risk minimization problem over linear models.

    Parameters
    ----------
    X : array of shape (n, d)
        Dense (C or Fortran order) or any scipy sparse matrix or array; float64 and float32 are used
        in place, sparse ones where they are CSR without repeated entries. Or rows on disk: a
        memory-mapped array; the path of a .npy file, of a folder of .npy blocks, of a Parquet file
        or a folder of them; a ``pyarrow.dataset.Dataset``; or a :class:`sorel.rows.RowSource`.
        Beyond 256 MB they are read anew at every pass. Or a torch tensor on any device, dense or
        CSR, or an array of another library on a device: the computation then takes place there.
    y : array of length n
        Numbers for regression, labels for classification. Or the path of a .npy file or a folder of
        them, or the name of a column of Parquet data, which is then no feature.
    risk : Risk or str, default=CVaR(0.5)
        The weights of the sorted losses, e.g. ``CVaR(0.1)`` or ``"cvar:0.1"``.
    loss : str or Loss, default="squared"
        "squared", "huber", "logistic", "squared_hinge", "multinomial", "poisson" or "gamma", or a
        loss of your own: see :class:`sorel.losses.Loss`.
    penalty : Penalty, optional
        Strongly convex, or of bounded domain; ``L2(1 / n)`` when not given.
    fit_intercept : bool, default=False
        Add an unpenalised intercept, the last entry of every parameter vector. The problem is taken
        as written; ``sorel.path`` and the estimators, which take data, fit one unless told not to.
    sample_weight : array of length n, optional
        Nonnegative; a weight of 2 is the row twice.
    offset : array of length n, optional
        Added to the margins: for "poisson" and "gamma", the logarithms of exposures. X must be in
        memory or on disk.
    n_jobs : int, optional
        Threads for passes over large data; -1 for all cores. None follows the settings of
        of the linear algebra library, threadpoolctl's limits included.
    engine : callable, optional
        Makes the home of the data from X and a :class:`sorel.engines.Spec`, such as a class derived
        from :class:`sorel.engines.Engine`; X is then handed over as it is. None picks one of the
        package's own by the kind of X.

    Notes
    -----
    Several threads may use one problem at the same time: every run has its own working memory.

    Examples
    --------
    >>> import numpy as np, sorel
    >>> X = np.array([[1.0], [2.0], [3.0]])
    >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.Max(), penalty=sorel.L2(0.1))
    >>> problem.losses([1.0])
    array([0., 0., 2.])
    >>> problem.objective([1.0])
    2.05
    """

    # How the engine was made and from what, where that is known: another risk needs another one.
    _made_by: tuple[Callable[[Any, Spec], Engine], Any] | None = None
    # The encoded targets before an offset was taken off.
    _given_targets: Any = None

    def __init__(
        self,
        X: Any,
        y: Any,
        *,
        risk: Risk | str | None = None,
        loss: str | Loss = "squared",
        penalty: Penalty | None = None,
        fit_intercept: bool = False,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        n_jobs: int | None = None,
        engine: Callable[[Any, Spec], Engine] | None = None,
    ) -> None:
        risk = CVaR(0.5) if risk is None else parse_risk(risk)
        stored = getattr(X, "dtype", None)
        data = check_data(
            X, y, risk, parse_loss(loss), fit_intercept, sample_weight, offset, n_jobs, engine
        )
        self._set_up(data.make(data.X, data.spec), penalty)
        self._made_by, self._given_targets = (data.make, data.X), data.targets
        self.given_weight = data.weight
        if isinstance(stored, np.dtype) and stored == np.float16:
            # Computed with as float64, and no better for it.
            self.data_type = stored

    @classmethod
    def from_engine(cls, engine: Engine, penalty: Penalty | None = None) -> Problem:
        """The problem of an engine that has its data already.

        Parameters
        ----------
        engine : Engine
            Where the data live; its spec has the targets, the loss, the risk and the weights.
        penalty : Penalty, optional
            ``L2(1 / n)`` when not given.

        Examples
        --------
        >>> import numpy as np, sorel
        >>> from sorel.engines import DenseEngine, Spec
        >>> spec = Spec(np.array([1.0, 2.0, 5.0]), sorel.losses.Squared(), sorel.Max())
        >>> engine = DenseEngine(np.array([[1.0], [2.0], [3.0]]), spec)
        >>> sorel.Problem.from_engine(engine, sorel.L2(0.1)).objective([1.0])
        2.05
        """
        problem = cls.__new__(cls)
        problem._set_up(engine, penalty)
        return problem

    def _set_up(self, engine: Engine, penalty: Penalty | None) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(f"engine must make a sorel.engines.Engine, got {engine!r}")
        if penalty is None:
            penalty = L2(1.0 / engine.n_samples)
        elif not isinstance(penalty, Penalty):
            raise TypeError(
                "penalty must be one of sorel's penalties, such as L2(0.1), or of a subclass of "
                f"sorel.problem.penalties.Penalty, got {penalty!r}"
            )
        self.penalty = penalty
        self._take(engine)
        check_penalty(penalty, (engine.n_features, *engine.shape[1:]))
        # Type of the numbers as they were stored; arithmetic is in float64 whatever it is.
        self.data_type = engine.data_type
        # The user's sample weights, of which the maximum counts only whether there is one.
        self.given_weight = engine.spec.sample_weight
        # Mean size of the losses at zero margins, a measure of them, or beside if they vanish.
        at_zero = engine.sizes(engine.point(np.zeros(engine.shape)))
        self.zero_loss = at_zero.absolute or self._loss_beside_zero()
        if not np.isfinite(self.zero_loss):
            raise ValueError(
                f"the {self.loss.name} loss is not finite where all margins are 0; scale y"
            )

    def _take(self, engine: Engine) -> None:
        """Take an engine, and what its spec tells of the problem."""
        check_affine(engine)
        check_margin_offset(engine)
        self.engine, spec = engine, engine.spec
        # Rows and columns of X.
        self.n_samples, self.n_features = engine.n_samples, engine.n_features
        self.risk, self.loss, self.classes = spec.risk, spec.loss, spec.classes
        self.fit_intercept, self.sample_weight = spec.fit_intercept, spec.sample_weight
        levels = spec.risk.levels(engine.n_samples, spec.sample_weight)
        # Whether the dual set is one weighting: others change with the order of the losses.
        self.has_fixed_weights = levels is not None and levels[0] == levels[1]
        # Whether all but the samples at an edge have one of two weights, as under CVaR.
        self.has_two_levels = levels is not None and levels[0] < levels[1]
        # Whether the losses have the same curvature wherever they are.
        self.bends_evenly = type(spec.loss) is Squared
        # Whether risk and losses make a quadratic function: one Newton step then solves it.
        self.is_quadratic = self.bends_evenly and self.has_fixed_weights

    def _loss_beside_zero(self) -> float:
        """Mean size of the losses where margins do not vanish."""
        if self.loss.curvature_bound == np.inf:
            return 1.0  # exponentials may be of any size; those of margins of 1 are not
        # Unequal coefficients: margins of equal ones may cancel.
        shape, size = self.engine.shape, self.engine.size
        w = np.linspace(0.0, 1.0, size).reshape(shape) ** 2 / size
        w[: self.n_features] = self.penalty.project(w[: self.n_features])
        return self.engine.sizes(self.engine.point(w)).absolute or float(np.finfo(np.float64).tiny)

    def losses(self, w: ArrayLike) -> FloatArray:
        """Loss of each sample at `w`."""
        engine = self.engine.for_run()
        return engine.losses(engine.point(self.check_parameters(w)))

    def objective(self, w: ArrayLike) -> float:
        """F(w): the spectral risk of the losses plus the penalty."""
        engine = self.engine.for_run()
        point = engine.point(self.check_parameters(w))
        return engine.risk(point) + self.penalty_value(point.w)

    def certificate(self, w: ArrayLike, lam: ArrayLike) -> Certificate:
        """Bounds on the optimum from a parameter vector and a weighting of the samples.

        Parameters
        ----------
        w : array
            Parameters, intercept last.
        lam : array of length n
            A weighting in the dual set of the risk, e.g. ``result.weights``. One that is off by
            rounding is projected; one that is far away is refused.
        """
        run = self.for_run()
        point = run.engine.point(self.check_parameters(w))
        weights = np.asarray(lam, dtype=np.float64)
        if weights.shape != (self.n_samples,):
            raise ValueError(
                f"lam must have one weight per sample, shape ({self.n_samples},), "
                f"got {weights.shape}"
            )
        if not np.all(np.isfinite(weights)):
            raise ValueError("lam has weights that are not finite")
        dual, distance = run.engine.nearest_dual(weights)
        if distance > AGREEMENT:
            raise ValueError(
                f"lam is not a weighting that {self.risk!r} admits: it is {distance:.2g} away "
                "from the nearest one; use sorel.project_permutahedron(lam, risk) first"
            )
        # Newton steps that tighten the bound may go too far, and are then not used.
        with run.engine.working(), np.errstate(over="ignore", invalid="ignore"):
            return certify(run, point, dual, refine=np.inf, max_products=MANY_PRODUCTS)

    def fingerprint(self) -> dict[str, str]:
        """What the problem is made of, as texts that agree for equal problems.

        Returns
        -------
        dict
            Hashes of the data, the targets and the sample weights; risk, loss and penalty in words.

        Notes
        -----
        X is hashed whole. A source of data with a method ``fingerprint`` speaks for itself.

        Examples
        --------
        >>> import numpy as np, sorel
        >>> X = np.array([[1.0], [2.0], [3.0]])
        >>> problem = sorel.Problem(X, [1.0, 2.0, 5.0], risk=sorel.CVaR(0.1))
        >>> parts = problem.fingerprint()
        >>> parts["shape"], parts["risk"]
        ('3 x 1', 'CVaR(alpha=0.1)')
        """
        parts = self.engine.fingerprint()
        if self._given_targets is not None:
            parts["targets"] = fingerprint_array(to_numpy(self._given_targets))
        if self.engine.spec.margin_offset is not None:
            parts["targets"] += f" offset {fingerprint_array(self.engine.spec.margin_offset)}"
        penalty = describe(self.penalty)
        if not self.penalty.compiled:
            # What a class of the user computes is not to be read from its settings.
            values = sample_values(self.penalty, (self.n_features, *self.engine.shape[1:]))
            penalty += f" with values {', '.join(f'{value:.6e}' for value in values)}"
        return {
            "shape": f"{self.n_samples} x {self.n_features}",
            **parts,
            "risk": describe(self.risk),
            "loss": describe(self.loss),
            "penalty": penalty,
            "intercept": "fitted" if self.fit_intercept else "none",
        }

    # What the solvers use.

    def for_run(self) -> Problem:
        """The same problem with working memory of its own, for one run in one thread."""
        other = shallow_copy(self)
        other.engine = self.engine.for_run()
        return other

    def with_penalty(self, penalty: Penalty) -> Problem:
        """The same data, risk and loss under another penalty; nothing is copied."""
        other = shallow_copy(self)
        other.penalty = penalty
        return other

    def with_engine(self, engine: Engine) -> Problem:
        """The same penalty on another engine of the same loss: of other rows, or another risk.

        Gaps are measured as here.
        """
        other = shallow_copy(self)
        other._take(engine)
        if (engine.n_samples, engine.n_features) != (self.n_samples, self.n_features):
            other._made_by = None
        return other

    def with_risk(self, risk: Risk | str) -> Problem:
        """The same data, loss and penalty under another risk; X is not copied.

        Examples
        --------
        >>> import numpy as np, sorel
        >>> problem = sorel.Problem(np.eye(3), [1.0, 2.0, 5.0], risk=sorel.Max())
        >>> problem.with_risk("mean").objective(np.zeros(3))
        5.0
        """
        if self._made_by is None:
            raise TypeError(
                "a problem made from an engine has the risk of its engine; make one from X and y"
            )
        risk = parse_risk(risk)
        weight = counting(self.given_weight, risk)
        engine = self.engine.with_risk(risk) if weight is self.sample_weight else None
        if engine is None:
            make, X = self._made_by
            engine = make(X, replace(self.engine.spec, risk=risk, sample_weight=weight))
        return self.with_engine(engine)

    def phase_one(self) -> Problem | None:
        """A problem that takes all margins to the side where this loss does not overflow.

        None where the data cannot be had again.
        """
        if self._made_by is None:
            return None
        (make, X), spec, loss = self._made_by, self.engine.spec, SquaredHinge()
        beyond = float(np.finfo(np.float64).maxexp)  # a margin whose exponential overflows
        with np.errstate(over="ignore", invalid="ignore"):
            far = self.loss.value(to_numpy(spec.targets), np.full(self.n_samples, beyond))
        side = np.full(self.n_samples, 1.0 if np.isfinite(far).all() else -1.0)
        engine = make(X, replace(spec, targets=side, loss=loss, risk=Max()))
        return Problem.from_engine(engine, self.penalty)

    @cached_property
    def largest_loss(self) -> float:
        """Mean loss at zero margins of the targets as they were given, or at the start if larger.

        Rounding of margins and of the intercept is a share of those.
        """
        largest = self.zero_loss
        if self.loss.curvature_bound < np.inf:  # exponentials may be of any size
            start = self.engine.point(self.start())
            largest = max(largest, self.engine.sizes(start).absolute)
        if self._given_targets is not None:
            y = to_numpy(self._given_targets)
            largest = max(largest, float(np.mean(np.abs(self.loss.value(y, np.zeros(len(y)))))))
        return largest

    def gap_wanted(self, tol: float, objective: float, point: Point) -> float:
        """The gap at which a point is a solution, for a relative gap of `tol`."""
        return gap_wanted(self, tol, unit(self, objective, point))

    @cached_property
    def constant_loss(self) -> float:
        """Mean loss of the best constant model; see :func:`sorel.certificate.constant_loss`."""
        return constant_loss(self)

    def loss_scale(self, point: Point) -> float:
        """Spread of the losses at a point, the inverse of the unit of a dual step eta.

        Losses that all but tie leave their size to go by, or their spread or size beside the point.
        """
        engine = self.engine
        _, size, spread = engine.sizes(point)
        if not self.loss.affine and not spread > _TIED * size:
            spread = size
        if spread == 0.0:
            _, size, beside = engine.sizes(engine.point(np.full(engine.shape, 1.0 / engine.size)))
            spread = beside if beside > ROUNDINGS * size else size
        return spread or 1.0

    def penalty_value(self, w: FloatArray) -> float:
        """g of the penalised part of w."""
        return self.penalty.value(self.coefficients(w))

    def coefficients(self, w: FloatArray) -> FloatArray:
        """The penalised part of a parameter array: everything but the intercept."""
        return w[: self.n_features] if self.fit_intercept else w

    def for_user(self, w: FloatArray) -> FloatArray:
        """A copy of w for the user's targets, of which the engine has taken an offset off.

        Intercepts of several classes, which count only by differences, sum to 0.
        """
        w = np.array(w)
        if self.fit_intercept:
            w[-1] += self.engine.spec.offset if w.ndim == 1 else -w[-1].mean()
        return w

    def from_user(self, w: FloatArray) -> FloatArray:
        """A copy of the user's parameters for the targets of the engine."""
        w = np.array(w)
        if self.engine.spec.offset:
            w[-1] -= self.engine.spec.offset
        return w

    def modulus(self) -> FloatArray:
        """Curvature of a quadratic penalty in each parameter, shaped like w: none in intercepts."""
        out = np.zeros(self.engine.shape)
        out[: self.n_features] = self.penalty.l2
        return out

    def start(self) -> FloatArray:
        """A feasible parameter array to start from: 0 where the penalty allows it."""
        w = np.zeros(self.engine.shape)
        w[: self.n_features] = self.penalty.project(w[: self.n_features])
        return w

    def check_parameters(self, w: ArrayLike) -> FloatArray:
        """`w` as an array of the right shape, or an error that says what is wrong."""
        array = np.asarray(w, dtype=np.float64)
        shape = self.engine.shape
        if array.shape != shape:
            if array.ndim > 1 or array.size != np.prod(shape):
                extra = ", intercept last" if self.fit_intercept else ""
                raise ValueError(f"w must have shape {shape}{extra}, got {array.shape}")
            array = array.reshape(shape)
        if not np.all(np.isfinite(array)):
            raise ValueError("w has values that are not finite")
        return self.from_user(array)
