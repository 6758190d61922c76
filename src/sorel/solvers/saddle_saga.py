"""SAGA for the saddle point min_w max_q, after Palaniappan and Bach (2016).

Per step, with samples i and j drawn uniformly and tables c_i of q_i grad_i and l_j of losses,

    w <- prox( w - alpha [ n lam_i grad_i(w) - c_i + cbar ] ),
    q <- Proj( q + beta [ ltab + n (l_j(w) - ltab_j) e_j ] ),

both at the old (w, q); then c_i and ltab_j are renewed. With nu > 0 the term -(nu/2) |q - 1|^2
joins the objective and enters the second line as its proximal map.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sorel.engines.base import FloatArray
from sorel.problem.problem import Problem
from sorel.solvers.base import Iterates, Run
from sorel.solvers.common import SAFE_CURVATURE, Watch, check_positive, step_for
from sorel.solvers.prospect import RankTables


class SaddleSAGA(RankTables):
    """Variance-reduced gradient descent in w and ascent in the weights.

    Each step moves all n weights by a projection, at O(n) with the order of the last step repaired:
    that is the price of the method. A step takes one gradient and one loss of two samples, counted
    as 2/n passes; the evaluation behind each check is not counted, for the method does not need it.

    Parameters
    ----------
    step_size : float, optional
        Primal step alpha; None takes 1 / (3 n sigma_n max_i L_i).
    dual_step : float, optional
        Dual step beta, in densities q = n lam; None takes 1 / (3 n alpha G^2), with G^2 a bound on
        the squared norm of the losses' Jacobian at the start: the noise of a dual step is n times
        that of a full one.
    nu : float, default=0.0
        Strength of the smoothing.
    batch_size : int, default=1
        Samples per step, drawn with replacement; a check follows n // batch_size steps.

    Examples
    --------
    >>> import sorel
    >>> problem = sorel.Problem([[1.0], [2.0], [3.0]], [1.0, 2.0, 5.0], risk=sorel.ESRM(1.0))
    >>> sorel.solve(problem, sorel.solvers.SaddleSAGA(), tol=1e-3).converged
    True
    """

    name: ClassVar[str] = "saddle_saga"
    operations: ClassVar[tuple[str, ...]] = (
        "table",
        "saddle_epoch",
        "smoothness",
        "jacobian_bound",
    )

    def __init__(
        self,
        step_size: float | None = None,
        dual_step: float | None = None,
        nu: float = 0.0,
        batch_size: int = 1,
    ) -> None:
        super().__init__(step_size, nu, batch_size)
        self.dual_step = check_positive("dual_step", dual_step)

    def iterates(self, problem: Problem, run: Run) -> Iterates:
        engine, watch = problem.engine, Watch(problem, run)
        steps, point = engine.stochastic(), watch.start()
        run.passes += 1
        step, dual_step = self.safe_step(problem), self.dual_step
        if dual_step is None:
            norm = steps.jacobian_bound(engine.expected(point, engine.uniform()))
            dual_step = step_for(SAFE_CURVATURE * problem.n_samples * step * norm)
        plan = self.plan(problem, step, self.batch_size)

        def epoch(table: Any, w: FloatArray) -> FloatArray:
            return steps.saddle_epoch(table, w, plan, dual_step, self.nu, run.rng)

        remedy = f"lower step_size={step:.3g} or dual_step={dual_step:.3g}"
        yield from self.epochs(watch, point, watch.start_dual(point), plan, epoch, remedy)
