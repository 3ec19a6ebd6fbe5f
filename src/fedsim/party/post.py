"""A party at its post: approved, checked, alone in its folder, with a log; whoever fails tells the others why."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.errors import FedSimError, PeerError, PolicyError
from fedsim.party.approval import ApprovalError, approved
from fedsim.party.audit_log import AuditLog
from fedsim.party.job import Job
from fedsim.party.own_columns import check_in_job
from fedsim.party.party_file import PartyFile
from fedsim.party.policy import refusals
from fedsim.party.run_folder import run_folder
from fedsim.protocol.handshake import Dialler, Reception
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.session import Session
from fedsim.protocol.station import Station
from fedsim.protocol.transport.base import Listener, Transport
from fedsim.protocol.trouble import public_reason, tell, trouble_of

log = logging.getLogger("fedsim.parties")

LAST_WORD_SECONDS = 10.0  # to reach a peer that is only to be told of a failure


@dataclass(frozen=True, eq=False)
class Post:
    """All that a role needs to do its work."""

    job: Job
    own: PartyFile
    folder: Path
    station: Station
    transport: Transport
    opened: list[Session] = field(default_factory=list)
    receptions: list[Reception] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)

    def peer(self, role: Role) -> Party:
        """The coordinator or the primary."""
        return next(party for party in self.job.parties if party.role is role)

    @property
    def secondaries(self) -> list[Party]:
        """All secondaries of the job."""
        return [party for party in self.job.parties if party.role is Role.SECONDARY]

    def dial(self, role: Role, wait_seconds: float | None = None) -> Session:
        """A conversation with the coordinator or the primary."""
        peer = self.peer(role)
        session = Dialler(self.station, self.transport, self.job.address_of(peer), peer).open(wait_seconds)
        self.opened.append(session)
        return session

    def receive(self, expected: list[Party]) -> Reception:
        """Listen for these parties."""
        reception = Reception(self.station, expected)
        address = self.own.network.listen or self.job.address_of(self.station.party)
        self.receptions.append(reception)
        self.listeners.append(self.transport.listen(address, reception.answer))
        return reception

    def sessions(self) -> list[Session]:
        """All conversations that are going on."""
        return [*self.opened, *(session for reception in self.receptions for session in reception.sessions())]


@contextmanager
def at_post(job: Job, own: PartyFile, transport: Transport, versions: Mapping[str, str]) -> Iterator[Post]:
    """The party's post from its owner's approval to its last word; faults are told to the other parties."""
    check_in_job(job, own)
    with run_folder(job, own) as folder:
        audit = AuditLog(own.folder / "audit.jsonl", own.party)
        station = Station(own.party, job.described(), versions, float(job.network.wait_seconds), audit.append)
        post = Post(job, own, folder, station, transport)
        audit.append(
            "started", {"job": job.hash, "versions": [f"{name} {version}" for name, version in versions.items()]}
        )
        try:
            _check_will(job, own, audit)
            yield post
        except BaseException as fault:
            _last_words(post, fault)
            audit.append("stopped", {"job": job.short_hash, "reason": public_reason(fault)})
            raise
        else:
            audit.append("finished", {"job": job.short_hash, "bytes": station.ledger.total_bytes})
            for session in post.sessions():
                session.close()
        finally:
            for listener in post.listeners:
                listener.close()


def _check_will(job: Job, own: PartyFile, audit: AuditLog) -> None:
    broken = refusals(job, own)
    if broken:
        raise PolicyError("; ".join(broken))
    audit.append("approved", {"job": job.hash, "how": approved(job, own)})


def _last_words(post: Post, fault: BaseException) -> None:
    """Tell those who listen; one who has not joined yet tells the coordinator, which tells the others."""
    trouble = trouble_of(post.station, fault)
    if isinstance(fault, ApprovalError):
        trouble = type(trouble)(trouble.origin, "its owner has not approved this job")
    if isinstance(fault, FedSimError) and not post.sessions() and post.station.party.role is not Role.COORDINATOR:
        try:
            post.dial(Role.COORDINATOR, LAST_WORD_SECONDS)
        except PeerError as silence:
            log.info("nobody could be told: %s", silence)
    tell(post.sessions(), trouble)
