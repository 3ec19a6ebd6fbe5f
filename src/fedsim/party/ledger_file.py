"""The ledger of a job at one party, through all its processes: ``ledger.json`` in the run folder.

While a process runs, what it has counted lies beside it and is renewed every few seconds; of a process that was killed
the next one takes up what lies there.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fedsim.errors import FileError
from fedsim.linkage.whole_file import whole_file
from fedsim.protocol.ledger import Entry, Ledger, summed

log = logging.getLogger("fedsim.parties")

LEDGER, OPEN = "ledger.json", "ledger.open.json"
EVERY_SECONDS = 5.0


def read_ledger(folder: Path) -> list[Entry]:
    """What all processes so far have counted; nothing where none has."""
    return _read(folder / LEDGER)


def add_to_ledger(folder: Path, entries: Iterable[Entry]) -> None:
    """Add what a process has counted."""
    _write(folder / LEDGER, summed([*read_ledger(folder), *entries]))


@contextmanager
def kept_ledger(folder: Path, ledger: Ledger) -> Iterator[None]:
    """Keep what is counted in the block, however it ends."""
    _take_up(folder)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(folder / OPEN, ledger, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            add_to_ledger(folder, ledger.entries())
            (folder / OPEN).unlink(missing_ok=True)
        except (FileError, OSError) as silence:
            log.warning("%s", silence)


def _take_up(folder: Path) -> None:
    """What a killed process left behind."""
    try:
        left = _read(folder / OPEN)
        if left:
            add_to_ledger(folder, left)
        (folder / OPEN).unlink(missing_ok=True)
    except (FileError, OSError) as silence:
        log.warning("%s", silence)


def _renew(path: Path, ledger: Ledger, ended: threading.Event) -> None:
    written: list[Entry] = []
    while not ended.wait(EVERY_SECONDS):
        entries = ledger.entries()
        if entries == written:
            continue
        written = entries
        try:
            _write(path, entries)
        except FileError as silence:
            log.warning("%s", silence)
            return


def _read(path: Path) -> list[Entry]:
    if not path.is_file():
        return []
    try:
        return [Entry(**words) for words in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is no ledger; move it away and keep it, a new one is begun") from error


def _write(path: Path, entries: Iterable[Entry]) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps([asdict(entry) for entry in entries], indent=1), encoding="utf-8")
