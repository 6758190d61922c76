"""The paper's five regression sets, with its split and scaling; skipped where they are not at hand.

They are looked for in the folder that SOREL_DATA names and in the user's cache. Only
`benchopt prepare` downloads them.
"""

from benchopt import BaseDataset

from sorel.datasets import PAPER_DATASETS, load_paper_dataset


class Dataset(BaseDataset):
    name = "paper"
    requirements = ["pip::sorel"]
    parameters = {"set": list(PAPER_DATASETS)}

    def get_data(self):
        try:
            X, y = load_paper_dataset(self.set, download=False)
        except FileNotFoundError as error:
            return {"X": None, "y": None, "loss": "squared", "missing": str(error)}
        return {"X": X, "y": y, "loss": "squared"}

    def prepare(self):
        """Fetch the set for `benchopt prepare`, the one command that may use the network."""
        load_paper_dataset(self.set)
