"""The paper's generated classes (``sklearn``, ``sklearn-random``): scikit-learn's ``make_classification``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from fedsim.data.datasets.dataset import About, Task
from fedsim.data.datasets.paper_scores import SKLEARN_RANDOM
from fedsim.data.datasets.single_table import Whole

LABEL = "class"
IDENTIFIERS = 5
INFORMATIVE = 20
COLUMNS = tuple(f"x{number}" for number in range(95))
AUTHORS_SEED = 512

ABOUT = About(
    name="sklearn",
    title="generated classes, two halves",
    task=Task.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(60_000, 60_000),
)
ABOUT_RANDOM = replace(
    ABOUT,
    name="sklearn-random",
    title="the same, identifiers by chance",
    scores=SKLEARN_RANDOM,
    note="the authors' script for it is not public",
)


def generate(records: int = 60_000) -> Whole:
    """The authors' table, whole; fewer ``records`` make another table of the same kind.

    >>> generate(100)
    Whole(sklearn: 100 records, 95 columns)
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
    return Whole(ABOUT, frame, LABEL, IDENTIFIERS, _authors_order())


def generate_random(records: int = 60_000) -> Whole:
    """The same table under its other name; cut it with ``cut_at_random_identifiers``."""
    return replace(generate(records), about=ABOUT_RANDOM)


def _authors_order() -> tuple[str, ...]:
    """The first five columns are identifiers; the others are shuffled, those behind the first twenty first."""
    rest = np.array([*COLUMNS[INFORMATIVE:], *COLUMNS[IDENTIFIERS:INFORMATIVE]])
    shuffled = rest[np.random.RandomState(AUTHORS_SEED + 1).permutation(len(rest))]
    return (*COLUMNS[:IDENTIFIERS], *map(str, shuffled))
