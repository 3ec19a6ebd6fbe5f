"""The folder of one job at one party: its path, its lock, and the traffic ledger stored in it."""

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

log = logging.getLogger("fedsim.parties")

LOCK_FILE = "lock"
LEDGER_FILE, OPEN_LEDGER_FILE = "ledger.json", "ledger.open.json"
LEDGER_INTERVAL_SECONDS = 5.0


class AlreadyRunningError(FileError):
    """Another process of the same party is running the same job."""


def run_path(job: Job, party_file: PartyFile) -> Path:
    """Return the party's folder for exactly this job; a changed job has another folder."""
    return party_file.folder / f"{job.name}-{job.short_hash}"


@contextmanager
def lock_run_folder(job: Job, party_file: PartyFile) -> Iterator[Path]:
    """Create the run folder if needed and lock it until the block ends or the process dies."""
    folder = run_path(job, party_file)
    try:
        make_private_folder(folder)
        folder.chmod(0o700)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        message = f"cannot use the run folder {folder}: {error.strerror}; check its path, permissions and disk space"
        raise FileError(message, code="run-folder") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace")
            process = f" (process {holder})" if holder.isdecimal() else ""
            message = f"{party_file.party} is already running job '{job.name}' on this machine{process}"
            raise AlreadyRunningError(f"{message}; wait for it, or stop it", code="already-running") from None
        except OSError as error:
            message = f"cannot lock the run folder {folder}: {error.strerror}; use a local disk"
            raise FileError(message, code="run-folder") from error
        yield folder
    finally:
        os.close(lock)


def make_private_folder(folder: Path, *, remedy: str = "correct 'folder' in the party file") -> None:
    """Create a folder, and missing parents, that only its owner can access."""
    try:
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the folder {folder}: {error.strerror}; {remedy}", code="no-folder") from error
    if not folder.is_dir():
        raise FileError(f"{folder} is a file, but a folder is needed; {remedy}", code="not-a-folder")


# The ledger counts the messages of a job over all processes of a party. A running process writes its own counts to a
# second file every few seconds; if it is killed, the next process adds them to the ledger.


def read_ledger(folder: Path) -> list[LedgerEntry]:
    """Return the counts of all finished processes."""
    return _read_entries(folder / LEDGER_FILE)


def append_to_ledger(folder: Path, entries: Iterable[LedgerEntry]) -> None:
    """Add the counts of a process."""
    _write_entries(folder / LEDGER_FILE, sum_entries([*read_ledger(folder), *entries]))


@contextmanager
def persist_ledger(folder: Path, ledger: Ledger) -> Iterator[None]:
    """Store the counts of the block, however it ends; storage errors are only logged."""
    open_path = folder / OPEN_LEDGER_FILE
    try:
        left = _read_entries(open_path)  # by a process that was killed
        if left:
            append_to_ledger(folder, left)
        open_path.unlink(missing_ok=True)
    except (FileError, OSError) as error:
        log.warning("%s", error)
    ended = threading.Event()
    thread = threading.Thread(target=_write_periodically, args=(open_path, ledger, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            append_to_ledger(folder, ledger.entries())
            open_path.unlink(missing_ok=True)
        except (FileError, OSError) as error:
            log.warning("%s", error)


def _write_periodically(path: Path, ledger: Ledger, ended: threading.Event) -> None:
    written: list[LedgerEntry] = []
    while not ended.wait(LEDGER_INTERVAL_SECONDS):
        entries = ledger.entries()
        if entries == written:
            continue
        written = entries
        try:
            _write_entries(path, entries)
        except FileError as error:
            log.warning("%s", error)
            return


def _read_entries(path: Path) -> list[LedgerEntry]:
    if not path.is_file():
        return []
    try:
        return [LedgerEntry(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        message = f"{path} is not a valid ledger; move it elsewhere, and a new one will be created"
        raise FileError(message, code="invalid-ledger") from error


def _write_entries(path: Path, entries: Iterable[LedgerEntry]) -> None:
    with atomic_write(path) as part:
        part.write_text(json.dumps([asdict(entry) for entry in entries], indent=1), encoding="utf-8")
