"""Everything a role needs while it runs: job, party file, locked folder, connections and failure notices."""

from __future__ import annotations

import logging
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile, require_membership
from fedsim.config.policy import policy_violations
from fedsim.errors import FedSimError, FileError, PeerError, PolicyError, SettingError
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import Party, Role, Trouble
from fedsim.protocol.session import ConnectionState, PeerRestarted, Session, close_sessions, failure_notice
from fedsim.protocol.transport import Listener, Transport
from fedsim.runs.approval import ApprovalError, require_approval
from fedsim.runs.audit_log import AuditFact, AuditLog
from fedsim.runs.progress import PartyProgress
from fedsim.runs.run_folder import AlreadyRunningError, lock_run_folder, persist_ledger, run_path
from fedsim.version import VERSION

# A party at its post: approved, checked, alone in its folder, with a log; whoever fails tells the others why


log = logging.getLogger("fedsim.parties")

FAILURE_NOTICE_SECONDS = 10.0  # to reach a peer that is only to be told of an end
LATE_PEER_SECONDS = 20.0  # from its start a failed coordinator waits for those that start more slowly


@dataclass(frozen=True, eq=False)
class PartyContext:
    """All that a role needs to do its work."""

    job: Job
    own: PartyFile
    folder: Path
    connection: ConnectionState
    transport: Transport
    opened: list[Session] = field(default_factory=list)
    diallers: dict[Role, SessionConnector] = field(default_factory=dict)
    receptions: list[SessionAcceptor] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    progress: PartyProgress = field(default_factory=PartyProgress)

    def peer(self, role: Role) -> Party:
        """The coordinator or the primary."""
        return next(party for party in self.job.parties if party.role is role)

    @property
    def others(self) -> list[Party]:
        """All parties of the job but this one."""
        return [party for party in self.job.parties if party != self.connection.party]

    @property
    def secondaries(self) -> list[Party]:
        """All secondaries of the job."""
        return [party for party in self.job.parties if party.role is Role.SECONDARY]

    def dial(self, role: Role, wait_seconds: float | None = None) -> Session:
        """A conversation with the coordinator or the primary."""
        peer = self.peer(role)
        if role not in self.diallers:
            self.diallers[role] = SessionConnector(self.connection, self.transport, self.job.address_of(peer), peer)
        session = self.diallers[role].open(wait_seconds)
        self.opened[:] = [*(other for other in self.opened if not other.is_over), session]
        return session

    def receive(self, expected: list[Party]) -> SessionAcceptor:
        """Listen for these parties."""
        reception = SessionAcceptor(self.connection, expected)
        address = self.own.network.listen or self.job.address_of(self.connection.party)
        self.listeners.append(self.transport.listen(address, reception.answer))
        self.receptions.append(reception)
        return reception

    def sessions(self) -> list[Session]:
        """All conversations that are going on."""
        ahead = (session for dialler in self.diallers.values() for session in dialler.ahead())
        received = (session for reception in self.receptions for session in reception.sessions())
        return [session for session in (*self.opened, *ahead, *received) if not session.is_over]


@contextmanager
def open_party_context(
    job: Job, own: PartyFile, transport: Transport, versions: Mapping[str, str]
) -> Iterator[PartyContext]:
    """The party's post from its owner's approval to its last word; faults are told to the other parties."""
    require_membership(job, own)
    audit = AuditLog(own.folder / "audit.jsonl", own.party)
    station = ConnectionState(own.party, job.to_dict(), versions, float(job.network.wait_seconds), audit.append)
    post = PartyContext(job, own, run_path(job, own), station, transport)
    with ExitStack() as alone:
        try:
            alone.enter_context(lock_run_folder(job, own))
            alone.enter_context(persist_ledger(post.folder, station.ledger))
            _check_consent(post, audit)
            yield post
        except AlreadyRunningError:  # the others speak with that process, and all is well with them
            raise
        except BaseException as fault:
            station.note = partial(_log_if_possible, audit)
            trouble = _failure_notice(station, fault)
            station.note("stopped", {"job": job.short_hash, "told": trouble.reason, "details": _failure_details(fault)})
            _notify_peers(post, trouble, fault)
            raise
        else:
            audit.append("finished", {"job": job.short_hash, "bytes": station.ledger.total_bytes})
            for session in post.sessions():
                session.close()
        finally:
            for listener in post.listeners:
                listener.close()


def _check_consent(post: PartyContext, audit: AuditLog) -> None:
    job, own, versions = post.job, post.own, post.connection.versions
    audit.append("started", {"job": job.hash, "versions": [f"{name} {version}" for name, version in versions.items()]})
    broken = policy_violations(job, own)
    if broken:
        raise PolicyError("; ".join(violation.message for violation in broken), code="policy-violation")
    audit.append("approved", {"job": job.hash, "how": require_approval(job, own)})


def _log_if_possible(audit: AuditLog, what: str, facts: Mapping[str, AuditFact]) -> None:
    """A party does nothing it cannot log, but tell the others that it stops."""
    try:
        audit.append(what, facts)
    except FileError as silence:
        log.warning("%s", silence)


def _failure_notice(station: ConnectionState, fault: BaseException) -> Trouble:
    if isinstance(fault, ApprovalError):  # whose text names a file and a command of ours
        return Trouble(str(station.party), "its owner has not approved this job", passing=False)
    return failure_notice(station, fault)


def _failure_details(fault: BaseException) -> str:
    """The whole reason, for our own log; of a defect its place in the program, for its text may hold anything."""
    if isinstance(fault, FedSimError):
        return str(fault)
    places = traceback.extract_tb(fault.__traceback__)
    where = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    return f"{type(fault).__name__}{where}"


def _notify_peers(post: PartyContext, trouble: Trouble, fault: BaseException) -> None:
    """Tell those who listen, and those who have not come yet."""
    close_sessions(post.sessions(), trouble)
    if (
        isinstance(fault, Exception) and not post.connection.serves_predictions
    ):  # who was stopped by hand does not wait for it
        try:
            _notify_absent_peers(post, trouble, fault)
        except (PeerError, SettingError) as silence:
            log.debug("not everybody could be told: %s", silence)


def _notify_absent_peers(post: PartyContext, trouble: Trouble, fault: Exception) -> None:
    """The coordinator, which everybody comes to, stays a moment; anybody else who has not joined yet tells it."""
    log.error("stopping, and telling the others: %s", fault if isinstance(fault, FedSimError) else trouble.reason)
    if post.connection.party.role is Role.COORDINATOR:
        reception = post.receptions[0] if post.receptions else post.receive(post.others)
        reception.dismiss(trouble, min(LATE_PEER_SECONDS, post.job.network.wait_seconds))
        close_sessions(post.sessions(), trouble)
    elif not post.opened and not isinstance(fault, PeerError):  # that would be the coordinator itself
        close_sessions([post.dial(Role.COORDINATOR, FAILURE_NOTICE_SECONDS)], trouble)


# A peer that may start anew at any time: whoever asks it something asks again


AnswerT = TypeVar("AnswerT")


class ReconnectingPeer:
    """Keeps a conversation and opens another when the peer has lost it."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open = open_session
        self._session: Session | None = None

    @property
    def connected(self) -> bool:
        """Whether the peer is there just now."""
        return self._session is not None and not self._session.is_over and self._session.connected

    def session(self) -> Session:
        """The conversation of now, opened where there is none."""
        if self._session is None or self._session.is_over:
            self._session = self._open()
        return self._session

    def ask(self, question: Callable[[Session], AnswerT]) -> AnswerT:
        """Put a question until it is answered; it must do no harm twice."""
        while True:
            try:
                return question(self.session())
            except PeerRestarted as restarted:
                log.info("%s; asking it again", restarted)


# The software and the machine on which a party's numbers depend


def software_versions() -> dict[str, str]:
    """Releases, and where torch is loaded what decides the last bit of a sum: its threads and its instructions.

    A process that has yet to load torch says it once more, in its log, when it has.
    """
    found = {"fedsim": VERSION, "python": platform.python_version(), "numpy": np.__version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        found |= {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
        found["threads"] = str(torch.get_num_threads())
    return found
