"""The folder where one party keeps what belongs to one job, used by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.errors import FileError
from fedsim.party.job import Job
from fedsim.party.party_file import PartyFile

LOCK = "lock"


class RunningError(FileError):
    """Another process of the same party is at work on the same job."""


def run_path(job: Job, party_file: PartyFile) -> Path:
    """Where the party keeps this very job; another job, or a changed one, has another place."""
    return party_file.folder / f"{job.name}-{job.short_hash}"


@contextmanager
def run_folder(job: Job, party_file: PartyFile) -> Iterator[Path]:
    """The folder, made where it is missing and locked until the block ends or the process dies, however it dies."""
    folder = run_path(job, party_file)
    lock = _locked(folder, f"{party_file.party} already runs job '{job.name}' on this machine")
    try:
        yield folder
    finally:
        os.close(lock)


def private_folder(folder: Path, *, remedy: str = "mend 'folder' in the party file") -> None:
    """Make a folder that only its owner may enter, and so with those above it that are missing."""
    try:
        for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {folder}: {error.strerror}; {remedy}") from error
    if not folder.is_dir():
        raise FileError(f"{folder} is a file where a folder is needed; {remedy}")


def _locked(folder: Path, refusal: str) -> int:
    try:
        private_folder(folder)
        folder.chmod(0o700)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FileError(
            f"cannot use the run folder {folder}: {error.strerror}; check name, permissions and space"
        ) from error
    try:
        _take(lock, folder, refusal)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _take(lock: int, folder: Path, refusal: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace")
        by = f" (process {holder})" if holder.isdecimal() else ""
        raise RunningError(f"{refusal}{by}; let that process end, or stop it") from None
    except OSError as error:
        raise FileError(f"cannot lock the run folder {folder}: {error.strerror}; use a disk of this machine") from error
