"""Data for the demo, the experiments, the benchmarks and the tests.

Three sources, all by name (:func:`list_datasets`) and all offline: the five regression sets of the
paper, which travel with the package (``files/README.md`` names their authors and licences);
scikit-learn's bundled sets; and generated ones.

The sets of the paper can also be fetched from UCI and OpenML, as a check. A download is judged by
its content, not by its name or format: whatever table it holds must have the numbers that the
experiments used, by a checksum of the numbers themselves.
"""

from sorel.research.datasets.catalogue import DatasetInfo, list_datasets
from sorel.research.datasets.generated import (
    BUNDLED_DATASETS,
    load_bundled,
    load_diabetes,
    make_heavy_tailed,
    make_imbalanced,
    make_two_populations,
)
from sorel.research.datasets.paper import (
    PAPER_DATASETS,
    load_paper_dataset,
    load_paper_split,
    load_paper_table,
)
from sorel.research.datasets.preparation import Split, split_standardized
from sorel.research.datasets.published import dataset_fingerprint

__all__ = [
    "BUNDLED_DATASETS",
    "PAPER_DATASETS",
    "DatasetInfo",
    "Split",
    "dataset_fingerprint",
    "list_datasets",
    "load_bundled",
    "load_diabetes",
    "load_paper_dataset",
    "load_paper_split",
    "load_paper_table",
    "make_heavy_tailed",
    "make_imbalanced",
    "make_two_populations",
    "split_standardized",
]
