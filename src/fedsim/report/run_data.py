"""Read runs back from their folders: one in full, or a summary of each run under a folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile, identifier_columns
from fedsim.data.table_reader import read_table
from fedsim.errors import FileError, InputError, SettingError
from fedsim.protocol.messages import LedgerEntry
from fedsim.report.ladder import LadderResults, read_ladder
from fedsim.runs.progress import DONE, RUNNING
from fedsim.runs.progress import PROGRESS_FILE as PROGRESS
from fedsim.runs.record import (
    RECORD_FILE,
    GroupError,
    RunRecord,
    is_private_column,
    read_run_record,
    read_test_predictions,
)
from fedsim.runs.run_folder import read_ledger
from fedsim.runtime.run_store import frame_digest

# A finished run as its folder tells it: the record, the test records, the ledger, and ladder and audit where made


AUDIT_FILE = "audit.json"
AUDIT_FORMAT = "fedsim audit 1"


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """Everything a report needs; ``audit`` is what ``fedsim audit`` wrote, as it stands there.

    Ladder and audit of another job are none; their notes say so.
    """

    folder: Path
    record: RunRecord
    job: Job
    test: pl.DataFrame = field(repr=False)
    ledger: list[LedgerEntry]
    ladder: LadderResults | None
    audit: dict[str, Any] | None = field(repr=False)
    ladder_note: str = ""
    audit_note: str = ""

    @property
    def place(self) -> str:
        """The folder as one types it beside the party's folder."""
        whole = self.folder.resolve()
        return shlex.quote(f"{whole.parent.name}/{whole.name}")

    @property
    def total_bytes(self) -> int:
        """What crossed the primary's border, both ways."""
        return sum(entry.bytes for entry in self.ledger)

    @property
    def groups(self) -> list[GroupError]:
        """Errors by group, without the columns that link records or say who somebody is."""
        linking = {column for terms in self.job.secondaries.values() for column in terms.encoding.columns}
        return [group for group in self.record.groups if group.by not in linking and not is_private_column(group.by)]


def read_run(folder: Path) -> FinishedRun:
    """The run that a primary's folder keeps."""
    record = read_run_record(folder)
    job, test, ledger = Job.from_dict(record.job), read_test_predictions(folder), read_ledger(folder)
    ladder, ladder_note = read_run_ladder(folder, record)
    audit, audit_note = _read_run_audit(folder, record)
    return FinishedRun(folder, record, job, test, ledger, ladder, audit, ladder_note, audit_note)


def read_run_ladder(folder: Path, record: RunRecord) -> tuple[LadderResults | None, str]:
    """The ladder of this very job; for that of another one none, and a note."""
    ladder = read_ladder(folder)
    if ladder is None or ladder.belongs_to(str(record.job["name"]), record.hash):
        return ladder, ""
    return None, _other_job_note("ladder", ladder.job)


def _read_run_audit(folder: Path, record: RunRecord) -> tuple[dict[str, Any] | None, str]:
    audit = _read_audit(folder)
    if audit is None or audit.get("hash") == record.hash:
        return audit, ""
    return None, _other_job_note("audit", str(audit.get("job")))


def _other_job_note(thing: str, job: str) -> str:
    return f"The {thing} in this folder belongs to another job, '{job}', or to other settings, and is not shown."


def _read_audit(folder: Path) -> dict[str, Any] | None:
    path = folder / AUDIT_FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] == AUDIT_FORMAT:
            return dict(found)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise FileError(f"{path} was not written by `fedsim audit` of this release; run it again, or move the file away")


# The primary's own table as it was when the run was made, for pages whose owner asks for more than counts


def read_primary_table(run: FinishedRun, own: PartyFile) -> pl.DataFrame:
    """All columns, as the file has them; another table than that of the run is refused."""
    if own.name != run.record.party or own.data is None:
        raise SettingError(f"the page takes the file of '{run.record.party}', the primary of this run; name that file")
    frame, made = read_table(own.data.source, separator=own.data.separator), run.record.table
    if len(frame) != made.records:
        raise InputError(
            f"the table of '{own.name}' has {len(frame)} records, the run was made with {made.records}; bring back the "
            "table of then"
        )
    if frame_digest(frame) != made.digest:
        raise InputError(f"the table of '{own.name}' has changed since the run was made; bring back the table of then")
    return frame


def example_identifiers(run: FinishedRun, own: PartyFile) -> Mapping[int, str]:
    """The identifiers of the example records, by row: for the owner's eyes."""
    frame = read_primary_table(run, own)
    columns = dict.fromkeys(
        column for name in run.job.secondaries for column in identifier_columns(run.job, own, name).values()
    )
    rows = dict.fromkeys(example.row for example in run.record.examples)
    return {row: ", ".join(f"{column} {frame[column][row]}" for column in columns) for row in rows}


# The runs under a folder, side by side: how good, how long, how much on the wire, and where their settings differ


MAX_DEPTH = 4
SILENT_AFTER = 20.0  # seconds, as on the board; a party that runs gives a sign of life every five
DIED, DAMAGED = "died", "damaged"
IGNORED_SETTINGS = ("coordinator", "primary")  # addresses change nothing


@dataclass(frozen=True)
class RunSummary:
    """One run; what is not known yet is none. ``note`` says what is wrong with its folder."""

    folder: str
    job: str
    hash: str
    party: str
    state: str
    started: str | None
    method: str | None
    metric: str | None
    value: float | None
    epochs: int
    seconds: float
    bytes: int
    worth: str | None
    settings: Mapping[str, Any]
    note: str | None = None


def list_runs(folder: Path, now: datetime | None = None) -> list[RunSummary]:
    """Finished runs of primaries, and those that run, have failed or died, oldest first."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}; name the folder of a party file, or one above it")
    places = sorted({path.parent for name in (RECORD_FILE, PROGRESS) for path in _find_files(folder, name)})
    moment = now or datetime.now(UTC)
    lines = [line for place in places if (line := _summarise(place, folder, moment)) is not None]
    return sorted(lines, key=lambda line: (line.started or "9", line.folder))


def find_run(folder: Path) -> Path:
    """The folder itself where it holds a finished run, else the only one below it."""
    if (folder / RECORD_FILE).is_file() or not folder.is_dir():
        return folder
    places = [path.parent for path in _find_files(folder, RECORD_FILE)]
    if len(places) > 1:
        raise FileError(f"{len(places)} runs lie under {folder}; name one of them, `fedsim runs {folder}` lists them")
    return places[0] if places else folder


def differing_settings(lines: Sequence[RunSummary]) -> dict[str, list[Any]]:
    """Settings that are not the same in all finished runs, with the value of each of them."""
    finished = [line for line in lines if line.settings]
    keys = dict.fromkeys(key for line in finished for key in line.settings)
    values = {key: [line.settings.get(key) for line in finished] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def _find_files(folder: Path, name: str) -> Iterator[Path]:
    for depth in range(MAX_DEPTH + 1):
        yield from folder.glob("/".join(["*"] * depth + [name]))


def _summarise(place: Path, above: Path, now: datetime) -> RunSummary | None:
    name = str(place.relative_to(above))
    try:
        return (
            _summarise_finished(place, name)
            if (place / RECORD_FILE).is_file()
            else _summarise_unfinished(place, name, now)
        )
    except FileError as fault:
        return _summarise_damaged(name, str(fault))


def _summarise_finished(place: Path, name: str) -> RunSummary:
    record = read_run_record(place)
    worth, note = _contribution(place, record)
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
            worth=worth,
            settings=dict(_flatten({key: found for key, found in record.job.items() if key not in IGNORED_SETTINGS})),
            note=note,
        )
    except (LookupError, TypeError) as error:
        raise FileError(f"{place / RECORD_FILE} cannot be read ({type(error).__name__}); bring back the file") from None


def _contribution(place: Path, record: RunRecord) -> tuple[str | None, str | None]:
    """What the partner is worth, and what is wrong with the ladder that should tell it."""
    try:
        ladder, note = read_run_ladder(place, record)
    except FileError as fault:
        return None, str(fault)
    return None if ladder is None else ladder.worth, note or None


def _summarise_unfinished(place: Path, name: str, now: datetime) -> RunSummary | None:
    """A primary that is at work, has failed or died; the other parties keep no results."""
    try:
        found = json.loads((place / PROGRESS).read_text(encoding="utf-8"))
        if found["role"] != "primary":
            return None
        return RunSummary(
            folder=name,
            job=found["job"],
            hash=found["hash"][:12],
            party=found["party"],
            state=_state(found, now),
            started=None,
            method=None,
            metric=None,
            value=None,
            epochs=len(found["training"].get("history", [])),
            seconds=found["seconds"],
            bytes=sum(entry["bytes"] for entry in found["ledger"]),
            worth=None,
            settings={},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileError(f"{place / PROGRESS} cannot be read ({type(error).__name__}); remove it") from None


def _state(found: Mapping[str, Any], now: datetime) -> str:
    """What the party wrote last; one that says it runs and has long been silent was killed."""
    silent = (now - datetime.fromisoformat(found["updated"])).total_seconds()
    return DIED if found["state"] == RUNNING and silent > SILENT_AFTER else str(found["state"])


def _summarise_damaged(name: str, reason: str) -> RunSummary:
    unknown: dict[str, Any] = dict.fromkeys(("started", "method", "metric", "value", "worth"))
    return RunSummary(
        folder=name,
        job="",
        hash="",
        party="",
        state=DAMAGED,
        epochs=0,
        seconds=0.0,
        bytes=0,
        settings={},
        note=reason,
        **unknown,
    )


def _flatten(words: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in words.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
