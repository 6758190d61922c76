"""Bounds in long doubles: valid, and there where double precision leaves none."""

from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import sorel
from sorel.extended import _FORMULAS, Bound, Long, _huber, _Model, can_extend, extended_bound
from sorel.losses import LOSSES, Huber

longer = pytest.mark.skipif(
    np.finfo(np.longdouble).eps >= np.finfo(float).eps,
    reason="long doubles are no longer than doubles here",
)


def targets(loss, z, rng):
    if loss in ("logistic", "squared_hinge"):
        return np.where(z + rng.logistic(size=len(z)) > 0, 1, -1)
    if loss == "multinomial":
        y = rng.integers(0, 3, len(z))
        y[:3] = [0, 1, 2]
        return y
    if loss in ("poisson", "gamma"):
        return np.exp(z / np.abs(z).max()) * rng.gamma(2.0, size=len(z))
    return z + rng.normal(size=len(z))


@longer
@pytest.mark.parametrize("name", [*sorted(set(LOSSES) - {"linear", "huber"}), "huber"])
def test_formulas_agree_with_the_losses(name):
    rng = np.random.default_rng(0)
    loss = LOSSES[name]()
    shape = (200, 3) if name == "multinomial" else 200
    z = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1.3, shape)
    y = loss.encode(targets(name, rng.normal(size=200), rng))[0]
    formulas = _huber(Huber().delta) if name == "huber" else _FORMULAS[type(loss)]
    values, slopes = formulas(y, z.astype(Long))
    assert values.dtype == slopes.dtype == Long
    np.testing.assert_allclose(values.astype(float), loss.value(y, z), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(slopes.astype(float), loss.derivative(y, z), rtol=1e-11, atol=1e-15)
    # Slopes are those of the values: a central difference in long doubles has 12 digits.
    h = Long(1e-6)
    if name == "multinomial":
        direction = rng.normal(size=shape)
        moved = formulas(y, z + h * direction)[0] - formulas(y, z - h * direction)[0]
        expected = np.sum(slopes * direction, axis=1)
    else:
        moved = formulas(y, z.astype(Long) + h)[0] - formulas(y, z.astype(Long) - h)[0]
        expected = slopes
    size = 1.0 + np.abs(values.astype(float))
    assert np.all(np.abs((moved / (2 * h) - expected).astype(float)) <= 1e-6 * size)


PENALTIES = [
    sorel.L2(0.1),
    sorel.ElasticNet(0.1, 0.05),
    sorel.NonNegative(0.1),
    sorel.Box(0.0, -0.5, 0.3),
    sorel.Simplex(0.0),
    sorel.Simplex(0.2),
]


@longer
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"linear"}))
def test_bound_is_valid_and_tight_for_its_weighting(loss, intercept, penalty):
    # Under the mean there is one weighting, so that the bound is the optimum, found in doubles.
    rng = np.random.default_rng(1)
    X = rng.normal(size=(12, 4))
    y = targets(loss, X @ rng.normal(size=4), rng)
    problem = sorel.Problem(
        X, y, risk=sorel.Mean(), loss=loss, penalty=penalty, fit_intercept=intercept
    )
    result = sorel.solve(problem, tol=1e-12)
    run = problem.for_run()
    engine = run.engine
    near = result.w + 1e-4 * rng.normal(size=result.w.shape)
    near[:4] = penalty.project(near[:4])
    point, dual = engine.point(near), engine.uniform()
    value = problem.objective(near)
    total, rounding = run._extended_bound(run._rounding(), point, dual, value, np.inf)
    bound = value - total
    assert rounding <= 1e-9 * result.objective
    assert bound <= result.objective * (1 + 1e-14)
    assert bound >= result.dual - 1e-8 * result.objective


@longer
@pytest.mark.parametrize(
    ("loss", "penalty", "intercept", "factor"),
    [
        # A tiny l2: the dual value loses the square of the gradient's error over it.
        ("squared_hinge", sorel.NonNegative(1e-9), False, 1e7),
        ("poisson", sorel.NonNegative(1e-8), True, 1e7),
        # Intercepts of a thousand: doubles leave their derivative at 1e-13.
        ("multinomial", sorel.ElasticNet(1e-7, 1e-6), True, None),
        # A wide domain without curvature.
        ("multinomial", sorel.Box(0.0, -1e8, 1e8), True, 1.0),
    ],
)
def test_solved_problems_are_certified(loss, penalty, intercept, factor):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 4))
    y = targets(loss, X[:, 0], rng)
    X = X + 10.0 ** rng.uniform(2, 4, 4) if factor is None else factor * X
    problem = sorel.Problem(
        X, y, risk=sorel.ESRM(2.0), loss=loss, penalty=penalty, fit_intercept=intercept
    )
    result = sorel.solve(problem)
    assert result.converged, result.status
    assert problem.certificate(result.w, result.weights).relative_gap <= 1e-6


@longer
def test_targets_far_from_zero():
    # The residuals are rounding errors of the margins, and the slopes with them.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2, 7)) * 1e3
    problem = sorel.Problem(X, [4e8, -4e8], loss=sorel.losses.Huber(0.01), penalty=sorel.L2(1e-9))
    result = sorel.solve(problem)
    assert result.converged, result.status


@longer
def test_who_has_no_such_bound():
    X, y = np.eye(3), np.array([1.0, 2.0, 5.0])
    small = sorel.Problem(X, y)
    assert can_extend(small.engine, small.penalty)
    assert small.extends
    assert not sorel.Problem(X, y, loss="linear").extends
    many = sorel.Problem(np.ones((3, 500)), y)
    assert not can_extend(many.engine, many.penalty)


class InDoubles(sorel.losses.Loss):
    """A loss whose formulas know nothing but doubles."""

    name, lower_bound, curvature_bound = "in_doubles", 0.0, 1.0

    def value(self, y, z):
        return 0.5 * np.asarray(z - y, dtype=np.float64) ** 2

    def derivative(self, y, z):
        return np.asarray(z - y, dtype=np.float64)

    def curvature(self, y, z):
        return np.ones(len(z))


class HalfInDoubles(InDoubles):
    """One whose values have all digits, and whose slopes do not."""

    def value(self, y, z):
        return (z - y) ** 2 / 2


@pytest.mark.parametrize("loss", [InDoubles(), HalfInDoubles()], ids=["all", "half"])
def test_a_loss_in_doubles_is_left_alone(loss):
    problem = sorel.Problem(np.eye(3), [1.0, 2.0, 5.0], loss=loss)
    run = problem.for_run()
    point, dual = run.engine.point(np.zeros(3)), run.engine.uniform()
    assert run._extended_bound(run._rounding(), point, dual, 1.0, np.inf).total == np.inf


@longer
@pytest.mark.parametrize("risk", [sorel.Mean(), sorel.ESRM(3.0), sorel.Extremile(2.5)], ids=repr)
def test_hinges_that_doubles_see_on_the_wrong_side(risk):
    """Columns of 1e7 hold the weights by hinges of 1e-9, which is what margins are rounded by."""
    cp = pytest.importorskip("cvxpy", reason="cvxpy is an extra")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, y = 5e7 * rng.standard_normal((5, 20)), np.array([-1, 1, 1, -1, 1])
        problem = sorel.Problem(X, y, risk=risk, loss="squared_hinge", penalty=sorel.Simplex(0.1))
        result = sorel.solve(problem, max_passes=300)
        assert result.converged, result.status
        # Without the losses, which are next to nothing, this is a projection.
        w = cp.Variable(20)
        inside = [w >= 0, cp.sum(w) == 1, cp.multiply(y, X / 5e7 @ w) >= 1 / 5e7]
        least = cp.Problem(cp.Minimize(0.05 * cp.sum_squares(w)), inside).solve(solver="CLARABEL")
        assert result.dual - 1e-8 <= least <= result.objective + 1e-8


@longer
@pytest.mark.parametrize("seed", range(4))
def test_residuals_far_below_the_targets_leave_no_gap(seed):
    """A narrow Huber loss of large numbers that are fitted, where digits of margins run out."""
    rng = np.random.default_rng(seed)
    X, y = 3e7 * rng.standard_normal((12, 20)), 1e8 * rng.standard_t(1.5, 12)
    delta, l2 = 2e-3, 0.01
    problem = sorel.Problem(
        X, y, risk=sorel.Mean(), loss=Huber(delta), penalty=sorel.L2(l2), fit_intercept=True
    )
    result = sorel.solve(problem)
    assert result.converged
    assert result.relative_gap <= 1e-8
    # The objective without any rounding.
    w = [Fraction(x) for x in result.w]
    width, value = Fraction(delta), Fraction(0)
    for row, target in zip(X, y, strict=True):
        z = sum((Fraction(x) * c for x, c in zip(row, w[:-1], strict=True)), start=w[-1])
        r = abs(z - Fraction(target))
        value += (r * r / 2 if r <= width else width * (r - width / 2)) / len(y)
    value += Fraction(l2) / 2 * sum(c * c for c in w[:-1])
    assert Fraction(result.dual) <= value
    assert abs(value - Fraction(result.objective)) <= Fraction(result.gap)


# The formulas of the bound, written out a second time.

UNIT = float(np.finfo(Long).eps) / 2.0
MODELS = {
    "l2": sorel.L2(0.3),
    "elastic": sorel.ElasticNet(0.3, 0.2),
    "box": sorel.Box(0.0, -0.5, 2.0),
    "curved box": sorel.Box(0.3, -0.5, 2.0),
    "simplex": sorel.Simplex(0.0),
    "curved simplex": sorel.Simplex(0.3),
}


class Own(sorel.losses.Loss):
    """The squared loss as a user may write it."""

    name, lower_bound, curvature_bound = "own", 0.0, 1.0

    def value(self, y, z):
        return (z - y) ** 2 / 2

    def derivative(self, y, z):
        return z - y

    def curvature(self, y, z):
        return np.ones_like(z)


def made(loss, penalty, intercept=False, n=9, scale=1.0):
    """A model in long doubles for sample weights and a weighting that does not quite sum to 1."""
    rng = np.random.default_rng(5)
    X = scale * rng.normal(size=(n, 3))
    y = targets(loss if isinstance(loss, str) else "squared", rng.normal(size=n), rng)
    if loss == "poisson":
        y[0] = 0.0
    problem = sorel.Problem(
        X, y, risk=sorel.ESRM(1.0), loss=loss, penalty=penalty, fit_intercept=intercept,
        sample_weight=rng.uniform(0.5, 2.0, n),
    )  # fmt: skip
    run = problem.for_run()
    engine, rounding = run.engine, run._rounding()
    w = rng.uniform(0.1, 1.0, engine.shape)
    w[:3] = penalty.project(w[:3])
    dual = engine.worst_case(engine.point(w))
    dual.density *= 1.0 + 1e-15
    if intercept:
        w = engine.best_intercept(engine.point(w), dual).w
    return _Model.of(engine, run.loss, penalty, rounding, dual), w.astype(Long)


def conjugate_gap(penalty, w, v):
    """g(w) + g*(v) - v . w in long doubles, the parameters that attain g*, and sizes of terms."""
    l2, l1 = Long(penalty.l2), Long(getattr(penalty, "l1", 0.0))
    if isinstance(penalty, sorel.Simplex):
        best = np.zeros_like(w)
        for k in range(w.shape[1]):
            if l2 == 0.0:
                best[np.argmax(v[:, k]), k] = 1
            else:
                # The sum of what lies above a level falls in the level: halve to the last digit.
                low, high = v[:, k].min() / l2 - 1, v[:, k].max() / l2
                for _ in range(80):
                    level = (low + high) / 2
                    above = np.maximum(v[:, k] / l2 - level, 0).sum() > 1
                    low, high = (level, high) if above else (low, level)
                best[:, k] = np.maximum(v[:, k] / l2 - low, 0)
        beside = np.abs(v).max(axis=0).sum() * len(w)
        v = v - v.max(axis=0)
    else:
        beside = 0.0
        low, high = (-0.5, 2.0) if isinstance(penalty, sorel.Box) else (-np.inf, np.inf)
        if l2 == 0.0:
            best = np.where(v > 0, Long(high), Long(low))
        else:
            best = np.clip(np.sign(v) * np.maximum(np.abs(v) - l1, 0) / l2, low, high)
    linear, bend = v * (best - w), l2 / 2 * (best**2 - w**2)
    kink = l1 * (np.abs(best) - np.abs(w))
    size = sum(float(np.abs(term).sum()) for term in (linear, bend, kink)) + float(beside)
    return np.sum(linear - bend - kink), size


@longer
@pytest.mark.parametrize("moves", [0, 3])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("penalty", MODELS)
@pytest.mark.parametrize("loss", ["squared", "poisson", "multinomial", "own"])
def test_the_bound_less_its_errors(loss, penalty, intercept, moves):
    penalty = MODELS[penalty]
    model, w = made(Own() if loss == "own" else loss, penalty, intercept)
    engine = model.engine
    X, lam = model.X, model.lam
    margins = model.margins(w)
    before = None
    if moves:
        # What margins were on the way counts where it was more.
        before = SimpleNamespace(moves=moves - 1, sizes=1.5 * model._sizes(w))
    state = model.state(w, margins, before)
    outputs = engine.n_outputs
    wide = w.reshape(len(w), outputs)
    z = X @ wide[:3] + (wide[3] if intercept else 0)
    y = engine.y
    logs = np.zeros(len(y))
    if loss == "multinomial":
        shifted = z - z.max(axis=1)[:, None]
        chances = np.exp(shifted) / np.exp(shifted).sum(axis=1)[:, None]
        own = np.arange(len(y)), y
        losses, slopes = -np.log(chances[own]), chances
        slopes[own] -= 1
    elif loss == "poisson":
        logs = np.abs(np.log(np.where(y > 0, y, 1)))
        losses = np.exp(z[:, 0]) - y - y * (z[:, 0] - np.log(np.where(y > 0, y, 1).astype(Long)))
        losses, slopes = np.where(y > 0, losses, np.exp(z[:, 0])), np.exp(z) - y[:, None]
    else:
        slopes = z - y[:, None]
        losses = slopes[:, 0] ** 2 / 2
    weighted = lam[:, None] * slopes
    v = -(X.T @ weighted)
    bracket, size = conjugate_gap(penalty, wide[:3], v)
    g = Long(penalty.l2) / 2 * np.sum(wide[:3] ** 2)
    g += getattr(penalty, "l1", 0.0) * np.sum(np.abs(wide[:3]))
    value = np.sum(lam * losses) + g
    assert float(abs(state.value - value)) <= 1e-17 * float(value)
    assert float(abs(value - bracket - float(state.bound.rounding) - state.bound.value)) <= 1e-17
    # Rounding of the terms of the bracket, of margins, of losses, and of the weights.
    error = 64 * UNIT * size
    sizes = np.abs(X) @ np.abs(wide[:3]) + (np.abs(wide[3]) if intercept else 0)
    seen = z - y[:, None] if loss == "squared" else z
    sizes *= 1.5 if moves else 1.0
    away = (3 + 4 + 2 * (8 + 3) * moves) * sizes + 4 * (np.abs(seen) + logs[:, None])
    error += 2 * UNIT * np.sum(np.abs(weighted) * away)
    error += 64 * UNIT * (np.sum(lam * np.abs(losses)) + abs(value))
    error += abs(float(np.sum(lam)) - 1) * np.sum(lam * np.abs(losses))
    double = engine.point(w.astype(float))
    error += engine.weights_rounding(double)
    # Errors of the gradient, in each coefficient.
    share = 64 * UNIT + (4 * 2.0**-53 if loss == "own" else 0.0)
    delta = share * (np.abs(X).T @ np.abs(weighted))
    if intercept:
        # What is left of the derivative is rounding, and that of another order differs.
        rest = np.atleast_1d(state.gradient[3])
        assert np.all(np.abs(rest - weighted.sum(axis=0)) <= 1e-18)
        left = np.abs(rest) + share * np.abs(weighted).sum(axis=0)
        residual = float(np.sqrt(np.sum(left**2)))
        drop = 2 * engine.intercept_slack(double, model.dual, residual)
        if outputs > 1:
            most = residual + np.sqrt(2 * model.loss.curvature_bound * drop)
            residual = min(most, engine.intercept_spread(double, model.dual, residual))
        error += drop
        delta += residual * np.abs(X).max(axis=0)[:, None]
    gain = np.inf
    if penalty.l2 > 0.0:
        spread = float(np.sqrt(np.sum(delta**2))) / np.sqrt(2 * penalty.l2)
        gain = 2 * spread * np.sqrt(float(bracket)) + spread**2
    if isinstance(penalty, sorel.Simplex):
        gain = min(gain, np.sum(delta.max(axis=0)) + np.sum(delta * np.abs(wide[:3])))
    elif isinstance(penalty, sorel.Box):
        gain = min(gain, np.sum(delta * np.maximum(wide[:3] + 0.5, 2 - wide[:3])))
    assert state.bound.rounding == pytest.approx(float(error + gain), rel=1e-7, abs=0.0)


@longer
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("penalty", [*MODELS.values(), sorel.Box(0.0, 0.05, 0.3)], ids=repr)
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_a_newton_step_in_long_doubles_ends_at_the_minimum(loss, penalty, intercept):
    """Of a squared loss at once; for others what is left falls with its square."""
    model, w = made(loss, penalty, intercept, n=30)
    state = model.state(w, model.margins(w))
    for step in range(2 if loss == "squared" else 12):
        moved = model.stepped(state, blurred=step == 0)
        if moved is None:
            break
        state = moved
        if loss == "squared":
            # All that is left are the errors of a solution in doubles.
            slack = float(state.value - state.bound.value - state.bound.rounding)
            assert slack <= 1e-13 * float(state.value)
    slack = float(state.value - state.bound.value - state.bound.rounding)
    assert slack <= 1e-17 * float(state.value)
    inside = penalty.project(state.w[:3].astype(float))
    np.testing.assert_allclose(state.w[:3].astype(float), inside, atol=1e-15)


@longer
def test_margins_that_were_moved_are_computed_anew_where_the_domain_cut_the_step():
    model, w = made("squared", sorel.Box(0.0, -0.5, 2.0), n=30)
    start = model.state(w, model.margins(w))._replace(moves=4)
    # In the middle of the box margins move along; at a bound the step ends elsewhere.
    across = -1.2 * w.astype(float)
    for step, moves in ((across, 5), (0.01 * across, 5), (np.array([5.0, 0.0, 0.0]), 0)):
        with (
            mock.patch.object(model, "_step", lambda state, blurred, s=step: s.astype(Long)),
            mock.patch("sorel.extended._LEVEL", 1e9),
        ):
            moved = model.stepped(start, blurred=False)
        assert moved.moves == moves
        exact = model.margins(moved.w)
        assert float(np.abs(moved.margins - exact).max()) <= 1e-17


@longer
def test_margins_that_come_from_far_away_are_known_as_far_as_they_were_there():
    """A first Newton step down an exponential leads out to 1e41, and the next ones back."""
    X = np.array([[13.8, 65.1, 22.0, 8.8], [11.0, 65.1, 22.8, 9.7]])
    problem = sorel.Problem(
        X, [1.0, 1.0], risk=sorel.CVaR(0.7), loss="poisson", penalty=sorel.ElasticNet(0.22, 0.03)
    )
    rng = np.random.default_rng(0)
    for share in rng.uniform(0.29, 0.71, 40):
        w, lam = (
            np.array([0.32, 0.89, 1.31, 0.29]) + 0.1 * rng.standard_normal(4),
            [share, 1 - share],
        )
        assert problem.certificate(np.zeros(4), lam).primal == 0.0
        certificate = problem.certificate(w, lam)
        assert certificate.dual <= 0.0
        assert certificate.gap >= certificate.primal


@longer
def test_steps_that_lead_up_are_cut_to_a_quarter():
    model, w = made("squared", sorel.L2(0.3))
    state = model.state(w, model.margins(w))
    whole = model._step(state, False)
    for factor, cuts in ((1.0, 0), (7.0, 1), (30.0, 2), (-1.0, None)):
        with mock.patch.object(model, "_step", lambda state, blurred, f=factor: f * whole):
            moved = model.stepped(state, blurred=False)
        if cuts is None:
            assert moved is None
        else:
            expected = w + factor * whole / 4**cuts
            assert float(np.abs(moved.w - expected).max()) <= 1e-17
            assert moved.value <= state.value


@longer
def test_slopes_of_blurred_margins_are_those_of_the_side_that_bends():
    """A squared hinge bends before its kink: on which side the margin is, doubles cannot say."""
    model, w = made("squared_hinge", sorel.L2(0.3))
    state = model.state(w, model.margins(w))
    y, error = model.y, 8.0 * 2.0**-53 * model._sizes(w)
    for share, bends in ((0.5, True), (-0.5, True), (2.0, False), (-2.0, True)):
        # y z is 1 and that share of the error more.
        near = state._replace(margins=y * (1 + share * error))
        slopes, bend = model._slopes(near, True)
        np.testing.assert_array_equal(bend, 2.0 if bends else 0.0)
        expected = -2 * y * -share * error if bends else 0 * error
        np.testing.assert_allclose(slopes.astype(float), expected.astype(float), rtol=1e-3)
        plain, bend = model._slopes(near, False)
        exact = -2 * y * np.maximum(-share * error, 0)
        np.testing.assert_allclose(plain.astype(float), exact.astype(float), rtol=1e-3)


@pytest.mark.parametrize(
    ("falls", "rises", "steps"),
    [
        (0.0, 0.2, 60),  # a bound that gains a five-hundredth of what is left, each time
        (0.0, 0.05, 4),  # too little, four times in a row
        (0.2, 0.0, 60),  # a value that falls while the bound does not rise
        (0.05, 0.0, 4),
        (0.0, [0.0, 0.0, 0.0, 0.2], 60),  # three idle steps are forgiven by the next
    ],
)
def test_steps_end_where_they_gain_nothing(monkeypatch, falls, rises, steps):
    rises = rises if isinstance(rises, list) else [rises]
    taken, ends = stairs(monkeypatch, 1.0, -99.0, falls, rises)
    assert taken == steps
    assert ends == pytest.approx(-99.0 + sum(rises[k % len(rises)] for k in range(steps)))


def test_steps_end_where_the_bound_is_close_enough_or_nothing_is_to_be_gained(monkeypatch):
    # 1 - 0.9 is 0.1, and every step takes 0.01 of that.
    assert stairs(monkeypatch, 1.0, 0.9, 0.0, [0.01], enough=0.075)[0] == 3
    assert stairs(monkeypatch, 1.0, 0.9, 0.01, [0.0], known=0.975)[0] == 3
    assert stairs(monkeypatch, 1.0, 0.9, 0.0, [-0.5, 0.01], enough=0.0) == (4, 0.9)


def stairs(monkeypatch, value, bound, falls, rises, enough=-np.inf, known=-np.inf):
    """Steps of a model whose value falls and whose bound rises by given amounts."""
    taken = []

    def state(*arguments):
        return SimpleNamespace(value=Long(value), bound=Bound(Long(bound), 0.0))

    def stepped(state, blurred):
        assert blurred is (not taken)
        rise = rises[len(taken) % len(rises)]
        taken.append(1)
        raised = Bound(state.bound.value + Long(rise), 0.0)
        return SimpleNamespace(value=state.value - Long(falls), bound=raised)

    model = SimpleNamespace(inside=lambda w: w, margins=lambda w: w, state=state, stepped=stepped)
    monkeypatch.setattr(_Model, "of", lambda *parts: model)
    engine, point = SimpleNamespace(fit_intercept=False), SimpleNamespace(w=np.zeros(1))
    found = extended_bound(engine, None, None, None, point, None, enough, known)
    return len(taken), float(found.value)
