"""The record of a run at the primary (run.json, test.parquet), with the test error by groups of records.

Both files contain the primary's columns, labels and predictions, and of other parties only what the primary may see.
They stay in its run folder, which only the primary can read.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from polars.exceptions import PolarsError
from pydantic import TypeAdapter, ValidationError

from fedsim.config.toml_file import without_unused
from fedsim.data.column_names import is_name_part_column, is_personal_column
from fedsim.errors import FileError
from fedsim.storage.files import atomic_write
from fedsim.types import Explanation, Flags, Floats

RECORD_FORMAT = 1
RECORD_FILE, TEST_FILE, UNLABELLED_FILE = "run.json", "test.parquet", "unlabelled.csv"
ROW_COLUMN, TRUTH_COLUMN, PREDICTED_COLUMN, CONFIDENCE_COLUMN = "row", "truth", "predicted", "confidence"
PREDICTION_COLUMN = "prediction"  # of records without a label, as in the output of `fedsim predict`
LOWER_COLUMN, UPPER_COLUMN = "lower", "upper"  # of numbers; missing in earlier releases


@dataclass(frozen=True)
class TableSummary:
    """The primary's table: the sizes of the split, and a digest that changes with any cell."""

    records: int
    train: int
    validation: int
    test: int
    digest: str
    label: str
    features: list[str]
    unlabelled: int = 0
    kinds: dict[str, str] = field(default_factory=dict)  # what each feature becomes; missing in earlier releases


@dataclass(frozen=True)
class LinkListSummary:
    """What the primary sees of the links with one secondary.

    ``similarity_by_rank`` has the quantiles 5, 25, 50, 75 and 95 % for each rank. ``reuse`` counts candidates by the
    number of records that they are partners of; it is empty, and ``candidates`` is None, if the job hides rows.
    """

    secondary: str
    k: int
    records: int
    candidates: int | None
    similarity_by_rank: list[list[float]]
    reuse: list[tuple[int, int]]
    unmatched: float | None = None  # mean probability of no match among test records; None without a match gate
    fill: float | None = None  # this and the next two: see fedsim.linkage.encoding.quality.ReceivedQuality
    tied: float | None = None
    far: float | None = None
    unlinked: float | None = None  # of jobs without a coordinator, as the next two
    opened: int | None = None
    evaluated: int | None = None


@dataclass(frozen=True)
class GateCurve:
    """The learnt weight as a function of the scaled similarity."""

    secondary: str
    similarity: list[float]
    weight: list[float]


@dataclass(frozen=True)
class GateImportance:
    """Mean absolute contribution of every output, with a row per partner from least to most similar."""

    secondary: str
    values: list[list[float]]


@dataclass(frozen=True)
class ExampleRecord:
    """A test record by its row in the primary's table, with its label and why it is predicted as it is."""

    row: int
    truth: Any
    explanation: Explanation


@dataclass(frozen=True)
class AbsenceMetrics:
    """The metrics of the test records while one secondary is away, or none (None)."""

    away: str | None
    records: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class TreeSummary:
    """The trees beside the network: their share of the weight, and what they see beside the primary's features.

    ``names`` are columns of which they see trigrams, ``partners`` the secondaries of which they see an embedding. Trees
    that did not help on the validation records have no weight and see nothing.
    """

    weight: float
    names: list[str] = field(default_factory=list)
    partners: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CalibrationSummary:
    """How one temperature, fitted on the validation records, changes the probabilities of a part of the records.

    ``of`` is ``network``, or ``network and trees`` for what both predict together. ``log_loss`` and ``gap``, the mean
    difference between confidence and accuracy, are each before and after.
    """

    of: str
    part: str
    temperature: float
    log_loss: tuple[float, float]
    gap: tuple[float, float]


@dataclass(frozen=True)
class GroupError:
    """The test error of one group of records.

    ``error`` is the root mean square error for numbers and the share of wrong predictions for classes; ``bias`` is the
    mean of predicted minus true numbers. ``low`` and ``high`` are 95 % intervals that hold for all groups together, so
    that groups whose intervals do not overlap differ.
    """

    by: str
    group: str
    records: int
    error: float
    bias: float | None
    low: float | None = None  # missing in earlier releases
    high: float | None = None


@dataclass(frozen=True)
class PhaseCost:
    """Duration of a phase; ``peak_bytes`` is the peak memory of the process until its end."""

    name: str
    seconds: float
    peak_bytes: int


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run at the primary."""

    job: dict[str, Any]
    hash: str
    party: str
    started: str
    seconds: float
    versions: dict[str, str]
    machine: dict[str, str]
    config: dict[str, Any]
    table: TableSummary = field(repr=False)
    classes: list[Any] = field(repr=False)
    history: list[dict[str, Any]]
    best_epoch: int
    metrics: dict[str, dict[str, float]]
    lists: list[LinkListSummary]
    curves: list[GateCurve]
    importances: list[GateImportance]
    groups: list[GroupError] = field(repr=False)
    phases: list[PhaseCost]
    format: int = RECORD_FORMAT
    explained: list[ExampleRecord] = field(default_factory=list, repr=False)  # missing in earlier releases
    absence: list[AbsenceMetrics] = field(default_factory=list)  # only if the job was trained with party dropout
    trees: TreeSummary | None = None  # only of methods with trees; missing in earlier releases
    calibration: list[CalibrationSummary] = field(default_factory=list)  # of classes; missing in earlier releases

    @property
    def task(self) -> str:
        """``regression`` or ``classification``."""
        return str(self.job["task"]["kind"])

    @property
    def judged(self) -> tuple[str, dict[str, float]]:
        """The part of the records that the model is judged by, test if there is one, and its metrics."""
        part = "test" if "test" in self.metrics else "validation"
        return part, self.metrics[part]

    @property
    def method(self) -> str:
        """The method of the job."""
        return str(self.job["training"]["method"])


_RECORD = TypeAdapter(RunRecord)


def write_run_record(
    folder: Path, record: RunRecord, test: pl.DataFrame, unlabelled: pl.DataFrame | None = None
) -> None:
    """Store a run; the record is written last, so that its presence means that the run is complete.

    ``unlabelled`` has the predictions of records without a label; without such records no file is written.
    """
    if unlabelled is not None and len(unlabelled):
        with atomic_write(folder / UNLABELLED_FILE, mode=0o600) as part:
            unlabelled.write_csv(part)
    with atomic_write(folder / TEST_FILE, mode=0o600) as part:
        test.write_parquet(part)
    with atomic_write(folder / RECORD_FILE, mode=0o600) as part:
        part.write_bytes(_RECORD.dump_json(record, indent=1))


def read_run_record(folder: Path) -> RunRecord:
    """Read the run that a folder contains."""
    path = folder / RECORD_FILE
    try:
        record = _RECORD.validate_json(path.read_bytes())
    except OSError as error:
        message = f"{folder} has no finished run ({RECORD_FILE}: {error.strerror})"
        hint = "give the run folder of a primary whose training has ended"
        raise FileError(f"{message}; {hint}", code="no-run-record") from error
    except ValidationError as error:
        where = ".".join(str(place) for place in error.errors()[0]["loc"]) or "its text"
        message = f"{path} is invalid at {where}; restore the file, or train again"
        raise FileError(message, code="invalid-run-record", setting=where) from None
    if record.format != RECORD_FORMAT:
        message = f"{path} has format {record.format}, but this release reads {RECORD_FORMAT}"
        raise FileError(f"{message}; use the release that wrote it", code="other-format", format=record.format)
    return replace(record, job=without_unused(record.job))


def read_test_predictions(folder: Path) -> pl.DataFrame:
    """Read truth and prediction of every test record."""
    path = folder / TEST_FILE
    try:
        return pl.read_parquet(path)
    except (OSError, PolarsError) as error:
        message = f"cannot read {path} ({type(error).__name__}); restore the file, or train again"
        raise FileError(message, code="unreadable-file") from None


# Test error by groups of records. Reports are passed on, so no group is named by the value of a single record, and
# columns that identify persons have no groups.

SIGNIFICANCE = 0.05  # of the intervals of all groups together
MIN_GROUP_SIZE = 10  # smaller groups are not reported
N_BINS = 5  # of a numeric column
MAX_CATEGORIES = 6  # of a text column
MAX_GROUP_COLUMNS = 40
EDGE_DIGITS = 3  # significant digits of a bin edge that is the value of few records
OTHER_GROUP = "other"
NEAREST_SIMILARITY = "similarity to the nearest of "  # followed by the secondary's name; not a column of the table
ColumnGroup = tuple[str, Flags]


def errors_by_group(columns: Mapping[str, pl.Series], wrong: Floats, *, numbers: bool) -> list[GroupError]:
    """Return the error of every group of every column.

    Parameters
    ----------
    columns
        The columns of the test records by name.
    wrong
        Predicted minus true value for ``numbers``; for classes 1 if the prediction is wrong, else 0.
    numbers
        Whether the label is a number.

    Examples
    --------
    >>> town = pl.Series(["a"] * 10 + ["b"] * 10 + ["c"])
    >>> groups = errors_by_group({"town": town}, np.repeat([0.0, 2.0, 9.0], [10, 10, 1]), numbers=True)
    >>> [(group.group, group.error) for group in groups]
    [('a', 0.0), ('b', 2.0)]
    """
    groups = [
        (name, group, wrong[inside])
        for name in [name for name in columns if not is_private_column(name)][:MAX_GROUP_COLUMNS]
        for group, inside in _column_groups(columns[name])
        if inside.sum() >= MIN_GROUP_SIZE
    ]
    found, interval = [], _error_interval if numbers else _share_interval
    deviations = NormalDist().inv_cdf(1 - SIGNIFICANCE / 2 / max(1, len(groups)))  # Bonferroni
    for name, group, errors in groups:
        with np.errstate(over="ignore", invalid="ignore"):
            error = float(np.sqrt(np.square(errors).mean()) if numbers else errors.mean())
            low, high = interval(errors, deviations)
        if math.isfinite(error):
            ends = (low, high) if math.isfinite(high) else (None, None)
            found.append(GroupError(name, group, len(errors), error, float(errors.mean()) if numbers else None, *ends))
    return found


def _error_interval(errors: Floats, deviations: float) -> tuple[float, float]:
    """Return an interval of a root mean square error, by the standard error of the mean square.

    >>> _error_interval(np.array([1.0, -1.0, 1.0, -1.0]), 2.0)
    (1.0, 1.0)
    """
    squares = np.square(errors)
    middle, reach = squares.mean(), deviations * squares.std(ddof=1) / math.sqrt(len(squares))
    return float(np.sqrt(max(0.0, middle - reach))), float(np.sqrt(middle + reach))


def _share_interval(wrong: Floats, deviations: float) -> tuple[float, float]:
    """Return the interval of Wilson of a share.

    >>> [round(end, 3) for end in _share_interval(np.array([1.0] + [0.0] * 9), 1.96)]
    [0.018, 0.404]
    """
    n, share, squared = len(wrong), float(wrong.mean()), deviations**2
    middle = (share + squared / (2 * n)) / (1 + squared / n)
    reach = deviations / (1 + squared / n) * math.sqrt(share * (1 - share) / n + squared / (4 * n * n))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def is_private_column(column: str) -> bool:
    """Return whether a column identifies persons, by its name.

    >>> names = ("last_name", "firstName", "e-mail", "tournaments", "first_floor_area", "area")
    >>> [is_private_column(name) for name in names]
    [True, True, True, False, True, False]
    """
    return not column.startswith(NEAREST_SIMILARITY) and (is_personal_column(column) or is_name_part_column(column))


def _column_groups(column: pl.Series) -> list[ColumnGroup]:
    """Return names and members of the groups of a column; empty for types without natural groups."""
    if column.dtype.is_numeric():
        values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        distinct = np.unique(values[np.isfinite(values)])
        if len(distinct) > N_BINS:
            return _number_bins(values)
        return [(_format_number(value), values == value) for value in distinct]
    if column.dtype not in (pl.String, pl.Boolean):
        return []
    words = column.cast(pl.String)
    common = sorted(words.drop_nulls().value_counts(sort=True).head(MAX_CATEGORIES).to_series(0).to_list())
    groups = [(word, (words == word).fill_null(False).to_numpy()) for word in common]
    return [*groups, (OTHER_GROUP, (~words.is_in(common)).fill_null(False).to_numpy())]


def _number_bins(values: Floats) -> list[ColumnGroup]:
    """Return bins of about equal size; the outer ones are open, because their ends would be values of records.

    >>> [name for name, _ in _number_bins(np.linspace(10123.0, 98765.0, 200))]
    ['below 27,900', '27,900 to below 45,800', '45,800 to below 63,600', '63,600 to below 81,400', '81,400 and more']
    >>> [name for name, _ in _number_bins(np.repeat([0, 0, 1, 2, 3, 5, 6, 7, 8, 9], 20).astype(float))]
    ['0', '1 to 2', '3 to 5', '6 to 7', '8 and more']
    """
    finite = values[np.isfinite(values)]
    inner = np.quantile(finite, np.arange(1, N_BINS) / N_BINS, method="higher")
    # An edge that many records have, such as a year, stays as it is.
    common = [(finite == edge).sum() >= MIN_GROUP_SIZE for edge in inner]
    rounded = [float(f"{edge:.{EDGE_DIGITS}g}") for edge in inner]
    edges = np.unique(np.where(common, inner, rounded))
    bins = np.searchsorted(edges, values, side="right")
    integers = bool((finite == np.floor(finite)).all())
    between = [
        f"{_format_number(low)} to {_format_number(high - 1) if integers else f'below {_format_number(high)}'}"
        for low, high in pairwise(edges)
    ]
    names = [f"below {_format_number(edges[0])}", *between, f"{_format_number(edges[-1])} and more"]
    groups = []
    for number, name in enumerate(names):
        inside = (bins == number) & ~np.isnan(values)
        members = values[inside]
        single = len(members) >= MIN_GROUP_SIZE and np.isfinite(members[0]) and (members == members[0]).all()
        groups.append((_format_number(members[0]) if single else name, inside))
    return groups


def _format_number(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1e4 else f"{value:.10g}"
