"""One table split into two parties, as in section 6.1 of the paper: frog, boone, sklearn and sklearn-random.

Row i of both parties is the same record, so linkage can be checked and Combine trained. The secondary's identifiers
carry normal noise, in the columns' own units, as in the paper; nothing is scaled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.errors import InputError, SettingError
from fedsim.storage.files import check_readable, read_bytes
from fedsim.types import Floats
from fedsim_lab.datasets import cleaning, dataset, paper_scores

K = 100


@dataclass(frozen=True, eq=False)
class SingleTable:
    """A table before it is cut; ``paper_order`` holds its features in the authors' shuffled order.

    The first ``identifiers`` columns of an order become identifiers; each party gets half of the rest as features.
    """

    about: dataset.DatasetInfo
    frame: pl.DataFrame
    label: str
    identifiers: int
    paper_order: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """All columns except the label, in table order."""
        return tuple(name for name in self.frame.columns if name != self.label)

    def cut(self, rng: np.random.Generator, noise: float = 0.0) -> dataset.Dataset:
        """Return two parties with columns drawn by ``rng``."""
        order = tuple(self.features[place] for place in rng.permutation(len(self.features)))
        return self._cut(order, rng, noise)

    def paper_cut(self, rng: np.random.Generator, noise: float = 0.0) -> dataset.Dataset:
        """Return two parties with the authors' columns; ``rng`` draws the noise."""
        return self._cut(self.paper_order, rng, noise)

    def cut_at_random_identifiers(self, rng: np.random.Generator, noise: float = 0.0) -> dataset.Dataset:
        """Return two parties whose identifiers carry no information: standard normal numbers (appendix G, "-random").

        The columns that would have been identifiers are left out.
        """
        drawn = pl.DataFrame({name: rng.normal(size=len(self.frame)) for name in self.paper_order[: self.identifiers]})
        return replace(self, frame=self.frame.with_columns(drawn)).paper_cut(rng, noise)

    def _cut(self, order: tuple[str, ...], rng: np.random.Generator, noise: float) -> dataset.Dataset:
        if not 0.0 <= noise < float("inf"):
            message = f"noise={noise}; choose a number of at least 0, in the unit of the identifiers"
            raise SettingError(message, code="out-of-range", name="noise")
        identifiers, rest = order[: self.identifiers], order[self.identifiers :]
        ours, theirs = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        exact = self.frame.select(identifiers).to_numpy()
        noisy = pl.DataFrame(exact + rng.normal(0.0, noise, exact.shape), schema=list(identifiers))
        secondary = self._table(noisy.hstack(self.frame.select(theirs)), theirs, identifiers)
        link = dataset.LinkSpec(identifiers, identifiers, "euclidean", K, filters=dataset.SINGLE_TABLE_FILTERS)
        return dataset.Dataset(
            about=self.about,
            primary=self._table(self.frame.select(*identifiers, *ours, self.label), ours, identifiers),
            label=self.label,
            secondaries=(dataset.SecondaryTable("other half", secondary, link, np.arange(len(secondary))),),
        )

    def _table(
        self, frame: pl.DataFrame, features: tuple[str, ...], identifiers: tuple[str, ...]
    ) -> dataset.PartyTable:
        dropped = {name: "the other party's" for name in self.features if name not in (*features, *identifiers)}
        return dataset.PartyTable(frame, features, dropped)

    def __repr__(self) -> str:
        return f"SingleTable({self.about.name}: {len(self.frame)} records, {len(self.features)} columns)"


# Anuran calls: the species of a frog from spectral coefficients (paper: frog)

FROG_LABEL = "Species"
COEFFICIENTS = tuple(f"MFCCs_{number:2}" for number in range(1, 23))
FROG_IDENTIFIERS = 16

FROG = dataset.DatasetInfo(
    name="frog",
    title="frog calls, two halves",
    task=dataset.DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(7_195, 7_195),
    files=(
        dataset.DatasetFile(
            "calls",
            ("frog/frogs_mfcc.csv.gz", "frog/Frogs_MFCCs.csv"),
            "22 MFCC columns and the species of each call",
            "UCI Machine Learning Repository, Anuran Calls (MFCCs)",
            "CC0 1.0",
        ),
    ),
)


def read_frog(paths: Mapping[str, Path]) -> SingleTable:
    """Read the calls without family, genus and recording, which would reveal the species."""
    path = paths["calls"]
    frame = cleaning.read_columns(path, [*COEFFICIENTS, FROG_LABEL], COEFFICIENTS)
    frame = cleaning.drop_incomplete_rows(frame, path)
    # The authors' own shuffle, so that the parties are theirs.
    order = np.random.RandomState(0).permutation(len(COEFFICIENTS))
    return SingleTable(FROG, frame, FROG_LABEL, FROG_IDENTIFIERS, tuple(COEFFICIENTS[place] for place in order))


# MiniBooNE: electron or muon neutrino (paper: boone)
#
# The public file is text: a line with the numbers of signal and background events, then one event per line, 50 numbers
# each, the signal first.

BOONE_LABEL = "signal"
BOONE_COLUMNS = tuple(f"x{number}" for number in range(50))
BOONE_IDENTIFIERS = 30

BOONE = dataset.DatasetInfo(
    name="boone",
    title="particle events, two halves",
    task=dataset.DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(130_064, 130_064),
    files=(
        dataset.DatasetFile(
            "events",
            ("boone/MiniBooNE_PID.txt",),
            "36,499 signal and 93,565 background events with 50 numbers each",
            "UCI Machine Learning Repository, MiniBooNE particle identification",
            "CC0 1.0",
        ),
    ),
)


def read_boone(paths: Mapping[str, Path]) -> SingleTable:
    """Read the events, signal first, as in the file; -999 marks a missing number, as in the paper."""
    path = paths["events"]
    check_readable(path)
    head, _, body = read_bytes(path).partition(b"\n")
    signal, background = _counts(head, path)
    values = _numbers(body, path)
    if values.size != (signal + background) * len(BOONE_COLUMNS):
        announced = f"{signal + background:,} events of {len(BOONE_COLUMNS)} numbers"
        message = f"{path} announces {announced}, but has {values.size:,} numbers; get the file again"
        raise InputError(message, code="truncated-file", found=values.size)
    frame = pl.DataFrame(values.reshape(-1, len(BOONE_COLUMNS)), schema=list(BOONE_COLUMNS))
    label = pl.Series(BOONE_LABEL, np.repeat([1, 0], [signal, background]), dtype=pl.UInt8)
    order = np.random.RandomState(0).permutation(len(BOONE_COLUMNS))
    names = tuple(BOONE_COLUMNS[place] for place in order)
    return SingleTable(BOONE, frame.with_columns(label), BOONE_LABEL, BOONE_IDENTIFIERS, names)


def _counts(head: bytes, path: Path) -> tuple[int, int]:
    words = head.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        message = f"{path}: the first line is not two whole numbers, signal and background; is this the right file?"
        raise InputError(message, code="damaged-file")
    return int(words[0]), int(words[1])


def _numbers(body: bytes, path: Path) -> Floats:
    try:
        return np.array(body.split(), dtype=np.float64)
    except ValueError:
        message = f"{path}: an event has a cell that is not a number; get the file again"
        raise InputError(message, code="damaged-file") from None


# The paper's generated classes, by scikit-learn's make_classification (paper: sklearn, sklearn-random)

SKLEARN_LABEL = "class"
SKLEARN_IDENTIFIERS = 5
INFORMATIVE = 20
SKLEARN_COLUMNS = tuple(f"x{number}" for number in range(95))
AUTHORS_SEED = 512

SKLEARN = dataset.DatasetInfo(
    name="sklearn",
    title="generated classes, two halves",
    task=dataset.DatasetTask.CLASSIFICATION,
    measure="accuracy",
    unit="% of records",
    records=(60_000, 60_000),
)
SKLEARN_WITH_RANDOM_IDENTIFIERS = replace(
    SKLEARN,
    name="sklearn-random",
    title="the same, random identifiers",
    scores=paper_scores.SKLEARN_RANDOM,
    note="the authors' script for it is not public",
)


def generate_sklearn(records: int = 60_000) -> SingleTable:
    """Return the authors' complete table; with fewer ``records``, a different table of the same kind.

    >>> generate_sklearn(100)
    SingleTable(sklearn: 100 records, 95 columns)
    """
    from sklearn.datasets import make_classification  # noqa: PLC0415 - takes a second to import

    features, classes = make_classification(
        n_samples=records,
        n_features=len(SKLEARN_COLUMNS),
        n_informative=INFORMATIVE,
        n_redundant=0,
        n_clusters_per_class=3,
        class_sep=0.3,
        shift=None,
        random_state=AUTHORS_SEED,
    )
    frame = pl.DataFrame(features, schema=list(SKLEARN_COLUMNS))
    frame = frame.with_columns(pl.Series(SKLEARN_LABEL, classes, dtype=pl.UInt8))
    return SingleTable(SKLEARN, frame, SKLEARN_LABEL, SKLEARN_IDENTIFIERS, _authors_order())


def generate_sklearn_random(records: int = 60_000) -> SingleTable:
    """Return the same table under its other name; cut it with ``cut_at_random_identifiers``."""
    return replace(generate_sklearn(records), about=SKLEARN_WITH_RANDOM_IDENTIFIERS)


def _authors_order() -> tuple[str, ...]:
    """Return the order: five identifiers, then the other columns shuffled, with those after the first twenty first."""
    rest = np.array([*SKLEARN_COLUMNS[INFORMATIVE:], *SKLEARN_COLUMNS[SKLEARN_IDENTIFIERS:INFORMATIVE]])
    shuffled = rest[np.random.RandomState(AUTHORS_SEED + 1).permutation(len(rest))]
    return (*SKLEARN_COLUMNS[:SKLEARN_IDENTIFIERS], *map(str, shuffled))
