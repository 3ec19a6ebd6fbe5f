"""The record of a run at the primary (run.json, test.parquet), with the test error by groups of records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError
from pydantic import TypeAdapter, ValidationError

from fedsim.data.column_names import is_name_part_column, is_personal_column
from fedsim.errors import FileError
from fedsim.storage.files import atomic_write
from fedsim.types import Floats

# What the primary keeps of a run, to repeat it and to report on it: ``run.json`` and ``test.parquet``
#
# Both hold the primary's own columns, labels and predictions, and of the others only what the primary is allowed to
# see. They stay in its run folder, which nobody else may enter.


RECORD_FORMAT = 1
RECORD_FILE, TEST_FILE = "run.json", "test.parquet"
ROW_COLUMN, TRUTH_COLUMN, PREDICTED_COLUMN, CONFIDENCE_COLUMN = "row", "truth", "predicted", "confidence"


@dataclass(frozen=True)
class TableSummary:
    """The primary's table: how many records take which part, and a digest that changes with any cell."""

    records: int
    train: int
    validation: int
    test: int
    digest: str
    label: str
    features: list[str]


@dataclass(frozen=True)
class LinkListSummary:
    """What the primary sees of the links with one secondary.

    ``similarity_by_rank`` has a row per rank with the quantiles 5, 25, 50, 75 and 95 %. ``reuse`` counts candidates by
    the number of records that list them; it is empty, and ``candidates`` none, where the job hides rows.
    """

    secondary: str
    k: int
    records: int
    candidates: int | None
    similarity_by_rank: list[list[float]]
    reuse: list[tuple[int, int]]


@dataclass(frozen=True)
class GateCurve:
    """The learnt weight over the scaled similarity."""

    secondary: str
    similarity: list[float]
    weight: list[float]


@dataclass(frozen=True)
class GateImportance:
    """Mean absolute contribution of every output; a row per partner, the least similar first."""

    secondary: str
    values: list[list[float]]


@dataclass(frozen=True)
class ExamplePartner:
    """A partner of an example record, under a number that means nothing outside the record of the run.

    ``share`` is its part of all that partners contribute to the prediction; it and ``weight`` need gates.
    """

    partner: int
    similarity: float
    weight: float | None
    share: float | None


@dataclass(frozen=True)
class ExampleRecord:
    """A test record by its row in the primary's own table, with its best partners at one secondary, nearest first."""

    row: int
    secondary: str
    partners: list[ExamplePartner]


@dataclass(frozen=True)
class GroupError:
    """How well the test records of one group are predicted; ``bias`` is the mean of predicted less true numbers.

    ``error`` is the root mean square of that for numbers, the share of wrong ones for classes.
    """

    by: str
    group: str
    records: int
    error: float
    bias: float | None


@dataclass(frozen=True)
class PhaseCost:
    """``peak_bytes`` is the most memory that the process had until the phase ended."""

    name: str
    seconds: float
    peak_bytes: int


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run at the primary."""

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
    examples: list[ExampleRecord] = field(default_factory=list, repr=False)  # runs of earlier releases have none

    @property
    def task(self) -> str:
        """``regression`` or ``classification``."""
        return str(self.job["task"]["kind"])

    @property
    def judged(self) -> tuple[str, dict[str, float]]:
        """The records that judge the model, those of the test where there are any, and their metrics."""
        part = "test" if "test" in self.metrics else "validation"
        return part, self.metrics[part]

    @property
    def method(self) -> str:
        """The word of the job."""
        return str(self.job["training"]["method"])


_RECORD = TypeAdapter(RunRecord)


def write_run_record(folder: Path, record: RunRecord, test: pl.DataFrame) -> None:
    """Keep a run; the record comes last, so that where it is, nothing is missing."""
    with atomic_write(folder / TEST_FILE, mode=0o600) as part:
        test.write_parquet(part)
    with atomic_write(folder / RECORD_FILE, mode=0o600) as part:
        part.write_bytes(_RECORD.dump_json(record, indent=1))


def read_run_record(folder: Path) -> RunRecord:
    """The run that a folder keeps."""
    path = folder / RECORD_FILE
    try:
        record = _RECORD.validate_json(path.read_bytes())
    except OSError as error:
        raise FileError(
            f"{folder} holds no finished run ({RECORD_FILE}: {error.strerror}); name the run folder of a primary whose "
            "training has ended"
        ) from error
    except ValidationError as error:
        where = ".".join(str(place) for place in error.errors()[0]["loc"]) or "its text"
        raise FileError(f"{path} cannot be read at {where}; train again, or bring back the file") from None
    if record.format != RECORD_FORMAT:
        raise FileError(
            f"{path} has format {record.format}, this release reads {RECORD_FORMAT}; use the release that wrote it"
        )
    return record


def read_test_predictions(folder: Path) -> pl.DataFrame:
    """Truth and prediction of every test record."""
    path = folder / TEST_FILE
    try:
        return pl.read_parquet(path)
    except (OSError, PolarsError) as error:
        raise FileError(
            f"{path} cannot be read ({type(error).__name__}); train again, or bring back the file"
        ) from None


# Where a model errs: the error of the test records by groups of the primary's own columns and by similarity
#
# Groups are told in reports, which are passed on: no name of a group is one record's value, and columns that say who
# somebody is have no groups.


MIN_GROUP_SIZE = 10  # records of a group; a smaller one is not told
N_BINS = 5  # of a column of numbers
MAX_CATEGORIES = 6  # of a column of words
MAX_GROUP_COLUMNS = 40
EDGE_DIGITS = 3  # that count, of an edge that few records have
OTHER_GROUP = "other"
NEAREST_SIMILARITY = "similarity to the nearest of "  # then the secondary's name, which is no column's
ColumnGroup = tuple[str, NDArray[np.bool_]]


def errors_by_group(columns: Mapping[str, pl.Series], wrong: Floats, *, numbers: bool) -> list[GroupError]:
    """Errors by group for every column; ``wrong`` is predicted less true, or 1 where a class is wrong.

    >>> town = pl.Series(["a"] * 10 + ["b"] * 10 + ["c"])
    >>> [(g.group, g.error) for g in errors_by_group({"town": town}, np.repeat([0.0, 2.0, 9.0], [10, 10, 1]), numbers=True)]
    [('a', 0.0), ('b', 2.0)]
    """
    told = [name for name in columns if not identifies_person(name)][:MAX_GROUP_COLUMNS]
    found = [
        _group_error(name, group, wrong[inside], numbers)
        for name in told
        for group, inside in _column_groups(columns[name])
        if inside.sum() >= MIN_GROUP_SIZE
    ]
    return [group for group in found if math.isfinite(group.error)]


def identifies_person(column: str) -> bool:
    """Whether a column's name says that it tells who somebody is.

    >>> [identifies_person(name) for name in ("last_name", "firstName", "e-mail", "tournaments", "first_floor_area", "area")]
    [True, True, True, False, True, False]
    """
    return not column.startswith(NEAREST_SIMILARITY) and (is_personal_column(column) or is_name_part_column(column))


def _group_error(by: str, group: str, inside: Floats, numbers: bool) -> GroupError:
    if numbers:
        with np.errstate(over="ignore"):
            return GroupError(by, group, len(inside), float(np.sqrt(np.square(inside).mean())), float(inside.mean()))
    return GroupError(by, group, len(inside), float(inside.mean()), None)


def _column_groups(column: pl.Series) -> list[ColumnGroup]:
    """Names and members, in the order in which they are told; none for a column that has no natural groups."""
    if column.dtype.is_numeric():
        values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        several = np.unique(values[np.isfinite(values)])
        return (
            _number_bins(values)
            if len(several) > N_BINS
            else [(_format_number(value), values == value) for value in several]
        )
    return _category_groups(column.cast(pl.String)) if column.dtype in (pl.String, pl.Boolean) else []


def _number_bins(values: Floats) -> list[ColumnGroup]:
    """Numbers in parts of about equal size, from small to large; the outer ones are open, for their ends are records'.

    >>> [name for name, _ in _number_bins(np.linspace(10123.0, 98765.0, 200))]
    ['below 27,900', '27,900 to below 45,800', '45,800 to below 63,600', '63,600 to below 81,400', '81,400 and more']
    >>> [name for name, _ in _number_bins(np.repeat([0, 0, 1, 2, 3, 5, 6, 7, 8, 9], 20).astype(float))]
    ['0', '1 to 2', '3 to 5', '6 to 7', '8 and more']
    """
    finite = values[np.isfinite(values)]
    inner = np.quantile(finite, np.arange(1, N_BINS) / N_BINS, method="higher")
    edges = np.unique([_bin_edge(float(edge), finite) for edge in inner])
    place = np.searchsorted(edges, values, side="right")
    whole = bool((finite == np.floor(finite)).all())
    between = [_bin_name(float(low), float(high), whole) for low, high in pairwise(edges)]
    names = [f"below {_format_number(float(edges[0]))}", *between, f"{_format_number(float(edges[-1]))} and more"]
    parts = [(name, (place == number) & ~np.isnan(values)) for number, name in enumerate(names)]
    return [(_single_value(values[inside]) or name, inside) for name, inside in parts]


def _bin_name(low: float, high: float, whole: bool) -> str:
    return (
        f"{_format_number(low)} to {_format_number(high - 1)}"
        if whole
        else f"{_format_number(low)} to below {_format_number(high)}"
    )


def _single_value(values: Floats) -> str:
    """The number that all of them are, where they are one and enough records have it."""
    same = len(values) >= MIN_GROUP_SIZE and np.isfinite(values[0]) and (values == values[0]).all()
    return _format_number(float(values[0])) if same else ""


def _bin_edge(edge: float, values: Floats) -> float:
    """The edge itself where many records have it, such as a year, else a rounded one."""
    return edge if (values == edge).sum() >= MIN_GROUP_SIZE else float(f"{edge:.{EDGE_DIGITS}g}")


def _format_number(value: float) -> str:
    return f"{value:,.10g}" if abs(value) >= 1e4 else f"{value:.10g}"


def _category_groups(column: pl.Series) -> list[ColumnGroup]:
    """The commonest words in their order, and one group for all others."""
    common = sorted(column.drop_nulls().value_counts(sort=True).head(MAX_CATEGORIES).to_series(0).to_list())
    members = [(word, (column == word).fill_null(False).to_numpy()) for word in common]
    others = (~column.is_in(common)).fill_null(False).to_numpy()
    return [*members, (OTHER_GROUP, others)]
