"""The paper's five regression sets, with its split and scaling; they travel with the package."""

from benchopt import BaseDataset

from sorel.datasets import PAPER_DATASETS, load_paper_dataset


class Dataset(BaseDataset):
    name = "paper"
    requirements = ["pip::sorel"]
    parameters = {"set": list(PAPER_DATASETS)}

    def get_data(self):
        X, y = load_paper_dataset(self.set, download=False)
        return {"X": X, "y": y, "loss": "squared"}
