"""Draw _static/thumbs/*.png: a sketch for each example of the gallery, which shows one thing."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

GREY, BLUE, RED = "0.75", "#0072b2", "#d55e00"
rng = np.random.default_rng(0)
x = np.linspace(0, 1, 100)
noise = rng.standard_normal(60)


def fairness(axes):
    """Mean losses of four groups, the worst one marked."""
    axes.bar(range(4), [0.5, 0.6, 0.55, 1.0], color=[GREY, GREY, GREY, RED], width=0.7)


def flights(axes):
    """Losses of days, a storm among them."""
    days = 0.2 + 0.1 * rng.random(24)
    days[15] = 1.0
    axes.bar(range(24), days, color=[RED if day == 15 else GREY for day in range(24)], width=0.7)


def level(axes):
    """The tail falls and rises again with the level."""
    axes.plot(x, 0.2 + (x - 0.55) ** 2 * 2.5, color=BLUE)
    axes.plot([0.55], [0.2], "o", color=RED, markersize=14)


def medical_costs(axes):
    """A shift of all predictions."""
    axes.plot(x, 0.1 + 0.5 * x, color=GREY)
    axes.plot(x, 0.35 + 0.5 * x, color=RED)
    axes.annotate("", (0.5, 0.58), (0.5, 0.37), arrowprops={"arrowstyle": "->", "lw": 3})


def portfolio(axes):
    """A frontier, and its portfolio of least risk."""
    reward = np.linspace(-1, 1, 100)
    axes.plot(0.3 + 0.6 * reward**2, reward, color=BLUE)
    axes.plot([0.3], [0], "o", color=RED, markersize=14)


def quantiles(axes):
    """A fan of quantile lines."""
    for slope, color in zip((0.2, 0.45, 0.7, 0.95), (BLUE, BLUE, RED, BLUE), strict=True):
        axes.plot(x, 0.05 + slope * x, color=color)


def ranks(axes):
    """A line that wrong targets do not move."""
    at = rng.random(60)
    wrong = at > 0.85
    axes.plot(at, np.where(wrong, 1.6, at + 0.05 * noise), "o", color=GREY, markersize=8)
    axes.plot(x, x, color=BLUE)


def rivals(axes):
    """Certified gaps that fall at different rates."""
    for rate, color in ((2, GREY), (5, GREY), (15, RED)):
        axes.semilogy(x, np.exp(-rate * x), color=color)


def shift(axes):
    """Losses over the share of a minority: they rise, or stay."""
    axes.plot(x, 0.1 + 0.9 * x, color=GREY)
    axes.plot(x, 0.35 + 0.1 * x, color=RED)


def weights(axes):
    """Samples with the size of their weights."""
    at, up = rng.random(60), np.abs(noise)
    axes.scatter(at, noise, s=15 + 250 * (up > 1.2), c=np.where(up > 1.2, RED, GREY))


SKETCHES = [
    fairness, flights, level, medical_costs, portfolio, quantiles, ranks, rivals, shift, weights,
]  # fmt: skip
plt.rcParams["lines.linewidth"] = 5
for sketch in SKETCHES:
    figure, axes = plt.subplots(figsize=(4, 2.8), layout="constrained")
    sketch(axes)
    axes.set(xticks=[], yticks=[])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    folder = Path(__file__).parents[1] / "_static" / "thumbs"
    figure.savefig(folder / f"{sketch.__name__}.png", dpi=100)
    plt.close(figure)
