"""Progress of a party in a job, written to progress.json for `fedsim runs` and other watchers.

Training never waits for it. A thread writes at most once a second, and every few seconds even if nothing changed, so
that a watcher can tell a running party from one that died.
"""

import json
import logging
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsim.config.job import Job
from fedsim.errors import FedSimError, FileError
from fedsim.protocol.messages import LedgerEntry, Phase
from fedsim.protocol.session import ConnectionState
from fedsim.storage.files import atomic_write

log = logging.getLogger("fedsim.parties")

PROGRESS_FORMAT = 1
PROGRESS_FILE = "progress.json"
POLL_SECONDS, HEARTBEAT_SECONDS = 1.0, 5.0
RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"
WAITING_STAGE = "wait"  # of a coordinator that has linked all lists, while the other parties train


@dataclass
class RunStage:
    """A phase of the job at this party; ``peak_bytes`` is the peak memory of the process until its end."""

    name: str
    began: float  # seconds since the party started
    seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(eq=False)
class PartyProgress:
    """The progress of a party, which its threads update and the thread that writes the file reads."""

    clock: Callable[[], float] = time.monotonic
    state: str = RUNNING
    error: str = ""
    stages: list[RunStage] = field(default_factory=list)
    training: dict[str, Any] = field(default_factory=dict)
    start: float = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)  # around the stages

    def __post_init__(self) -> None:
        self.start = self.clock()
        self.enter(Phase.JOIN.value)

    def enter(self, name: str) -> None:
        """End the current phase and begin another; the same phase continues."""
        with self.lock:
            if self.stages and self.stages[-1].name == name:
                return
            self.measure()
            self.stages.append(RunStage(name, self.clock() - self.start))

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
    """Keep the file up to date until the block ends, and record how it ended."""
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
            "ledger": [asdict(entry) for entry in entries],
        }
        changed = any(facts[name] != self.before.get(name) for name in ("ledger", "state", "waiting"))
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
