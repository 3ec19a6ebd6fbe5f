"""A party at its post: approved, checked, alone in its folder, with a log; whoever fails tells the others why."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedsim.errors import FedSimError, FileError, PeerError, PolicyError, SettingError
from fedsim.party.approval import ApprovalError, approved
from fedsim.party.audit_log import AuditLog, Fact
from fedsim.party.job import Job
from fedsim.party.ledger_file import kept_ledger
from fedsim.party.own_columns import check_in_job
from fedsim.party.party_file import PartyFile
from fedsim.party.policy import refusals
from fedsim.party.run_folder import RunningError, run_folder, run_path
from fedsim.party.run_progress import Progress
from fedsim.protocol.handshake import Dialler, Reception
from fedsim.protocol.messages import Trouble
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.session import Session
from fedsim.protocol.station import Station
from fedsim.protocol.transport.base import Listener, Transport
from fedsim.protocol.trouble import tell, trouble_of

log = logging.getLogger("fedsim.parties")

LAST_WORD_SECONDS = 10.0  # to reach a peer that is only to be told of an end
LATE_SECONDS = 20.0  # from its start a failed coordinator waits for those that start more slowly


@dataclass(frozen=True, eq=False)
class Post:
    """All that a role needs to do its work."""

    job: Job
    own: PartyFile
    folder: Path
    station: Station
    transport: Transport
    opened: list[Session] = field(default_factory=list)
    diallers: dict[Role, Dialler] = field(default_factory=dict)
    receptions: list[Reception] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    def peer(self, role: Role) -> Party:
        """The coordinator or the primary."""
        return next(party for party in self.job.parties if party.role is role)

    @property
    def others(self) -> list[Party]:
        """All parties of the job but this one."""
        return [party for party in self.job.parties if party != self.station.party]

    @property
    def secondaries(self) -> list[Party]:
        """All secondaries of the job."""
        return [party for party in self.job.parties if party.role is Role.SECONDARY]

    def dial(self, role: Role, wait_seconds: float | None = None) -> Session:
        """A conversation with the coordinator or the primary."""
        peer = self.peer(role)
        if role not in self.diallers:
            self.diallers[role] = Dialler(self.station, self.transport, self.job.address_of(peer), peer)
        session = self.diallers[role].open(wait_seconds)
        self.opened[:] = [*(other for other in self.opened if not other.is_over), session]
        return session

    def receive(self, expected: list[Party]) -> Reception:
        """Listen for these parties."""
        reception = Reception(self.station, expected)
        address = self.own.network.listen or self.job.address_of(self.station.party)
        self.listeners.append(self.transport.listen(address, reception.answer))
        self.receptions.append(reception)
        return reception

    def sessions(self) -> list[Session]:
        """All conversations that are going on."""
        ahead = (session for dialler in self.diallers.values() for session in dialler.ahead())
        received = (session for reception in self.receptions for session in reception.sessions())
        return [session for session in (*self.opened, *ahead, *received) if not session.is_over]


@contextmanager
def at_post(job: Job, own: PartyFile, transport: Transport, versions: Mapping[str, str]) -> Iterator[Post]:
    """The party's post from its owner's approval to its last word; faults are told to the other parties."""
    check_in_job(job, own)
    audit = AuditLog(own.folder / "audit.jsonl", own.party)
    station = Station(own.party, job.described(), versions, float(job.network.wait_seconds), audit.append)
    post = Post(job, own, run_path(job, own), station, transport)
    with ExitStack() as alone:
        try:
            alone.enter_context(run_folder(job, own))
            alone.enter_context(kept_ledger(post.folder, station.ledger))
            _check_will(post, audit)
            yield post
        except RunningError:  # the others speak with that process, and all is well with them
            raise
        except BaseException as fault:
            station.note = partial(_note_if_possible, audit)
            trouble = _trouble(station, fault)
            station.note("stopped", {"job": job.short_hash, "told": trouble.reason, "details": _details(fault)})
            _last_words(post, trouble, fault)
            raise
        else:
            audit.append("finished", {"job": job.short_hash, "bytes": station.ledger.total_bytes})
            for session in post.sessions():
                session.close()
        finally:
            for listener in post.listeners:
                listener.close()


def _check_will(post: Post, audit: AuditLog) -> None:
    job, own, versions = post.job, post.own, post.station.versions
    audit.append("started", {"job": job.hash, "versions": [f"{name} {version}" for name, version in versions.items()]})
    broken = refusals(job, own)
    if broken:
        raise PolicyError("; ".join(broken))
    audit.append("approved", {"job": job.hash, "how": approved(job, own)})


def _note_if_possible(audit: AuditLog, what: str, facts: Mapping[str, Fact]) -> None:
    """A party does nothing it cannot log, but tell the others that it stops."""
    try:
        audit.append(what, facts)
    except FileError as silence:
        log.warning("%s", silence)


def _trouble(station: Station, fault: BaseException) -> Trouble:
    if isinstance(fault, ApprovalError):  # whose text names a file and a command of ours
        return Trouble(str(station.party), "its owner has not approved this job", passing=False)
    return trouble_of(station, fault)


def _details(fault: BaseException) -> str:
    """The whole reason, for our own log; of a defect its place in the program, for its text may hold anything."""
    if isinstance(fault, FedSimError):
        return str(fault)
    places = traceback.extract_tb(fault.__traceback__)
    where = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    return f"{type(fault).__name__}{where}"


def _last_words(post: Post, trouble: Trouble, fault: BaseException) -> None:
    """Tell those who listen, and those who have not come yet."""
    tell(post.sessions(), trouble)
    if isinstance(fault, Exception) and not post.station.staying:  # who was stopped by hand does not wait for it
        try:
            _tell_absent(post, trouble, fault)
        except (PeerError, SettingError) as silence:
            log.debug("not everybody could be told: %s", silence)


def _tell_absent(post: Post, trouble: Trouble, fault: Exception) -> None:
    """The coordinator, which everybody comes to, stays a moment; anybody else who has not joined yet tells it."""
    log.error("stopping, and telling the others: %s", fault if isinstance(fault, FedSimError) else trouble.reason)
    if post.station.party.role is Role.COORDINATOR:
        reception = post.receptions[0] if post.receptions else post.receive(post.others)
        reception.dismiss(trouble, min(LATE_SECONDS, post.job.network.wait_seconds))
        tell(post.sessions(), trouble)
    elif not post.opened and not isinstance(fault, PeerError):  # that would be the coordinator itself
        tell([post.dial(Role.COORDINATOR, LAST_WORD_SECONDS)], trouble)
