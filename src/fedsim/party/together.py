"""All parties of a job in this process: the same roles, the same messages, through queues instead of a network."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedsim.errors import PeerError, SettingError
from fedsim.party.coordinator import run_coordinator
from fedsim.party.job import Job
from fedsim.party.keeping import PART, Keep
from fedsim.party.party_file import PartyFile
from fedsim.party.post import Post, at_post
from fedsim.party.primary import Outcome, outcome_of, run_primary
from fedsim.party.run_folder import run_path
from fedsim.party.run_progress import shown
from fedsim.party.secondary import run_secondary
from fedsim.party.versions import versions_here
from fedsim.protocol.ledger import Entry, Ledger, merged
from fedsim.protocol.parties import Role
from fedsim.protocol.station import Alarm
from fedsim.protocol.transport.base import Transport
from fedsim.protocol.transport.inproc import InProcess
from fedsim.training import Hook

log = logging.getLogger("fedsim.parties")

POLL = 0.1
LAST_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Together:
    """How a job ended in one process."""

    outcome: Outcome
    ledger: list[Entry]


def run_together(
    job: Job, files: Sequence[PartyFile], hooks: Sequence[Hook] = (), transport: Transport | None = None
) -> Together:
    """Run every party of a job in a thread of its own."""
    by_party = {own.party: own for own in files}
    missing = [str(party) for party in job.parties if party not in by_party]
    if missing:
        raise SettingError(f"job '{job.name}' needs a party file for {', '.join(missing)} as well")
    trained = _trained_before(job, files)
    if trained is not None:
        return trained
    way = transport or InProcess()
    threads = [_PartyThread(job, by_party[party], way, hooks) for party in job.parties]
    for thread in threads:
        thread.start()
    try:
        _wait_for(threads)
    except KeyboardInterrupt:  # threads that still compute when Python ends would take it down with them
        for thread in threads:
            thread.stop()
        _leave(threads)
        raise
    faults = [thread.fault for thread in threads if thread.fault]
    first = next((fault for fault in faults if not isinstance(fault, PeerError)), faults[0] if faults else None)
    if first:
        raise first
    outcome = next(thread.outcome for thread in threads if thread.outcome)
    return Together(outcome, merged(thread.ledger for thread in threads))


def _trained_before(job: Job, files: Sequence[PartyFile]) -> Together | None:
    """The outcome of an earlier call, where every party that learns has kept its part."""
    learners = [own for own in files if own.role is not Role.COORDINATOR]
    if not all(Keep(run_path(job, own), job).has_part(PART) for own in learners):
        return None
    folder = next(run_path(job, own) for own in learners if own.role is Role.PRIMARY)
    log.info("job '%s' was trained before, in %s; change the job to train anew", job.name, folder)
    return Together(outcome_of(Keep(folder, job)), [])


def _wait_for(threads: Sequence[_PartyThread]) -> None:
    """Until all have ended; after a fault the others have a moment to hear of it."""
    while (alive := [thread for thread in threads if thread.is_alive()]) and not any(each.fault for each in threads):
        alive[0].join(POLL)
    _leave(threads)


def _leave(threads: Sequence[_PartyThread]) -> None:
    deadline = time.monotonic() + LAST_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class _PartyThread(threading.Thread):
    def __init__(self, job: Job, own: PartyFile, transport: Transport, hooks: Sequence[Hook]) -> None:
        super().__init__(name=str(own.party), daemon=True)
        self.job, self.own, self.transport, self.hooks = job, own, transport, hooks
        self.ledger = Ledger()
        self.outcome: Outcome | None = None
        self.fault: BaseException | None = None
        self._alarm: Alarm | None = None

    def stop(self) -> None:
        """Have the party end at its next safe point, as its owner's signal does where it is a process."""
        if self._alarm:
            self._alarm.stop()

    def run(self) -> None:
        roles: Mapping[Role, Callable[[Post], Outcome | None]] = {
            Role.COORDINATOR: run_coordinator,
            Role.PRIMARY: lambda post: run_primary(post, self.hooks),
            Role.SECONDARY: run_secondary,
        }
        try:
            with at_post(self.job, self.own, self.transport, versions_here()) as post:
                self.ledger, self._alarm = post.station.ledger, post.station.alarm
                with shown(post.folder, post.job, post.station, post.progress):
                    self.outcome = roles[self.own.role](post)
        except BaseException as fault:  # told to whoever waits for all threads
            self.fault = fault
