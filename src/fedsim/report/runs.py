"""The runs under a folder, side by side: how good, how long, how much on the wire, and where their settings differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import FileError
from fedsim.party.ledger_file import read_ledger
from fedsim.party.run_progress import DONE
from fedsim.party.run_progress import FILE as PROGRESS
from fedsim.party.run_record import RECORD, read_record
from fedsim.report.ladder import read_ladder

DEEPEST = 4
NOT_COMPARED = ("coordinator", "primary")  # addresses change nothing


@dataclass(frozen=True)
class RunLine:
    """One run; what is not known yet is none."""

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


def runs_under(folder: Path) -> list[RunLine]:
    """Finished runs of primaries, and those that run or have failed, oldest first."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}; name the folder of a party file, or one above it")
    places = sorted({path.parent for name in (RECORD, PROGRESS) for path in _found(folder, name)})
    lines = [line for place in places if (line := _line(place, folder)) is not None]
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


def _line(place: Path, above: Path) -> RunLine | None:
    name = str(place.relative_to(above))
    return _finished(place, name) if (place / RECORD).is_file() else _unfinished(place, name)


def _finished(place: Path, name: str) -> RunLine:
    record, ladder = read_record(place), read_ladder(place)
    metric, value = next(iter(record.judged[1].items()))
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
        worth=None if ladder is None else ladder.worth,
        settings=dict(_flat({key: found for key, found in record.job.items() if key not in NOT_COMPARED})),
    )


def _unfinished(place: Path, name: str) -> RunLine | None:
    """A primary that is at work or has failed; the other parties keep no results."""
    try:
        found = json.loads((place / PROGRESS).read_text(encoding="utf-8"))
        if found["role"] != "primary":
            return None
        return RunLine(
            folder=name,
            job=found["job"],
            hash=found["hash"][:12],
            party=found["party"],
            state=found["state"],
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


def _flat(words: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in words.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
