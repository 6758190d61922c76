"""scikit-learn's bundled sets: standardised, 80% of the rows."""

import numpy as np
from benchopt import BaseDataset

from sorel.datasets import load_bundled, split_standardized


class Dataset(BaseDataset):
    name = "bundled"
    requirements = ["pip::sorel"]
    parameters = {"set": ["diabetes", "breast_cancer"]}

    def get_data(self):
        X, y = load_bundled(self.set)
        data = split_standardized(X, y.astype(np.float64))
        if self.set == "diabetes":
            return {"X": data.X_train, "y": data.y_train, "loss": "squared"}
        # Centring keeps the two labels apart by their sign.
        return {"X": data.X_train, "y": np.where(data.y_train > 0, 1, -1), "loss": "logistic"}
