"""The runs under a folder, side by side: how good, how long, how much on the wire, and where their settings differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsim.errors import FileError
from fedsim.party.ledger_file import read_ledger
from fedsim.party.run_progress import DONE, RUNNING
from fedsim.party.run_progress import FILE as PROGRESS
from fedsim.party.run_record import RECORD, RunRecord, read_record
from fedsim.report.run import own_ladder

DEEPEST = 4
SILENT_AFTER = 20.0  # seconds, as on the board; a party that runs gives a sign of life every five
DIED, DAMAGED = "died", "damaged"
NOT_COMPARED = ("coordinator", "primary")  # addresses change nothing


@dataclass(frozen=True)
class RunLine:
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


def runs_under(folder: Path, now: datetime | None = None) -> list[RunLine]:
    """Finished runs of primaries, and those that run, have failed or died, oldest first."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}; name the folder of a party file, or one above it")
    places = sorted({path.parent for name in (RECORD, PROGRESS) for path in _found(folder, name)})
    moment = now or datetime.now(UTC)
    lines = [line for place in places if (line := _line(place, folder, moment)) is not None]
    return sorted(lines, key=lambda line: (line.started or "9", line.folder))


def the_run(folder: Path) -> Path:
    """The folder itself where it holds a finished run, else the only one below it."""
    if (folder / RECORD).is_file() or not folder.is_dir():
        return folder
    places = [path.parent for path in _found(folder, RECORD)]
    if len(places) > 1:
        raise FileError(f"{len(places)} runs lie under {folder}; name one of them, `fedsim runs {folder}` lists them")
    return places[0] if places else folder


def differing(lines: Sequence[RunLine]) -> dict[str, list[Any]]:
    """Settings that are not the same in all finished runs, with the value of each of them."""
    finished = [line for line in lines if line.settings]
    keys = dict.fromkeys(key for line in finished for key in line.settings)
    values = {key: [line.settings.get(key) for line in finished] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def _found(folder: Path, name: str) -> Iterator[Path]:
    for depth in range(DEEPEST + 1):
        yield from folder.glob("/".join(["*"] * depth + [name]))


def _line(place: Path, above: Path, now: datetime) -> RunLine | None:
    name = str(place.relative_to(above))
    try:
        return _finished(place, name) if (place / RECORD).is_file() else _unfinished(place, name, now)
    except FileError as fault:
        return _damaged(name, str(fault))


def _finished(place: Path, name: str) -> RunLine:
    record = read_record(place)
    worth, note = _worth(place, record)
    try:
        metric, value = next(iter(record.judged[1].items()), (None, None))
        return RunLine(
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
            settings=dict(_flat({key: found for key, found in record.job.items() if key not in NOT_COMPARED})),
            note=note,
        )
    except (LookupError, TypeError) as error:
        raise FileError(f"{place / RECORD} cannot be read ({type(error).__name__}); bring back the file") from None


def _worth(place: Path, record: RunRecord) -> tuple[str | None, str | None]:
    """What the partner is worth, and what is wrong with the ladder that should tell it."""
    try:
        ladder, note = own_ladder(place, record)
    except FileError as fault:
        return None, str(fault)
    return None if ladder is None else ladder.worth, note or None


def _unfinished(place: Path, name: str, now: datetime) -> RunLine | None:
    """A primary that is at work, has failed or died; the other parties keep no results."""
    try:
        found = json.loads((place / PROGRESS).read_text(encoding="utf-8"))
        if found["role"] != "primary":
            return None
        return RunLine(
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


def _damaged(name: str, reason: str) -> RunLine:
    unknown: dict[str, Any] = dict.fromkeys(("started", "method", "metric", "value", "worth"))
    return RunLine(
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


def _flat(words: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in words.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
