"""Run all parties of a job in one process, with the same roles and messages over in-process queues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.errors import PeerError, SettingError
from fedsim.protocol.messages import Ledger, LedgerEntry, Role, merge_ledgers
from fedsim.protocol.session import StopSignal
from fedsim.protocol.transport import InProcessTransport, Transport
from fedsim.runs.progress import publish_progress
from fedsim.runs.run_folder import run_path
from fedsim.runtime.coordinator import run_coordinator
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.primary import TrainingOutcome, load_outcome, run_primary
from fedsim.runtime.run_store import TRAINED_MODEL, RunStore
from fedsim.runtime.secondary import run_secondary
from fedsim.training import Hook

log = logging.getLogger("fedsim.parties")

POLL_SECONDS = 0.1
SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class LocalRun:
    """How a job ended in one process."""

    outcome: TrainingOutcome
    ledger: list[LedgerEntry]


def run_local(
    job: Job, files: Sequence[PartyFile], hooks: Sequence[Hook] = (), transport: Transport | None = None
) -> LocalRun:
    """Run every party of a job in a thread of its own."""
    by_party = {own.party: own for own in files}
    missing = [str(party) for party in job.parties if party not in by_party]
    if missing:
        raise SettingError(f"job '{job.name}' needs a party file for {', '.join(missing)} as well")
    trained = _load_earlier_run(job, files)
    if trained is not None:
        return trained
    way = transport or InProcessTransport()
    threads = [_PartyThread(job, by_party[party], way, hooks) for party in job.parties]
    for thread in threads:
        thread.start()
    try:
        _wait_for(threads)
    except KeyboardInterrupt:  # threads that still compute when Python ends would take it down with them
        for thread in threads:
            thread.stop()
        _join_threads(threads)
        raise
    faults = [thread.fault for thread in threads if thread.fault]
    first = next((fault for fault in faults if not isinstance(fault, PeerError)), faults[0] if faults else None)
    if first:
        raise first
    outcome = next(thread.outcome for thread in threads if thread.outcome)
    return LocalRun(outcome, merge_ledgers(thread.ledger for thread in threads))


def _load_earlier_run(job: Job, files: Sequence[PartyFile]) -> LocalRun | None:
    """The outcome of an earlier call, where every party that learns has kept its part."""
    learners = [own for own in files if own.role is not Role.COORDINATOR]
    if not all(RunStore(run_path(job, own), job).has_weights(TRAINED_MODEL) for own in learners):
        return None
    folder = next(run_path(job, own) for own in learners if own.role is Role.PRIMARY)
    log.info("job '%s' was trained before, in %s; change the job to train anew", job.name, folder)
    return LocalRun(load_outcome(RunStore(folder, job)), [])


def _wait_for(threads: Sequence[_PartyThread]) -> None:
    """Until all have ended; after a fault the others have a moment to hear of it."""
    while (alive := [thread for thread in threads if thread.is_alive()]) and not any(each.fault for each in threads):
        alive[0].join(POLL_SECONDS)
    _join_threads(threads)


def _join_threads(threads: Sequence[_PartyThread]) -> None:
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class _PartyThread(threading.Thread):
    def __init__(self, job: Job, own: PartyFile, transport: Transport, hooks: Sequence[Hook]) -> None:
        super().__init__(name=str(own.party), daemon=True)
        self.job, self.own, self.transport, self.hooks = job, own, transport, hooks
        self.ledger = Ledger()
        self.outcome: TrainingOutcome | None = None
        self.fault: BaseException | None = None
        self._alarm: StopSignal | None = None

    def stop(self) -> None:
        """Have the party end at its next safe point, as its owner's signal does where it is a process."""
        if self._alarm:
            self._alarm.stop()

    def run(self) -> None:
        roles: Mapping[Role, Callable[[PartyContext], TrainingOutcome | None]] = {
            Role.COORDINATOR: run_coordinator,
            Role.PRIMARY: lambda post: run_primary(post, self.hooks),
            Role.SECONDARY: run_secondary,
        }
        try:
            with open_party_context(self.job, self.own, self.transport, software_versions()) as post:
                self.ledger, self._alarm = post.connection.ledger, post.connection.stop_signal
                with publish_progress(post.folder, post.job, post.connection, post.progress):
                    self.outcome = roles[self.own.role](post)
        except BaseException as fault:  # told to whoever waits for all threads
            self.fault = fault
