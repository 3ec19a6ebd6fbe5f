"""What the primary keeps of a run, to repeat it and to report on it: ``run.json`` and ``test.parquet``.

Both hold the primary's own columns, labels and predictions, and of the others only what the primary is allowed to see.
They stay in its run folder, which nobody else may enter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError
from pydantic import TypeAdapter, ValidationError

from fedsim.errors import FileError
from fedsim.linkage.whole_file import whole_file

FORMAT = 1
RECORD, TEST = "run.json", "test.parquet"
ROW, TRUTH, PREDICTED, CONFIDENCE = "row", "truth", "predicted", "confidence"


@dataclass(frozen=True)
class TableFacts:
    """The primary's table: how many records take which part, and a digest that changes with any cell."""

    records: int
    train: int
    validation: int
    test: int
    digest: str
    label: str
    features: list[str]


@dataclass(frozen=True)
class ListSeen:
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
class PartnerSeen:
    """A partner of an example record, under a number that means nothing outside the record of the run.

    ``share`` is its part of all that partners contribute to the prediction; it and ``weight`` need gates.
    """

    partner: int
    similarity: float
    weight: float | None
    share: float | None


@dataclass(frozen=True)
class Example:
    """A test record by its row in the primary's own table, with its best partners at one secondary, nearest first."""

    row: int
    secondary: str
    partners: list[PartnerSeen]


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
    table: TableFacts = field(repr=False)
    classes: list[Any] = field(repr=False)
    history: list[dict[str, Any]]
    best_epoch: int
    metrics: dict[str, dict[str, float]]
    lists: list[ListSeen]
    curves: list[GateCurve]
    importances: list[GateImportance]
    groups: list[GroupError] = field(repr=False)
    phases: list[PhaseCost]
    format: int = FORMAT
    examples: list[Example] = field(default_factory=list, repr=False)  # runs of earlier releases have none

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


def write_record(folder: Path, record: RunRecord, test: pl.DataFrame) -> None:
    """Keep a run; the record comes last, so that where it is, nothing is missing."""
    with whole_file(folder / TEST, mode=0o600) as part:
        test.write_parquet(part)
    with whole_file(folder / RECORD, mode=0o600) as part:
        part.write_bytes(_RECORD.dump_json(record, indent=1))


def read_record(folder: Path) -> RunRecord:
    """The run that a folder keeps."""
    path = folder / RECORD
    try:
        record = _RECORD.validate_json(path.read_bytes())
    except OSError as error:
        raise FileError(
            f"{folder} holds no finished run ({RECORD}: {error.strerror}); name the run folder of a primary whose "
            "training has ended"
        ) from error
    except ValidationError as error:
        where = ".".join(str(place) for place in error.errors()[0]["loc"]) or "its text"
        raise FileError(f"{path} cannot be read at {where}; train again, or bring back the file") from None
    if record.format != FORMAT:
        raise FileError(
            f"{path} has format {record.format}, this release reads {FORMAT}; use the release that wrote it"
        )
    return record


def read_test(folder: Path) -> pl.DataFrame:
    """Truth and prediction of every test record."""
    path = folder / TEST
    try:
        return pl.read_parquet(path)
    except (OSError, PolarsError) as error:
        raise FileError(
            f"{path} cannot be read ({type(error).__name__}); train again, or bring back the file"
        ) from None
