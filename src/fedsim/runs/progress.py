"""Progress of a party in a job, written to progress.json for whoever watches the run.

Nobody waits for it. A thread writes at most once a second, and every few seconds even where nothing changed, so that a
watcher can tell a party that works from one that died.
"""

from __future__ import annotations

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
WAITING_STAGE = "wait"  # of a coordinator whose links are found, while the others train


@dataclass
class RunStage:
    """A phase of the job at this party; ``peak_bytes`` is the most memory the process ever had when it ended."""

    name: str
    began: float  # seconds since the party started
    seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(eq=False)
class PartyProgress:
    """Where a party stands; whoever works writes into it, the file's thread reads and follows."""

    clock: Callable[[], float] = time.monotonic
    state: str = RUNNING
    error: str = ""
    stages: list[RunStage] = field(default_factory=list)
    training: dict[str, Any] = field(default_factory=dict)
    start: float = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)  # around the phases

    def __post_init__(self) -> None:
        self.start = self.clock()
        self.enter(Phase.JOIN.value)

    def enter(self, name: str) -> None:
        """Begin a phase; the one before it ends. The phase one is in goes on."""
        with self.lock:
            if self.stages and self.stages[-1].name == name:
                return
            self.measure()
            self.stages.append(RunStage(name, self.clock() - self.start))

    def measure(self) -> None:
        """Bring the figures of the present phase up to now."""
        with self.lock:
            for now in self.stages[-1:]:
                now.seconds, now.peak_bytes = self.clock() - self.start - now.began, peak_memory()

    def follow(self, ledger: list[LedgerEntry]) -> None:
        """A party that names no phase is as far as its messages are."""
        order = [phase.value for phase in Phase]
        furthest = max((order.index(entry.phase) for entry in ledger), default=0)
        with self.lock:
            if self.stages[-1].name in order[:furthest]:
                self.enter(order[furthest])

    def phases(self) -> list[dict[str, Any]]:
        """Every phase up to now."""
        with self.lock:
            self.measure()
            return [asdict(stage) for stage in self.stages]


def peak_memory() -> int:
    """Bytes of memory that the process had at most so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@contextmanager
def publish_progress(folder: Path, job: Job, station: ConnectionState, progress: PartyProgress) -> Iterator[None]:
    """Keep the file up to date until the block ends, and say in it how it ended."""
    ended = threading.Event()
    file = _ProgressFile(folder, job, station, progress)
    thread = threading.Thread(target=file.keep, args=(ended,), name=f"progress of {station.party}", daemon=True)
    thread.start()
    try:
        yield
        progress.state = DONE
    except KeyboardInterrupt:
        progress.state = STOPPED
        raise
    except BaseException as fault:
        progress.state = FAILED
        # Our own errors hold no data; of any other only the kind is told.
        progress.error = str(fault) if isinstance(fault, FedSimError) else type(fault).__name__
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
    silenced: bool = False

    def keep(self, ended: threading.Event) -> None:
        """Write again and again until all has ended."""
        while True:
            self.write()
            if ended.wait(POLL_SECONDS):
                return

    def write(self) -> None:
        """Replace the file where something changed or a sign of life is due; a full disk stops nobody's training."""
        facts = self._facts()
        changed = any(facts[name] != self.before.get(name) for name in ("ledger", "state", "waiting"))
        if not changed and self.progress.clock() - self.written < HEARTBEAT_SECONDS:
            return
        try:
            with atomic_write(self.folder / PROGRESS_FILE, mode=0o600) as part:
                part.write_text(json.dumps(_finite(facts), indent=1, allow_nan=False), encoding="utf-8")
        except FileError as fault:
            if not self.silenced:
                log.warning("nobody can watch this run: %s", fault)
            self.silenced = True
        self.before, self.written = facts, self.progress.clock()

    def _facts(self) -> dict[str, Any]:
        progress, entries = self.progress, self.connection.ledger.entries()
        progress.follow(entries)
        return {
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


def _finite(facts: Any) -> Any:
    """The same without what JSON has no word for: a loss that is no number is none."""
    if isinstance(facts, dict):
        return {name: _finite(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [_finite(value) for value in facts]
    return None if isinstance(facts, float) and not math.isfinite(facts) else facts
