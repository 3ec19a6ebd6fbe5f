"""The paper's generated classes from scikit-learn's make_classification (sklearn, sklearn-random)."""

from dataclasses import replace

import numpy as np
import polars as pl

from fedsim_lab.datasets.dataset import DatasetInfo, DatasetTask
from fedsim_lab.datasets.paper_scores import SKLEARN_RANDOM
from fedsim_lab.datasets.single_table import SingleTable

LABEL = "class"
IDENTIFIERS = 5
INFORMATIVE = 20
COLUMNS = tuple(f"x{number}" for number in range(95))
AUTHORS_SEED = 512

SKLEARN = DatasetInfo(
    name="sklearn",
    title="generated classes, two halves",
    task=DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(60_000, 60_000),
)
SKLEARN_WITH_RANDOM_IDENTIFIERS = replace(
    SKLEARN,
    name="sklearn-random",
    title="the same, identifiers by chance",
    scores=SKLEARN_RANDOM,
    note="the authors' script for it is not public",
)


def generate_sklearn(records: int = 60_000) -> SingleTable:
    """The authors' table, whole; fewer ``records`` make another table of the same kind.

    >>> generate_sklearn(100)
    SingleTable(sklearn: 100 records, 95 columns)
    """
    from sklearn.datasets import make_classification  # noqa: PLC0415 - takes a second to import

    features, classes = make_classification(
        n_samples=records,
        n_features=len(COLUMNS),
        n_informative=INFORMATIVE,
        n_redundant=0,
        n_clusters_per_class=3,
        class_sep=0.3,
        shift=None,
        random_state=AUTHORS_SEED,
    )
    frame = pl.DataFrame(features, schema=list(COLUMNS)).with_columns(pl.Series(LABEL, classes, dtype=pl.UInt8))
    return SingleTable(SKLEARN, frame, LABEL, IDENTIFIERS, _authors_order())


def generate_sklearn_random(records: int = 60_000) -> SingleTable:
    """The same table under its other name; cut it with ``cut_at_random_identifiers``."""
    return replace(generate_sklearn(records), about=SKLEARN_WITH_RANDOM_IDENTIFIERS)


def _authors_order() -> tuple[str, ...]:
    """The first five columns are identifiers; the others are shuffled, those behind the first twenty first."""
    rest = np.array([*COLUMNS[INFORMATIVE:], *COLUMNS[IDENTIFIERS:INFORMATIVE]])
    shuffled = rest[np.random.RandomState(AUTHORS_SEED + 1).permutation(len(rest))]
    return (*COLUMNS[:IDENTIFIERS], *map(str, shuffled))
