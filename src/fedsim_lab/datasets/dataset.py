"""Dataset types: what is known before a file is read, and all parties' records with how they are linked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.synthetic import GroundTruth
from fedsim.errors import InputError
from fedsim.types import Integers

# How the paper encoded identifiers before it compared them by Hamming distance (FEDERAL filters)


@dataclass(frozen=True)
class NumberFilterSettings:
    """Settings for ``paper_numeric_filter``: each number has its own filter; ``threshold`` is in the column's unit."""

    epsilon: float
    delta: float
    threshold: float


@dataclass(frozen=True)
class TextFilterSettings:
    """Settings for string filters: ``q``-grams, ``hashes`` per gram, and the assumptions behind their size."""

    q: int
    hashes: int
    edits: int
    collisions: float
    delta: float


SINGLE_TABLE_FILTERS = NumberFilterSettings(epsilon=0.1, delta=0.1, threshold=0.1)
TITLE_FILTERS = TextFilterSettings(q=4, hashes=10, edits=1, collisions=0.05, delta=0.1)


# What a dataset is: what is known about it before a file is read (``About``), and the records (``Dataset``)


class DatasetTask(StrEnum):
    """What is learnt."""

    REGRESSION = "regression"
    CLASSIFICATION = "classification"


class LabelTransform(StrEnum):
    """How a label is transformed before training; the values are used in experiment files."""

    NONE = ""
    LOG10 = "log10"

    def apply(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return the transformed labels."""
        return np.asarray(np.log10(labels)) if self is LabelTransform.LOG10 else labels


@dataclass(frozen=True)
class PaperScore:
    """A score from the paper: mean and standard deviation of five runs, in the dataset's measure."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class DatasetFile:
    """One file of a dataset; the first of ``paths`` (below the user's folder) that exists is read.

    A file that is not ``needed`` adds a secondary the paper did not have.
    """

    name: str
    paths: tuple[str, ...]
    holds: str
    source: str
    licence: str
    needed: bool = True


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset before any file is read.

    ``measure`` is what the paper reports (rmse in ``unit``, accuracy in percent, r2), ``records`` the paper's counts
    (primary, then secondaries), ``scores`` its figures by method, ``note`` where our preparation cannot be theirs.
    """

    name: str
    title: str
    task: DatasetTask
    measure: str
    unit: str
    records: tuple[int, ...]
    files: tuple[DatasetFile, ...] = ()
    scores: Mapping[str, PaperScore] = field(default_factory=dict, repr=False)
    note: str = ""

    @property
    def generated(self) -> bool:
        """Whether the dataset is generated and needs no files."""
        return not self.files


@dataclass(frozen=True, eq=False)
class PartyTable:
    """One party's records: ``frame`` holds the identifiers, the ``features``, and the label if there is one.

    ``dropped`` lists the columns of the file that are not used, and why.
    """

    frame: pl.DataFrame
    features: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def excluding(
        cls, others: Collection[str], frame: pl.DataFrame, dropped: Mapping[str, str] | None = None
    ) -> PartyTable:
        """Return a table whose features are all columns except ``others``: its identifiers and its label."""
        return cls(frame, tuple(name for name in frame.columns if name not in others), dropped or {})

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"PartyTable({len(self)} records, {len(self.features)} features)"


@dataclass(frozen=True)
class LinkSpec:
    """How primary and secondary records are compared: columns on both sides, metric, and the paper's K.

    With ``casefold``, text is compared in lower case. ``filters`` is how the paper encoded the columns for Hamming
    distances.
    """

    primary: tuple[str, ...]
    secondary: tuple[str, ...]
    metric: str
    k: int
    casefold: bool = False
    filters: NumberFilterSettings | TextFilterSettings | None = None


@dataclass(frozen=True, eq=False)
class SecondaryTable:
    """A party without labels, and how it is linked; ``match`` is the true row of every primary record, if known."""

    name: str
    table: PartyTable
    link: LinkSpec
    match: Integers | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """All parties' records, ready to be linked, split and prepared; the first secondary is the paper's.

    ``truth`` is known only for generated data.
    """

    about: DatasetInfo
    primary: PartyTable
    label: str
    secondaries: tuple[SecondaryTable, ...]
    transform: LabelTransform = LabelTransform.NONE
    truth: GroundTruth | None = None

    def __post_init__(self) -> None:
        linked = [column for secondary in self.secondaries for column in secondary.link.primary]
        self._check(self.primary, "primary", [*linked, self.label])
        for secondary in self.secondaries:
            self._check(secondary.table, secondary.name, secondary.link.secondary)

    @property
    def name(self) -> str:
        """The name under which the dataset is loaded."""
        return self.about.name

    @property
    def labels(self) -> NDArray[Any]:
        """The transformed labels, as used in training."""
        return self.transform.apply(self.primary.frame[self.label].to_numpy())

    def secondary(self, name: str) -> SecondaryTable:
        """Return the secondary with that name."""
        for secondary in self.secondaries:
            if secondary.name == name:
                return secondary
        names = ", ".join(secondary.name for secondary in self.secondaries)
        raise InputError(f"{self.name} has no secondary '{name}' here; it has {names}", code="no-secondary", name=name)

    def __repr__(self) -> str:
        parties = ", ".join(f"{secondary.name} {len(secondary.table)}" for secondary in self.secondaries)
        return f"Dataset({self.name}: {len(self.primary)} records, secondaries {parties})"

    def _check(self, table: PartyTable, party: str, others: Any) -> None:
        """Check that identifiers and label are not features, and that all named columns exist."""
        twice = sorted(set(table.features) & set(others))
        if twice:
            message = f"{self.name}, {party}: column '{twice[0]}' is a feature and an identifier or the label"
            raise InputError(message, code="label-is-feature", column=twice[0])
        absent = [name for name in (*table.features, *others) if name not in table.frame.columns]
        if absent:
            raise InputError(f"{self.name}, {party}: there is no column '{absent[0]}'; check the file")
        if not (len(table) and table.features):
            raise InputError(f"{self.name}, {party}: no record or no feature is left; check the file")
