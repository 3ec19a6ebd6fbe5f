"""The folder of one job at one party: its path, its lock, and the traffic ledger kept in it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.errors import FileError
from fedsim.protocol.messages import Ledger, LedgerEntry, sum_entries
from fedsim.storage.files import atomic_write

# The folder where one party keeps what belongs to one job, used by one process at a time


LOCK_FILE = "lock"


class AlreadyRunningError(FileError):
    """Another process of the same party is at work on the same job."""


def run_path(job: Job, party_file: PartyFile) -> Path:
    """Where the party keeps this very job; another job, or a changed one, has another place."""
    return party_file.folder / f"{job.name}-{job.short_hash}"


@contextmanager
def lock_run_folder(job: Job, party_file: PartyFile) -> Iterator[Path]:
    """The folder, made where it is missing and locked until the block ends or the process dies, however it dies."""
    folder = run_path(job, party_file)
    lock = _open_lock(folder, f"{party_file.party} already runs job '{job.name}' on this machine")
    try:
        yield folder
    finally:
        os.close(lock)


def make_private_folder(folder: Path, *, remedy: str = "mend 'folder' in the party file") -> None:
    """Make a folder that only its owner may enter, and so with those above it that are missing."""
    try:
        for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}; {remedy}") from error
    if not folder.is_dir():
        raise FileError(f"{folder} is a file where a folder is needed; {remedy}")


def _open_lock(folder: Path, refusal: str) -> int:
    try:
        make_private_folder(folder)
        folder.chmod(0o700)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FileError(
            f"cannot use the run folder {folder}: {error.strerror}; check name, permissions and space"
        ) from error
    try:
        _acquire_lock(lock, folder, refusal)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _acquire_lock(lock: int, folder: Path, refusal: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace")
        by = f" (process {holder})" if holder.isdecimal() else ""
        raise AlreadyRunningError(f"{refusal}{by}; let that process end, or stop it") from None
    except OSError as error:
        raise FileError(f"cannot lock the run folder {folder}: {error.strerror}; use a disk of this machine") from error


# The ledger of a job at one party, through all its processes: ``ledger.json`` in the run folder
#
# While a process runs, what it has counted lies beside it and is renewed every few seconds; of a process that was
# killed the next one takes up what lies there.


log = logging.getLogger("fedsim.parties")

LEDGER_FILE, OPEN_LEDGER_FILE = "ledger.json", "ledger.open.json"
LEDGER_INTERVAL_SECONDS = 5.0


def read_ledger(folder: Path) -> list[LedgerEntry]:
    """What all processes so far have counted; nothing where none has."""
    return _read_entries(folder / LEDGER_FILE)


def append_to_ledger(folder: Path, entries: Iterable[LedgerEntry]) -> None:
    """Add what a process has counted."""
    _write_entries(folder / LEDGER_FILE, sum_entries([*read_ledger(folder), *entries]))


@contextmanager
def persist_ledger(folder: Path, ledger: Ledger) -> Iterator[None]:
    """Keep what is counted in the block, however it ends."""
    _recover_open_ledger(folder)
    ended = threading.Event()
    thread = threading.Thread(target=_write_periodically, args=(folder / OPEN_LEDGER_FILE, ledger, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            append_to_ledger(folder, ledger.entries())
            (folder / OPEN_LEDGER_FILE).unlink(missing_ok=True)
        except (FileError, OSError) as silence:
            log.warning("%s", silence)


def _recover_open_ledger(folder: Path) -> None:
    """What a killed process left behind."""
    try:
        left = _read_entries(folder / OPEN_LEDGER_FILE)
        if left:
            append_to_ledger(folder, left)
        (folder / OPEN_LEDGER_FILE).unlink(missing_ok=True)
    except (FileError, OSError) as silence:
        log.warning("%s", silence)


def _write_periodically(path: Path, ledger: Ledger, ended: threading.Event) -> None:
    written: list[LedgerEntry] = []
    while not ended.wait(LEDGER_INTERVAL_SECONDS):
        entries = ledger.entries()
        if entries == written:
            continue
        written = entries
        try:
            _write_entries(path, entries)
        except FileError as silence:
            log.warning("%s", silence)
            return


def _read_entries(path: Path) -> list[LedgerEntry]:
    if not path.is_file():
        return []
    try:
        return [LedgerEntry(**words) for words in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} is no ledger; move it away and keep it, a new one is begun") from error


def _write_entries(path: Path, entries: Iterable[LedgerEntry]) -> None:
    with atomic_write(path) as part:
        part.write_text(json.dumps([asdict(entry) for entry in entries], indent=1), encoding="utf-8")
