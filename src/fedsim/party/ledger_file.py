"""The ledger of a job at one party, through all its processes: ``ledger.json`` in the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from fedsim.errors import FileError
from fedsim.linkage.whole_file import whole_file
from fedsim.protocol.ledger import Entry, summed

LEDGER = "ledger.json"


def read_ledger(folder: Path) -> list[Entry]:
    """What all processes so far have counted; nothing where none has."""
    path = folder / LEDGER
    if not path.is_file():
        return []
    try:
        return [Entry(**words) for words in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is no ledger; move it away and keep it, a new one is begun") from error


def add_to_ledger(folder: Path, entries: Iterable[Entry]) -> None:
    """Add what this process has counted."""
    found = summed([*read_ledger(folder), *entries])
    with whole_file(folder / LEDGER) as part:
        part.write_text(json.dumps([asdict(entry) for entry in found], indent=1), encoding="utf-8")
