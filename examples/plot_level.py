"""
Choosing the level
==================

A smaller level serves a worse tail, costs more on average, and beyond some point fits noise.
``SpectralRiskRegressorCV`` chooses by cross-validation: the best tail among the models whose mean
loss is within ``mean_slack`` of the plain fit's. What does it choose, and what does that cost on
rows that it has not seen?
"""

# %%
# Five tables, ten splits
# -----------------------
# The regression sets of the paper, which travel with sorel (``sorel.datasets``; from UCI and
# OpenML). The search sees the training rows only.

# sphinx_gallery_thumbnail_path = "_static/thumbs/level.png"
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from sorel import CVaR, SpectralRiskRegressor, SpectralRiskRegressorCV
from sorel.datasets import PAPER_DATASETS, load_paper_dataset
from sorel.metrics import sample_losses
from sorel.plots import style

LEVELS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)
SLACK = 0.1


def held_out(model, X, y):
    losses = sample_losses(y, model.predict(X))
    return losses.mean(), CVaR(0.1)(losses)


curves, chosen, margins, picks = {}, {}, {}, {}
for name in PAPER_DATASETS:
    X, y = load_paper_dataset(name)[:2]
    every, picked, moved, levels = [], [], [], []
    for split in range(10):
        X_train, X_test, y_train, y_test = train_test_split(
            X, y, test_size=0.4, train_size=min(2000, round(0.6 * len(y))), random_state=split
        )
        fits = [SpectralRiskRegressor(CVaR(level)).fit(X_train, y_train) for level in LEVELS]
        points = np.array([held_out(model, X_test, y_test) for model in fits])
        every.append(points / points[0])
        search = SpectralRiskRegressorCV(
            [CVaR(level) for level in LEVELS], l2s=["auto"], mean_slack=SLACK
        ).fit(X_train, y_train)
        picked.append(np.array(held_out(search, X_test, y_test)) / points[0])
        margin = (search.predict(X_train) - y_train).mean()
        losses = sample_losses(y_test, fits[0].predict(X_test) + margin)
        moved.append(CVaR(0.1)(losses) / points[0, 1])
        levels.append(search.best_risk_.alpha)
    curves[name], chosen[name] = np.mean(every, axis=0), np.mean(picked, axis=0)
    margins[name] = np.mean(moved)
    picks[name] = {level: levels.count(level) for level in LEVELS if level in levels}
    print(f"{name}: levels chosen {picks[name]}")

# %%
# The picture
# -----------
# Each line runs from the plain fit, at the top left corner of the axes, through the levels 0.7,
# 0.5, 0.3 and 0.2 to CVaR(0.1); that of *energy* leaves the frame. Stars: what cross-validation
# chose, which is not the same level on every split. All points are means over the splits.

fig, ax = plt.subplots(figsize=(7.4, 4.6), layout="constrained")
for position, name in enumerate(PAPER_DATASETS):
    x, y = 100 * (curves[name].T - 1)
    look = style(position)
    ax.plot(x, y, marker="o", markersize=4, label=name, linewidth=1.6, **look)
    star = 100 * (chosen[name] - 1)
    ax.plot(*star, marker="*", markersize=15, color=look["color"], markeredgecolor="k")
ax.axvline(100 * SLACK, color="0.7", linewidth=0.8, zorder=0)
ax.annotate("mean_slack", (100 * SLACK + 0.2, -20), color="0.4", fontsize="small")
ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
ax.set_xlabel("mean held-out loss, compared with the plain fit (%)")
ax.set_ylabel("worst tenth, compared with the plain fit (%)")
ax.set(xlim=(-1.5, 20), ylim=(-37, 2))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="center right")
plt.show()

# %%
# The verdict
# -----------
# It depends on the table, which is why the level should be chosen and not guessed. On *yacht* a
# quarter of the tail is gained, and the limit on the mean holds on unseen rows. Little of that is
# a mere shift of all predictions, as the plain fit with a margin shows; on *kin8nm* the larger
# part is. On *energy* and *concrete* the search pays a few percent of the mean for a percent or
# two of the tail, which few would call a bargain: it maximises the tail within the limit, and
# does not weigh the one against the other. ``mean_slack`` is the decision that remains yours.

result = {
    name: {
        "mean": chosen[name][0],
        "tail": chosen[name][1],
        "tail of the plain fit plus a margin": margins[name],
        "mean at 0.1": curves[name][-1, 0],
        "tail at 0.1": curves[name][-1, 1],
    }
    for name in PAPER_DATASETS
}
print(pd.DataFrame(result).round(3).to_string())
