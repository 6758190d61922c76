"""Generated sets: regression with heavy tails or two populations, and a rare class."""

import numpy as np
from benchopt import BaseDataset

from sorel.datasets import make_heavy_tailed, make_imbalanced, make_two_populations


class Dataset(BaseDataset):
    name = "simulated"
    requirements = ["pip::sorel"]
    parameters = {
        "kind": ["heavy_tailed", "ill_conditioned", "two_populations", "imbalanced"],
        "n": [2000],
        "d": [20],
    }
    test_parameters = {"kind": ["heavy_tailed", "imbalanced"], "n": [60], "d": [4]}

    def get_data(self):
        seed = self.get_seed(use_dataset=True, use_repetition=True)
        if self.kind == "imbalanced":
            X, y = make_imbalanced(self.n, self.d, 0.1, seed)
            # The problem has no intercept; without a constant column w = 0 would be near optimal.
            X = np.column_stack([X, np.ones(self.n)])
            return {"X": X, "y": y, "loss": "logistic"}
        if self.kind == "two_populations":
            X, y, _ = make_two_populations(self.n, self.d, seed=seed)
        else:
            condition = 1e4 if self.kind == "ill_conditioned" else 1.0
            X, y = make_heavy_tailed(self.n, self.d, 2.1, condition, seed)
        return {"X": X, "y": y, "loss": "squared"}
