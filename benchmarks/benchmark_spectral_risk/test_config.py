"""What `benchopt test` asks beyond its own questions: each solver, each risk, by the judge."""

import numpy as np
from benchopt.utils.run_context import RunContext

# Generous budgets, and the relative suboptimality that each kind of solver must reach with them on
# a set of 60 rows. Quasi-Newton steps may end at a kink and some stochastic methods circle around
# the optimum: from those only progress is asked.
EPOCHS, TOLERANCE, CALLS = 100, 1e-8, 50
EXACT = {"sorel-auto": 1e-8, "sorel-newton": 1e-8, "sorel-stochastic": 1e-2, "cvxpy-clarabel": 1e-6}
ROUNDING = 1e-13


def check_test_solver_run(benchmark, solver):
    dataset_class = benchmark.get_test_dataset()
    objective_class = benchmark.get_benchmark_objective()
    ran = 0
    for kind in ("heavy_tailed", "imbalanced"):
        for risk in ("cvar_0.3", "esrm_2", "extremile_2.5"):
            dataset = dataset_class.get_instance(kind=kind, n=60, d=4)
            objective = objective_class.get_instance(risk=risk)
            instance = solver.get_instance()
            context = RunContext()
            context.set_run_context(objective, dataset, instance, repetition=0, base_seed=0)
            objective._set_dataset(dataset)
            skip, _ = instance._set_objective(objective)
            if skip:
                continue
            budgets = {"tolerance": TOLERANCE, "callback": CALLS, "iteration": EPOCHS}
            instance.run_once(budgets[instance._solver_strategy])
            score(objective, instance)
            ran += 1
    assert ran, f"{solver.name} takes none of the problems"


def score(objective, solver):
    start = objective(objective.get_one_result())[0]
    end = objective(solver.get_result())[0]
    for scores in (start, end):
        noise = ROUNDING * scores["objective_value"]
        assert np.isfinite(scores["objective_value"])
        assert scores["objective_suboptimality"] >= -noise, "below a certified lower bound"
        assert scores["objective_duality_gap"] >= scores["objective_suboptimality"] - noise
    reached = end["objective_suboptimality"] / end["objective_value"]
    if solver.name in EXACT:
        assert reached <= EXACT[solver.name], f"{solver} reached only {reached:.1e}"
    else:
        assert end["objective_value"] <= start["objective_value"]
    if solver.name in ("sorel-auto", "sorel-newton"):
        assert end["objective_duality_gap"] <= 2 * TOLERANCE * end["objective_value"]
