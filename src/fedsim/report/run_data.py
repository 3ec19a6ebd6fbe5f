"""Read runs back from their folders: one in full, with its ladder of methods, or a summary of every run below."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import TypeAdapter, ValidationError

from fedsim.config import Job, PartyFile, party_file, stored_audit
from fedsim.data.table_reader import frame_digest
from fedsim.errors import FileError, InputError, SettingError
from fedsim.protocol.messages import LedgerEntry
from fedsim.runs import record as run_records
from fedsim.runs.run_folder import DONE, read_ledger

AUDIT_FILE = "audit.json"
REPORT_FILE = "report.html"
LADDER_FORMAT = 2
LADDER_FILE = "ladder.json"
LADDER_PATHS = (LADDER_FILE, f"compare/{LADDER_FILE}")  # in a run folder
MAX_DEPTH = 4  # of a run below the folder that is searched
DAMAGED = "damaged"
IGNORED_SETTINGS = ("coordinator", "primary")  # addresses do not change a result


@dataclass(frozen=True)
class RungResult:
    """The scores of one method under one split, over all seeds."""

    key: str
    name: str
    split: str
    values: tuple[float, ...]
    mean: float
    deviation: float | None  # None for one seed
    seconds: float
    improving: bool = False  # when its epochs were over
    low: float | None = None  # of the 95 % interval of the mean; older files have none
    high: float | None = None


@dataclass(frozen=True)
class SideScore:
    """The score without the partner, with a fake one or with the partner, its interval and the chosen models."""

    key: str
    split: str
    estimate: float
    low: float
    high: float
    models: tuple[str, ...]


@dataclass(frozen=True)
class GainEstimate:
    """The gain of one step with its 95 % interval."""

    key: str
    split: str
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class PartnerShare:
    """What one of several secondaries adds, with its 95 % interval, and what its features add to its links."""

    secondary: str
    split: str
    estimate: float
    low: float
    high: float
    features: dict[str, float]  # estimate, low and high


@dataclass(frozen=True)
class LadderResults:
    """All rungs and gains."""

    format: int
    job: str
    unit: str
    metric: str
    task: str
    lower_is_better: bool
    seeds: int
    records: int
    worth: str
    rungs: tuple[RungResult, ...]
    gains: tuple[GainEstimate, ...]
    hash: str = ""  # of the job; older files do not say
    partners: tuple[PartnerShare, ...] = ()  # by split; only where there are several secondaries
    split: str = ""  # of the headline; older files do not say
    models: str = ""  # which methods the headline compares
    headline: str = ""  # the first sentence of ``worth``
    caveats: tuple[str, ...] = ()  # and the others
    sides: tuple[SideScore, ...] = ()  # without the partner, with a fake one, with it; older files have none

    def belongs_to(self, job: str, job_hash: str) -> bool:
        """Return whether these are the results of this job, as far as the file says."""
        return self.job == job and self.hash in ("", job_hash)

    @property
    def splits(self) -> list[str]:
        """All splits, that of the headline first."""
        found = list(dict.fromkeys(rung.split for rung in reversed(self.rungs)))
        return sorted(found, key=lambda split: split != self.split)

    @property
    def metric_text(self) -> str:
        return f"{self.metric} ({self.unit})" if self.unit and self.metric == "rmse" else self.metric


_LADDER_ADAPTER = TypeAdapter(LadderResults)


def read_ladder(folder: Path) -> LadderResults | None:
    """Read the ladder of a run folder; None where there is none."""
    path = next((folder / name for name in LADDER_PATHS if (folder / name).is_file()), None)
    if path is None:
        return None
    try:
        ladder = _LADDER_ADAPTER.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        message = f"{path} cannot be read ({type(error).__name__}); run `fedsim compare` again"
        raise FileError(message, code="ladder-unreadable") from None
    if ladder.format != LADDER_FORMAT or not ladder.rungs:
        message = f"{path} has format {ladder.format}, not {LADDER_FORMAT}; run `fedsim compare` again"
        raise FileError(message, code="ladder-unreadable")
    return ladder


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """Everything a report needs; a ladder or audit (audit.json) of another job is left out, with a note."""

    folder: Path
    record: run_records.RunRecord
    job: Job
    test: pl.DataFrame = field(repr=False)
    ledger: list[LedgerEntry]
    ladder: LadderResults | None
    audit: dict[str, Any] | None = field(repr=False)
    ladder_note: str = ""
    audit_note: str = ""

    @property
    def path_argument(self) -> str:
        """The run folder as a shell argument, relative to the folder of the party file."""
        folder = self.folder.resolve()
        return shlex.quote(f"{folder.parent.name}/{folder.name}")

    @property
    def total_bytes(self) -> int:
        """Bytes sent and received by the primary."""
        return sum(entry.bytes for entry in self.ledger)

    @property
    def groups(self) -> list[run_records.GroupError]:
        """Errors by group, without columns that link records or identify a person."""
        linking = {column for terms in self.job.secondaries.values() for column in terms.columns}
        allowed = [group for group in self.record.groups if not run_records.is_private_column(group.by)]
        return [group for group in allowed if group.by not in linking]


def read_run(folder: Path) -> FinishedRun:
    """Read the run in a primary's run folder."""
    record = run_records.read_run_record(folder)
    test, ledger = run_records.read_test_predictions(folder), read_ledger(folder)
    ladder, ladder_note = read_run_ladder(folder, record)
    audit: dict[str, Any] | None = None
    audit_note, paths = "", (folder / AUDIT_FILE, folder.parent / stored_audit.AUDITS_FOLDER / f"{record.hash}.json")
    path = next((path for path in paths if path.is_file()), None)
    if path is not None:
        try:
            audit = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            audit = {}
        if audit.get("format") != stored_audit.AUDIT_FORMAT:
            message = f"{path} is not an audit of this version; run `fedsim audit` again, or move the file away"
            raise FileError(message, code="audit-unreadable")
        if audit.get("hash") != record.hash:
            audit_note = _other_job_note("audit", str(audit.get("job")))
            audit = None
    return FinishedRun(folder, record, Job.from_dict(record.job), test, ledger, ladder, audit, ladder_note, audit_note)


def read_run_ladder(folder: Path, record: run_records.RunRecord) -> tuple[LadderResults | None, str]:
    """Return the ladder of this job; for the ladder of another job, None and a note."""
    ladder = read_ladder(folder)
    if ladder is None or ladder.belongs_to(str(record.job["name"]), record.hash):
        return ladder, ""
    return None, _other_job_note("comparison", ladder.job)


def _other_job_note(thing: str, job: str) -> str:
    return f"The {thing} in this folder belongs to another job, '{job}', or to other settings; it is not shown."


def read_primary_table(run: FinishedRun, own: PartyFile) -> pl.DataFrame:
    """Read the primary's table; raise an error where it is not the table of the run."""
    if own.name != run.record.party or own.data is None:
        message = f"this is not the party file of '{run.record.party}', the primary of the run; pass that file"
        raise SettingError(message, code="not-the-primary", party=run.record.party)
    frame, expected = own.data.read(), run.record.table
    change = "has changed since the run"
    if len(frame) != expected.records:
        change = f"has {len(frame)} records, but had {expected.records} in the run"
    elif frame_digest(frame) == expected.digest:
        return frame
    message = f"the table of '{own.name}' {change}; restore the table of the run"
    raise InputError(message, code="table-changed", records=len(frame))


def example_identifiers(run: FinishedRun, own: PartyFile) -> Mapping[int, str]:
    """Return the identifiers of the example records by row, for a report that only the owner reads."""
    frame = read_primary_table(run, own)
    agreed = (party_file.identifier_columns(run.job, own, name) for name in run.job.secondaries)
    columns = dict.fromkeys(column for names in agreed for column in names.values())
    rows = dict.fromkeys(example.row for example in run.record.explained)
    return {row: ", ".join(f"{column} {frame[column][row]}" for column in columns) for row in rows}


# Summaries of all runs under a folder.


@dataclass(frozen=True)
class RunSummary:
    """One run; what is not known is None or empty. ``note`` says what is wrong with its folder."""

    folder: str
    job: str = ""
    hash: str = ""
    party: str = ""
    state: str = DAMAGED
    started: str | None = None
    method: str | None = None
    metric: str | None = None
    value: float | None = None
    epochs: int = 0
    seconds: float = 0.0
    bytes: int = 0
    worth: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None


def find_files(folder: Path, name: str) -> Iterator[Path]:
    """Find files of this name in the folder and at most MAX_DEPTH levels below it."""
    for depth in range(MAX_DEPTH + 1):
        yield from folder.glob("/".join(["*"] * depth + [name]))


def list_runs(folder: Path) -> list[RunSummary]:
    """Summarise the finished runs of primaries under a folder, oldest first."""
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder; pass the folder of a party file, or one above it", code="no-folder")
    runs = []
    for place in sorted({path.parent for path in find_files(folder, run_records.RECORD_FILE)}):
        name = str(place.relative_to(folder))
        try:
            runs.append(summarise_run(place, name))
        except FileError as error:
            runs.append(RunSummary(name, note=str(error)))
    return sorted(runs, key=lambda run: (run.started or "9", run.folder))


def find_run(folder: Path) -> Path:
    """Return the folder itself if it holds a finished run, else the only run below it."""
    if (folder / run_records.RECORD_FILE).is_file() or not folder.is_dir():
        return folder
    places = [path.parent for path in find_files(folder, run_records.RECORD_FILE)]
    if len(places) > 1:
        message = f"{len(places)} runs are under {folder}; pass one of them (`fedsim runs {folder}` lists them)"
        raise FileError(message, code="several-runs", runs=len(places))
    return places[0] if places else folder


def differing_settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs, with the value of each run that has settings."""
    finished = [settings for settings in runs if settings]
    keys = dict.fromkeys(key for settings in finished for key in settings)
    values = {key: [settings.get(key) for settings in finished] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def summarise_run(place: Path, name: str) -> RunSummary:
    """Summarise the finished run in a folder under this name."""
    record = run_records.read_run_record(place)
    try:
        ladder, note = read_run_ladder(place, record)
    except FileError as error:
        ladder, note = None, str(error)
    try:
        metric, value = next(iter(record.judged[1].items()), (None, None))
        return RunSummary(
            folder=name,
            job=record.job["name"],
            hash=record.hash[:12],
            party=record.party,
            state=DONE,
            started=record.started,
            method=record.method,
            metric=metric,
            value=value,
            epochs=len(record.history),
            seconds=record.seconds,
            bytes=sum(entry.bytes for entry in read_ledger(place)),
            worth=None if ladder is None else ladder.worth,
            settings=dict(
                flatten_settings({key: part for key, part in record.job.items() if key not in IGNORED_SETTINGS})
            ),
            note=note or None,
        )
    except (LookupError, TypeError) as error:
        message = f"{place / run_records.RECORD_FILE} cannot be read ({type(error).__name__}); restore the file"
        raise FileError(message, code="run-unreadable") from None


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their names with points."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
