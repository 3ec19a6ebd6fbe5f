"""The files of a running party: locked run folder, traffic ledger, progress and stored rows of a job; audit log of all.

Rows of partners are deleted on request or when their retention ends.
"""

import fcntl
import hashlib
import json
import logging
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.errors import FedSimError, FileError, SettingError
from fedsim.protocol.messages import Ledger, LedgerEntry, Party, Phase, Role, sum_entries
from fedsim.protocol.session import ConnectionState
from fedsim.storage.files import atomic_write
from fedsim.storage.tensor_file import load_tensors, save_tensors

log = logging.getLogger("fedsim.parties")

LOCK_FILE = "lock"
TRAINED_MODEL = "model"  # a party's part of the trained model
ENCODED_FOLDER = "encoded"  # the filters of a job, which keeps the key that it began with
LEDGER_FILE, OPEN_LEDGER_FILE = "ledger.json", "ledger.open.json"
LEDGER_INTERVAL_SECONDS = 5.0
SECRET_FILE, TOKEN_FILE = "secret", "serve.token"
# What stays when a run is discarded: equal cells must get equal noise again, the ledger has all that was ever sent, and
# clients know the token.
KEPT_FILES = (LOCK_FILE, LEDGER_FILE, OPEN_LEDGER_FILE, SECRET_FILE, TOKEN_FILE)


class AlreadyRunningError(FileError):
    """Another process of the same party is running the same job."""


def run_path(job: Job, party_file: PartyFile) -> Path:
    """Return the party's folder for exactly this job; a changed job has another folder.

    Parameters
    ----------
    job
        The job.
    party_file
        The party.
    """
    return party_file.folder / f"{job.name}-{job.hash}"


def links_path(folder: Path, secondary: str) -> Path:
    """Return the path of the primary's links to a secondary in a run folder."""
    return folder / "lists" / f"{secondary}.safetensors"


def is_trained(folder: Path) -> bool:
    """Return whether a run folder has the party's part of a trained model."""
    return any((folder / TRAINED_MODEL).glob("step-*"))


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
    """Return the counts of all finished processes.

    Parameters
    ----------
    folder
        The run folder of a party.
    """
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


# Progress of a party in a job, written to progress.json for `fedsim runs` and other watchers. Training never waits for
# it. A thread writes at most once a second, and every few seconds even if nothing changed, so that a watcher can tell a
# running party from one that died.


PROGRESS_FORMAT = 1
PROGRESS_FILE = "progress.json"
POLL_SECONDS, HEARTBEAT_SECONDS = 1.0, 5.0
RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
WAITING_STAGE = "wait"  # of a coordinator that has linked all lists, while the other parties train
SERVING_STAGE = "serve"  # of a coordinator or secondary that stays for predictions after the training


@dataclass
class RunStage:
    """A phase of the job at this party; ``peak_bytes`` is the peak memory of the process until its end."""

    name: str
    began: float  # seconds since the party started
    seconds: float = 0.0
    peak_bytes: int = 0


class ProgressObserver(Protocol):
    """Follows the progress of a party as it happens; its methods must return at once."""

    def entered(self, name: str) -> None:
        """A phase has begun."""

    def stepped(self, step: int, seconds: float) -> None:
        """A training step has ended; steps count from zero."""

    def epoch_ended(self, epoch: Mapping[str, Any]) -> None:
        """An epoch has ended, with its loss and its validation metrics."""


@dataclass(eq=False)
class PartyProgress:
    """The progress of a party, which its threads update and the thread that writes the file reads."""

    clock: Callable[[], float] = time.monotonic
    state: str = RUNNING
    error: str = ""
    stages: list[RunStage] = field(default_factory=list)
    training: dict[str, Any] = field(default_factory=dict)
    linking: dict[str, dict[str, float]] = field(default_factory=dict)  # lists: records done and in total, seconds
    links: dict[str, dict[str, Any]] = field(default_factory=dict)  # lists: their quality, at the primary
    observer: ProgressObserver | None = None
    start: float = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)  # around the stages

    def __post_init__(self) -> None:
        self.start = self._ticked = self.clock()
        self.enter(Phase.JOIN.value)

    def enter(self, name: str) -> None:
        """End the current phase and begin another; the same phase continues."""
        with self.lock:
            if self.stages and self.stages[-1].name == name:
                return
            self.measure()
            self.stages.append(RunStage(name, self.clock() - self.start))
            if self.observer:
                self.observer.entered(name)

    def begin_training(self, facts: Mapping[str, Any]) -> None:
        """Begin training, or begin it again after a partner was restarted."""
        self.enter(Phase.TRAIN.value)
        self.training, self._ticked = dict(facts), self.clock()

    def step(self, step: int) -> None:
        """Note that a training step has ended."""
        before, self._ticked = self._ticked, self.clock()
        self.training = {**self.training, "steps": step + 1}
        if self.observer:
            self.observer.stepped(step, self._ticked - before)

    def end_epoch(self, epoch: Mapping[str, Any]) -> None:
        """Note that an epoch has ended; its validation belongs to no step."""
        self.training = {**self.training, "history": [*self.training["history"], epoch]}
        self._ticked = self.clock()
        if self.observer:
            self.observer.epoch_ended(epoch)

    def measure(self) -> None:
        """Update duration and memory of the current phase."""
        with self.lock:
            for now in self.stages[-1:]:
                now.seconds, now.peak_bytes = self.clock() - self.start - now.began, peak_memory()

    def follow(self, ledger: list[LedgerEntry]) -> None:
        """Advance to the latest phase of the messages, for parties that do not announce their phases."""
        order = [phase.value for phase in Phase]
        latest = max((order.index(entry.phase) for entry in ledger), default=0)
        with self.lock:
            if self.stages[-1].name in order[:latest]:
                self.enter(order[latest])

    def link(self, name: str, done: int, total: int) -> None:
        """Note how many records of a list are linked; none of them begins it."""
        now = self.clock() - self.start
        began = self.linking[name]["began"] if done and name in self.linking else now
        facts = {"done": done, "total": total, "began": began, "seconds": now - began}
        self.linking = {**self.linking, name: facts}  # replaced as a whole, because another thread writes it

    def phases(self) -> list[dict[str, Any]]:
        """Return all phases so far."""
        with self.lock:
            self.measure()
            return [asdict(stage) for stage in self.stages]


def peak_memory() -> int:
    """Return the peak memory of the process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@contextmanager
def publish_progress(folder: Path, job: Job, connection: ConnectionState, progress: PartyProgress) -> Iterator[None]:
    """Keep the file up to date until the block ends, and record how it ended.

    Parameters
    ----------
    folder
        The run folder, where the file is.
    job
        The job.
    connection
        The state of the party's connections.
    progress
        The progress of the party, updated by the block.
    """
    ended = threading.Event()
    file = _ProgressFile(folder, job, connection, progress)
    name = f"progress of {connection.party}"
    thread = threading.Thread(target=file.write_until, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
        progress.state = DONE
    except KeyboardInterrupt:
        progress.state = STOPPED
        raise
    except BaseException as error:
        progress.state = FAILED
        # Our own errors contain no data; of other errors only the type is safe to show.
        progress.error = str(error) if isinstance(error, FedSimError) else type(error).__name__
        raise
    finally:
        ended.set()
        thread.join()
        file.write()


@dataclass(eq=False)
class _ProgressFile:
    folder: Path
    job: Job
    connection: ConnectionState
    progress: PartyProgress
    before: Mapping[str, Any] = field(default_factory=dict)
    written: float = -HEARTBEAT_SECONDS
    warned: bool = False

    def write_until(self, ended: threading.Event) -> None:
        self.write()
        while not ended.wait(POLL_SECONDS):
            self.write()

    def write(self) -> None:
        """Replace the file if something changed or a heartbeat is due; a full disk does not stop the training."""
        progress, entries = self.progress, self.connection.ledger.entries()
        progress.follow(entries)
        facts = {
            "format": PROGRESS_FORMAT,
            "job": self.job.name,
            "hash": self.job.hash,
            "party": self.connection.party.name,
            "role": self.connection.party.role.value,
            "process": os.getpid(),
            "state": progress.state,
            "error": progress.error,
            "waiting": list(self.connection.waits.values()) if progress.state == RUNNING else [],
            "updated": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": progress.clock() - progress.start,
            "phases": progress.phases(),
            "training": dict(progress.training),
            "linking": progress.linking,
            "ledger": [asdict(entry) for entry in entries],
        }
        changed = any(facts[name] != self.before.get(name) for name in ("ledger", "state", "waiting", "linking"))
        if not changed and progress.clock() - self.written < HEARTBEAT_SECONDS:
            return
        try:
            with atomic_write(self.folder / PROGRESS_FILE, mode=0o600) as part:
                part.write_text(json.dumps(_without_nan(facts), indent=1, allow_nan=False), encoding="utf-8")
        except FileError as error:
            if not self.warned:
                log.warning("cannot publish the progress of this run: %s", error)
            self.warned = True
        self.before, self.written = facts, progress.clock()


def _without_nan(facts: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by null."""
    if isinstance(facts, dict):
        return {name: _without_nan(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [_without_nan(value) for value in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts


# Append-only audit log of a party: lines of JSON, each with the hash of the line before. A line that was changed,
# removed or inserted is detected when the log is read; that its owner wrote all of it anew, or cut off its end, is not.
# Facts are settings and counts, never data.


AuditFact = str | int | float | bool | None | Sequence[str] | Sequence[int]
FIRST_HASH = "0" * 64
MAX_LINE_BYTES = 64 * 1024
TORN_LINE = "torn line set aside"


@dataclass(frozen=True)
class AuditEntry:
    """One line of a log."""

    time: str
    party: str
    what: str
    facts: Mapping[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True)
class AuditLog:
    """A party's log; several threads and processes of the party may append to it."""

    path: Path
    party: Party
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def append(self, what: str, facts: Mapping[str, AuditFact] | None = None) -> AuditEntry:
        """Add an entry and wait until it is on disk.

        If the last line is incomplete because a process was killed, it is first moved to a file beside the log, and an
        entry records that.
        """
        with self._locked() as file:
            last, torn = _split_end(file, self.path)
            if torn:
                digest = hashlib.sha256(torn).hexdigest()
                torn_path = self.path.with_name(f"{self.path.name}.torn-{digest[:12]}")
                copy = os.open(torn_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    _write_all(copy, torn)
                finally:
                    os.close(copy)
                os.ftruncate(file, os.fstat(file).st_size - len(torn))
                self._add(file, last, TORN_LINE, {"bytes": len(torn), "sha256": digest})
                last = _split_end(file, self.path)[0]
            return self._add(file, last, what, facts or {})

    def head(self) -> tuple[int, str]:
        """Return the number of complete entries and the hash of the last."""
        with self._locked() as file:
            last, _ = _split_end(file, self.path)
            os.lseek(file, 0, os.SEEK_SET)
            count = 0
            while part := os.read(file, 1 << 20):
                count += part.count(b"\n")
            return count, _parse_line(last, self.path, None).hash if last else FIRST_HASH

    def _add(self, file: int, last: bytes, what: str, facts: Mapping[str, AuditFact]) -> AuditEntry:
        previous = _parse_line(last, self.path, None).hash if last else FIRST_HASH
        time = self.clock().astimezone(UTC).isoformat(timespec="milliseconds")
        entry = _seal_entry(time, str(self.party), what, facts, previous)
        line = _to_line(asdict(entry))
        if len(line) > MAX_LINE_BYTES:
            message = f"an entry of {len(line):,} bytes is too long for the audit log; the limit is {MAX_LINE_BYTES:,}"
            raise SettingError(message, code="entry-too-long", limit=MAX_LINE_BYTES)
        size = os.fstat(file).st_size
        try:
            _write_all(file, line)
        except OSError:
            os.ftruncate(file, size)  # a full disk would leave half a line
            raise
        return entry

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the log and lock it until the block ends or the process dies."""
        try:
            make_private_folder(self.path.parent)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            finally:
                os.close(file)
        except OSError as error:
            hint = "a party does nothing that it cannot log; check the folder, its permissions and disk space"
            message = f"cannot write the audit log {self.path}: {error.strerror}; {hint}"
            raise FileError(message, code="audit-log-unwritable") from error


def open_audit_log(party_file: PartyFile) -> AuditLog:
    """Return the log of a party, which has the entries of all its jobs."""
    return AuditLog(party_file.folder / "audit.jsonl", party_file.party)


def read_audit_log(path: Path) -> Iterator[AuditEntry]:
    """Yield the entries, each verified against the one before; the first invalid line raises a ``FileError``.

    Parameters
    ----------
    path
        The log of a party.
    """
    previous = FIRST_HASH
    for number, line in enumerate(_lines(path), 1):
        if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            cause = "because a process was killed; the next start repairs the log"
            raise FileError(f"{path}, line {number} is incomplete, {cause}", code="torn-line", line=number)
        entry = _parse_line(line, path, number)
        if entry.previous != previous:
            message = f"{path}, line {number} does not follow the line before; lines were removed, inserted or moved"
            raise FileError(message, code="broken-chain", line=number)
        previous = entry.hash
        yield entry


def _lines(path: Path) -> Iterator[bytes]:
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is not a regular file; give the path of the log", code="not-a-file")
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "invalid path"
        message = f"cannot read the audit log {path}: {reason}; check the path"
        raise FileError(message, code="unreadable-file") from error


def _split_end(file: int, path: Path) -> tuple[bytes, bytes]:
    """Return the last complete line and the bytes after it."""
    size = os.fstat(file).st_size
    start = max(0, size - 2 * MAX_LINE_BYTES)
    *complete, torn = os.pread(file, size - start, start).split(b"\n")
    if start and len(complete) < 2:
        message = f"{path} is damaged: its last line is too long; move the file elsewhere and keep it"
        raise FileError(message, code="damaged-log")
    return (complete[-1] + b"\n" if complete else b""), torn


def _parse_line(line: bytes, path: Path, number: int | None) -> AuditEntry:
    try:
        content = json.loads(line)
        # An entry has exactly one valid form, so that its hash covers every byte.
        entry = _seal_entry(content["time"], content["party"], content["what"], content["facts"], content["previous"])
        texts = (entry.time, entry.party, entry.what, entry.previous)
        if all(isinstance(text, str) for text in texts) and _to_line(asdict(entry)) == line:
            return entry
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    where = "the last line" if number is None else f"line {number}"
    raise FileError(f"{path}, {where} was changed, or this is not an audit log", code="changed-line", line=number)


def _seal_entry(time: str, party: str, what: str, facts: Mapping[str, Any], previous: str) -> AuditEntry:
    content = {"time": time, "party": party, "what": what, "facts": dict(facts), "previous": previous}
    return AuditEntry(time, party, what, dict(facts), previous, hashlib.sha256(_to_line(content)).hexdigest())


def _to_line(content: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError):
        message = "a fact in the audit log must be text, a finite number, a boolean, or a list of them"
        raise SettingError(message, code="invalid-fact") from None


def _write_all(file: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(file, content[written:])
    os.fsync(file)


# Deletion of what a primary stores of its partners' rows, on request or when its retention ends.


ROWS_FORMAT = "rows of a secondary 1"
REQUEST, RETENTION = "request", "retention"  # why rows are deleted


def rows_path(folder: Path, secondary: str) -> Path:
    """Return where the primary stores the rows of a secondary, in the run folder."""
    return folder / "rows" / f"{secondary}.safetensors"


def table_path(folder: Path, secondary: str) -> Path:
    """Return where the primary stores the encrypted table of a secondary, in the run folder."""
    return folder / "tables" / f"{secondary}.safetensors"


def handed_over_path(path: Path) -> Path:
    """Return the marker that a table was handed over as a file, with its digest."""
    return path.with_suffix(".handed-over")


def released_path(path: Path) -> Path:
    """Return the marker that the secondary has sent all rows and may leave."""
    return path.with_suffix(".released")


def delete_rows(job: Job, party_file: PartyFile, secondary: str, reason: str, now: datetime) -> int:
    """Delete what the primary stores of a secondary, note it in its audit log, and return how many rows these were.

    The run folder must be locked. The file stays, with no row in it: it says which columns a stored network expects.
    """
    path, rows = rows_path(run_path(job, party_file), secondary), 0
    if path.is_file():
        tensors, facts = load_tensors(path, ROWS_FORMAT)
        rows = len(tensors["pseudonym"])
        emptied = {**tensors, "pseudonym": tensors["pseudonym"][:0], "values": tensors["values"][:0]}
        save_tensors(path, ROWS_FORMAT, emptied, facts)
        released_path(path).unlink(missing_ok=True)
        table_path(run_path(job, party_file), secondary).unlink(missing_ok=True)
    peer, time = str(Party(Role.SECONDARY, secondary)), timestamp(now)
    about = {"job": job.hash, "peer": peer, "reason": reason, "time": time}
    open_audit_log(party_file).append("rows deleted", {**about, "rows": rows})
    return rows


def delete_expired_rows(job: Job, party_file: PartyFile, now: datetime) -> dict[str, int]:
    """Delete at the primary the rows whose retention has ended; return how many of which secondary."""
    ends = {name: stored_until(job, party_file, name) for name in job.secondaries}
    expired = [name for name, end in ends.items() if end is not None and end <= now]
    return {name: delete_rows(job, party_file, name, RETENTION, now) for name in expired}


def stored_until(job: Job, party_file: PartyFile, secondary: str) -> datetime | None:
    """Return when the primary must delete the rows of a secondary; None if it stores none."""
    path = rows_path(run_path(job, party_file), secondary)
    if not path.is_file():
        return None
    tensors, facts = load_tensors(path, ROWS_FORMAT)
    return retention_end(facts["received"], job.protection.retention) if len(tensors["pseudonym"]) else None


def retention_end(received: str, retention: timedelta) -> datetime:
    """Return when rows that were received at this time (ISO 8601) must be deleted.

    >>> retention_end("2026-01-01T00:00:00+00:00", timedelta(days=90)).isoformat()
    '2026-04-01T00:00:00+00:00'
    """
    return datetime.fromisoformat(received) + retention


def timestamp(now: datetime) -> str:
    """Return a time as stored rows have it: ISO 8601, to the second."""
    return now.isoformat(timespec="seconds")
