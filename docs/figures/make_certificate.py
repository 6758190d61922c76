"""Draw figures/certificate.png: the objective and the bound of a run, and their distance."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sorel

rng = np.random.default_rng(0)
X = rng.standard_normal((1000, 5))
y = X @ np.ones(5) + rng.standard_t(3, size=1000)
problem = sorel.Problem(X, y, risk="cvar:0.1")
optimum = sorel.solve(problem, tol=1e-12).objective
records = sorel.solve(problem, "sorel", tol=1e-9, random_state=0).history[1:]

passes = [record.passes for record in records]
upper = np.minimum.accumulate([record.objective for record in records])
lower = np.maximum.accumulate([record.dual for record in records])
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.fill_between(passes, lower, upper, color="0.88", step="post", label="the optimum is in here")
left.step(passes, upper, where="post", color="C3", label="objective of the best model")
left.step(passes, lower, where="post", color="C0", label="best bound from below")
few = np.searchsorted(passes, 30)
left.set(xlim=(passes[0], passes[few]), xlabel="passes", ylabel="CVaR(0.1) of the losses + penalty")
left.set_ylim(max(0.0, float(lower[min(1, few)])), float(upper[0]) * 1.02)
left.legend(frameon=False, loc="best")
right.step(passes, upper - lower, where="post", color="black", label="certified gap")
tiny = 1e-14 * optimum
right.step(
    passes,
    np.maximum(upper - optimum, tiny),
    where="post",
    color="C3",
    linestyle="--",
    label="true distance to the optimum",
)
right.set(yscale="log", xlabel="passes", ylim=(1e-9, None))
right.legend(frameon=False)
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("certificate.png"), dpi=150)
