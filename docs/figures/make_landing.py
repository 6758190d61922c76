"""Draw figures/landing.png: sorted held-out losses of least squares and of CVaR(0.1)."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from sorel.datasets import load_paper_table
from sorel.research.demo import BASELINE, compare

rows = compare("Yacht", "", *load_paper_table("yacht"), splits=10).rows
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axes.axvspan(90, 100, color="0.92")
for name, color in ((BASELINE, "C0"), ("CVaR(0.1)", "C3")):
    losses = np.sort(rows[name].held_out_losses)
    tail = rows[name].held_out.tail
    label = f"{name}: mean of the worst tenth {tail:.2f}"
    axes.plot(np.linspace(0, 100, len(losses)), losses, color=color, linewidth=2, label=label)
axes.text(89, axes.get_ylim()[1] * 0.94, "the worst tenth", ha="right", va="top", color="0.4")
axes.set(xlim=(0, 100), ylim=(0, None), xlabel="held-out rows, best to worst (%)", ylabel="loss")
axes.legend(frameon=False, loc="upper left")
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("landing.png"), dpi=180)
