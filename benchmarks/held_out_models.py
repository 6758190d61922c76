"""The models of ``benchmarks.held_out`` on one random split of one real set.

Linear models are fitted to several risks, and each risk chooses its l2 by cross-validation on that
same risk. Beside them stand cheaper ways to the same goal (the plain fit plus a constant, the plain
fit recalibrated), a gradient-boosted model, and linear models on the booster's out-of-fold
predictions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict, train_test_split
from sklearn.preprocessing import StandardScaler

import sorel
from benchmarks.real_sets import Kind, load
from sorel import ESRM, CVaR, Mean, Mixture
from sorel.losses import Logistic, Multinomial, Squared
from sorel.risks import Risk

TEST_SHARE = 0.3
FOLDS = 5
TOL = 1e-4
# The largest first: a path starts from the easiest problem.
L2S: list[float | str] = [1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, "auto"]
DEFAULT_L2 = L2S.index("auto")
# A model whose held-out margins spread less than this share of the plain fit's is called constant.
CONSTANT_SPREAD = 0.01


def mixed(share: float, level: float) -> Risk:
    """The mean, and this share of CVaR(level)."""
    return Mixture([Mean(), CVaR(level)], [1.0 - share, share])


PLAIN = "plain"
TAIL = "CVaR(0.1)"
FAR_TAIL = "CVaR(0.05)"
BOOSTER = "booster"
LOGISTIC = "LogisticRegression, C = 1"
LOGISTIC_TUNED = "LogisticRegression, C tuned"
BOOSTER_SHIFTED = "booster + constant"
RISKS: dict[str, Risk] = {
    PLAIN: Mean(),
    "ESRM(0.5)": ESRM(0.5),
    "ESRM(1)": ESRM(1.0),
    "ESRM(2)": ESRM(2.0),
    "CVaR(0.5)": CVaR(0.5),
    "10% CVaR(0.1)": mixed(0.1, 0.1),
    "30% CVaR(0.1)": mixed(0.3, 0.1),
    "30% CVaR(0.05)": mixed(0.3, 0.05),
    "CVaR(0.1)": CVaR(0.1),
    "CVaR(0.05)": CVaR(0.05),
}
# Fitted with fit_intercept="mean", too, where the loss is squared.
CENTRED = ("ESRM(2)", "CVaR(0.5)", "30% CVaR(0.1)", "CVaR(0.1)")
ON_BOOSTER = (PLAIN, "30% CVaR(0.1)", TAIL)


# What is known of a model on the held-out rows of a split: every risk of its losses (half the
# squared error in variances of the target, or the log loss); mean prediction minus mean target, in
# standard deviations of the target, or mean probability minus rate for two classes; the share of
# wrong labels; whether the model is constant.
COLUMNS = (*RISKS, "bias", "error", "constant")
# A table of splits x COLUMNS for every model of a set.
Results = dict[str, dict[str, np.ndarray]]


# Margins: one column for numbers and for two classes, else one for each class.


class Task(NamedTuple):
    """The loss of a set, and how its labels are written."""

    loss: Any
    fit_loss: str

    @classmethod
    def of(cls, kind: Kind, y: np.ndarray) -> Task:
        if kind == "regression":
            return cls(Squared(), "squared")
        return cls(Logistic() if y.max() == 1 else Multinomial(), "logistic")

    def losses(self, y: np.ndarray, margins: np.ndarray) -> np.ndarray:
        target = 2.0 * y - 1.0 if isinstance(self.loss, Logistic) else y
        return self.loss.value(target, margins)

    def scores(self, y: np.ndarray, margins: np.ndarray, plain: np.ndarray) -> list[float]:
        """The numbers of COLUMNS."""
        losses = self.losses(y, margins)
        bias = error = np.nan
        if isinstance(self.loss, Squared):
            bias = np.mean(margins) - np.mean(y)
        elif isinstance(self.loss, Logistic):
            bias, error = np.mean(expit(margins)) - np.mean(y), np.mean((margins > 0.0) != y)
        else:
            error = np.mean(np.argmax(margins, axis=1) != y)
        constant = np.std(margins, axis=0).max() < CONSTANT_SPREAD * np.std(plain, axis=0).max()
        return [*(float(risk(losses)) for risk in RISKS.values()), bias, error, float(constant)]


@dataclass(frozen=True)
class Fit:
    """A model with its l2 chosen: margins of training rows, out of fold, and of new rows."""

    out_of_fold: np.ndarray
    new: np.ndarray
    new_at_default_l2: np.ndarray
    l2: float


def margins_along_path(
    task: Task,
    X: np.ndarray,
    y: np.ndarray,
    X_new: np.ndarray,
    risks: Sequence[Risk],
    centred: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Margins of new rows for every risk and l2, and the l2 as numbers.

    Columns are standardised by X. With `centred`, residuals have mean 0, as with
    ``fit_intercept="mean"``: on centred data that is a fit without an intercept.
    """
    scaler = StandardScaler().fit(X)
    offset = np.mean(y) if centred else 0.0
    found = sorel.path(
        scaler.transform(X),
        y - offset if centred else y,
        risks=risks,
        l2=L2S,
        loss=task.fit_loss,
        fit_intercept=not centred,
        tol=TOL,
    )
    Z = scaler.transform(X_new)
    if found.coefs.ndim == 2:
        margins = found.coefs @ Z.T + found.intercepts[:, None] + offset
    else:
        margins = Z @ np.swapaxes(found.coefs, 1, 2) + found.intercepts[:, None, :]
    shape = (len(risks), len(L2S))
    return margins.reshape(*shape, *margins.shape[1:]), found.l2.reshape(shape)[0]


def fit_linear(
    task: Task,
    X: np.ndarray,
    y: np.ndarray,
    X_new: np.ndarray,
    folds: list[tuple[np.ndarray, np.ndarray]],
    risks: Sequence[Risk],
    centred: bool = False,
) -> list[Fit]:
    """One model for each risk, whose l2 has the least risk of the losses out of fold."""
    new, l2s = margins_along_path(task, X, y, X_new, risks, centred)
    out_of_fold = np.empty((*new.shape[:2], len(y), *new.shape[3:]))
    for train, test in folds:
        found = margins_along_path(task, X[train], y[train], X[test], risks, centred)[0]
        out_of_fold[:, :, test] = found
    fits = []
    for i, risk in enumerate(risks):
        best = int(np.argmin([risk(task.losses(y, margins)) for margins in out_of_fold[i]]))
        fits.append(Fit(out_of_fold[i, best], new[i, best], new[i, DEFAULT_L2], l2s[best]))
    return fits


def shifted(
    task: Task, risk: Risk, y: np.ndarray, known: np.ndarray, new: np.ndarray
) -> np.ndarray:
    """Margins plus the constant that gives the known rows the least risk."""
    reach = np.ptp(known) + np.ptp(y)
    best = minimize_scalar(
        lambda shift: risk(task.losses(y, known + shift)), bounds=(-reach, reach), method="bounded"
    )
    return new + best.x


def recalibrated(
    task: Task, risk: Risk, y: np.ndarray, known: np.ndarray, new: np.ndarray
) -> np.ndarray:
    """Margins z as a z + b with the least risk of the known rows; of ten classes, A z + b."""
    columns = known.reshape(len(known), -1)
    found = sorel.path(columns, y, risks=risk, l2="auto", loss=task.fit_loss, tol=TOL)
    return (new.reshape(len(new), -1) @ found.coefs[0].T + found.intercepts[0]).reshape(new.shape)


def boosted(
    kind: Kind,
    X: np.ndarray,
    y: np.ndarray,
    X_new: np.ndarray,
    folds: list[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Margins of a booster with its default settings: training rows out of fold, and new rows."""
    if kind == "regression":
        model, method = HistGradientBoostingRegressor(random_state=0), "predict"
    else:
        model, method = HistGradientBoostingClassifier(random_state=0), "decision_function"
    known = cross_val_predict(model, X, y, cv=folds, method=method)
    return known, getattr(model.fit(X, y), method)(X_new)


def compare(name: str, seed: int) -> dict[str, list[float]]:
    """COLUMNS of all models on one split of one set."""
    warnings.simplefilter("error", sorel.ConvergenceWarning)
    X, y, kind = load(name)
    task = Task.of(kind, y)
    labels = y if kind == "classification" else None
    parts = train_test_split(X, y, test_size=TEST_SHARE, random_state=seed, stratify=labels)
    X, X_new, y, y_new = parts
    if kind == "regression":
        y, y_new = (y - y.mean()) / y.std(), (y_new - y.mean()) / y.std()
        splitter: Any = KFold(FOLDS, shuffle=True, random_state=seed)
    else:
        splitter = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    folds = list(splitter.split(X, y))
    found = fit_linear(task, X, y, X_new, folds, list(RISKS.values()))
    fits = dict(zip(RISKS, found, strict=True))
    if kind == "regression":
        found = fit_linear(task, X, y, X_new, folds, [RISKS[risk] for risk in CENTRED], True)
        fits.update(zip(map(centred, CENTRED), found, strict=True))
    models = {risk: fit.new for risk, fit in fits.items()}
    models.update({at_default(risk): fit.new_at_default_l2 for risk, fit in fits.items()})
    plain = fits[PLAIN]
    known, booster = boosted(kind, X, y, X_new, folds)
    models[BOOSTER] = booster
    for risk, goal in RISKS.items():
        rows = task, goal, y, plain.out_of_fold, plain.new
        models[recalibrated_for(risk)] = recalibrated(*rows)
        if booster.ndim == 1:
            models[constant_for(risk)] = shifted(*rows)
    if booster.ndim == 1:
        models[BOOSTER_SHIFTED] = shifted(task, RISKS[TAIL], y, known, booster)
    stacked, stacked_new = np.column_stack([X, known]), np.column_stack([X_new, booster])
    found = fit_linear(task, stacked, y, stacked_new, folds, [RISKS[risk] for risk in ON_BOOSTER])
    models.update({on_booster(k): fit.new for k, fit in zip(ON_BOOSTER, found, strict=True)})
    if kind == "classification":
        scaler = StandardScaler().fit(X)
        for label, C in ((LOGISTIC, 1.0), (LOGISTIC_TUNED, 1.0 / (len(y) * plain.l2))):
            rival = LogisticRegression(C=C, max_iter=10_000).fit(scaler.transform(X), y)
            models[label] = rival.decision_function(scaler.transform(X_new))
    return {label: task.scores(y_new, margins, plain.new) for label, margins in models.items()}


def centred(risk: str) -> str:
    return f"{risk}, mean intercept"


def constant_for(risk: str) -> str:
    return f"plain + constant for {risk}"


def recalibrated_for(risk: str) -> str:
    return f"plain recalibrated for {risk}"


def at_default(risk: str) -> str:
    return f"{risk}, default l2"


def on_booster(risk: str) -> str:
    return f"{risk} on booster"


def measure(names: Sequence[str], splits: int, jobs: int) -> Results:
    """All models on all splits of these sets."""
    # The set that takes longest goes first.
    tasks = [(name, seed) for name in reversed(names) for seed in range(splits)]
    found = Parallel(n_jobs=jobs, verbose=1)(delayed(compare)(*task) for task in tasks)
    rows: dict[str, dict[str, list[list[float]]]] = {name: {} for name in names}
    for (name, _), models in zip(tasks, found, strict=True):
        for label, row in models.items():
            rows[name].setdefault(label, []).append(row)
    return {
        name: {label: np.array(table) for label, table in models.items()}
        for name, models in rows.items()
    }
