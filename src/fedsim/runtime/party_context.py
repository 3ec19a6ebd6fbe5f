"""Everything a role needs while it runs: job, party file, locked folder, transport, sessions and failure notices."""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from fedsim import errors, registry
from fedsim.config.job import Job
from fedsim.config.party_file import (
    PartyFile,
    TelemetrySettings,
    listen_address,
    party_credentials,
    require_membership,
)
from fedsim.config.policy import policy_violations
from fedsim.linkage.encoding import Key
from fedsim.protocol.handshake import SessionAcceptor, SessionConnector
from fedsim.protocol.messages import Message, Party, Role, Trouble
from fedsim.protocol.session import ConnectionState, PeerRestarted, Session, close_sessions, failure_notice
from fedsim.protocol.tls import RENEWAL_DAYS, Credentials
from fedsim.protocol.transport import InProcessTransport, Listener, ListSizes, MessageBounds, Transport
from fedsim.runs import input_record, run_folder
from fedsim.runs.approval import ApprovalError, require_approval
from fedsim.version import VERSION

log = logging.getLogger("fedsim.parties")

LOG_SECONDS = 5.0  # between lines about a long phase

FAILURE_NOTICE_SECONDS = 10.0  # to reach a peer only to report the end
LATE_PEER_SECONDS = 20.0  # how long after its start a failed coordinator waits for slower parties
RELOAD_SECONDS = 30.0  # until a renewed certificate is noticed
EXPIRY_WARNING_SECONDS = 24 * 3600.0
TRANSPORT_VARIABLE = "FEDSIM_TRANSPORT"
AnswerT = TypeVar("AnswerT")


def open_transport(party_file: PartyFile, *, insecure: bool = False, name: str = "") -> Transport:
    """Open the transport by which a party reaches its peers, with the credentials of ``[tls]`` unless ``insecure``.

    ``name`` is registered in :data:`fedsim.registry.TRANSPORTS`, or ``"package.module:attribute"``. Without one, the
    environment variable ``FEDSIM_TRANSPORT`` decides, and gRPC is the default.
    """
    name = name or os.environ.get(TRANSPORT_VARIABLE, "grpc")
    if ":" in name and name not in registry.TRANSPORTS:
        registry.TRANSPORTS.register(name, name)
    factory: Callable[[Credentials | None], Transport] = registry.TRANSPORTS[name]
    if insecure:
        return factory(None)
    credentials = party_credentials(party_file)
    if credentials is None:
        hint = "create certificates with `fedsim certs`, or use --insecure between processes of one machine"
        raise errors.SettingError(f"the file of {party_file.party} has no [tls] section; {hint}", code="no-certificate")
    _warn_expiry(party_file, credentials)
    return factory(credentials)


def _warn_expiry(party_file: PartyFile, credentials: Credentials) -> None:
    days = credentials.days_left(datetime.now(UTC))
    if days < RENEWAL_DAYS:
        log.warning("the certificate of %s expires in %d days", party_file.party, days)


@contextmanager
def follow_credentials(party_file: PartyFile, own: Credentials | None) -> Iterator[None]:
    """Read certificate, key and authority again every half minute: new connections use what was renewed."""
    stop = threading.Event()
    if own is not None:
        party = threading.current_thread().name  # for its log
        threading.Thread(target=_follow, args=(party_file, own, stop), name=party, daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _follow(party_file: PartyFile, own: Credentials, stop: threading.Event) -> None:
    failures, warned = 0, time.monotonic()
    while not stop.wait(RELOAD_SECONDS):
        try:
            found, failures = party_credentials(party_file), 0
        except errors.FedSimError as error:
            failures += 1
            if failures == 2:  # once, the new key may just not have been there yet
                log.warning("cannot reload the certificate; the previous one stays in use: %s", error)
            continue
        if found is not None and found != own.current():
            own.renew(found)
            days = found.days_left(datetime.now(UTC))
            log.info("new connections use the new certificate or authority; it is valid for %d days", days)
        if time.monotonic() - warned > EXPIRY_WARNING_SECONDS:
            warned = time.monotonic()
            _warn_expiry(party_file, own.current())


class PartyObserver(Protocol):
    """Events of the use of a model, for telemetry; the records of progress go to a ``ProgressObserver``."""

    def predicted(self, n_records: int, model: str) -> None:
        """Records were predicted by a model."""
        ...

    def request(self, path: str) -> AbstractContextManager[Any]:
        """Follow one HTTP request, whose ``status`` and ``code`` the service sets."""
        ...


@dataclass(frozen=True, eq=False)
class PartyContext:
    """A running party: what it works on, and its connections."""

    job: Job
    party_file: PartyFile
    folder: Path
    connection: ConnectionState
    transport: Transport
    opened: list[Session] = field(default_factory=list)
    connectors: dict[Role, SessionConnector] = field(default_factory=dict)
    acceptors: list[SessionAcceptor] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    progress: run_folder.PartyProgress = field(default_factory=run_folder.PartyProgress)
    telemetry: PartyObserver | None = None  # only if the party file asks for it

    def peer(self, role: Role) -> Party:
        """Return the coordinator or the primary of the job."""
        return next(party for party in self.job.parties if party.role is role)

    @property
    def others(self) -> list[Party]:
        """All parties of the job except this one."""
        return [party for party in self.job.parties if party != self.connection.party]

    @property
    def secondaries(self) -> list[Party]:
        """All secondaries of the job."""
        return [party for party in self.job.parties if party.role is Role.SECONDARY]

    def dial(self, role: Role, wait_seconds: float | None = None) -> Session:
        """Open a session with the coordinator or the primary."""
        peer = self.peer(role)
        if role not in self.connectors:
            self.connectors[role] = SessionConnector(self.connection, self.transport, self.job.address_of(peer), peer)
        session = self.connectors[role].open(wait_seconds)
        self.opened[:] = [*(other for other in self.opened if not other.is_over), session]
        return session

    def listen(self, expected: list[Party]) -> SessionAcceptor:
        """Accept sessions from these parties."""
        acceptor = SessionAcceptor(self.connection, expected)
        address = listen_address(self.job, self.party_file)
        self.listeners.append(self.transport.listen(address, acceptor.answer))
        self.acceptors.append(acceptor)
        return acceptor

    def dismiss_callers(self, last_message: Message) -> None:
        """Send a last message to all parties that connected to this one, and accept no more connections."""
        close_sessions([session for acceptor in self.acceptors for session in acceptor.sessions()], last_message)
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()

    def sessions(self) -> list[Session]:
        """Return all sessions that have not ended."""
        pending = (session for connector in self.connectors.values() for session in connector.pending())
        accepted = (session for acceptor in self.acceptors for session in acceptor.sessions())
        return [session for session in (*self.opened, *pending, *accepted) if not session.is_over]


@contextmanager
def open_party_context(
    job: Job,
    party_file: PartyFile,
    transport: Transport,
    versions: Mapping[str, str],
    *,
    again: bool = False,
    predicting: bool = False,
) -> Iterator[PartyContext]:
    """Run a party: lock its folder, check policy, approval and inputs, and report a failure to the other parties.

    Parameters
    ----------
    job
        The job.
    party_file
        The party to run.
    transport
        How it reaches the other parties.
    versions
        Versions of the software by name, which are compared with those of the other parties.
    again
        Whether to discard what is stored of this run and start from the beginning.
    predicting
        Whether the party only uses its trained model, if it has one.
    """
    require_membership(job, party_file)
    folder = run_folder.run_path(job, party_file)
    if party_file.linkage is not None and job.kind.SHARES_KEY and not (folder / run_folder.ENCODED_FOLDER).is_dir():
        Key.read(party_file.linkage.key)  # a key that is missing here must not show after waiting for others
    audit = run_folder.open_audit_log(party_file)
    wait_seconds = float(job.network.wait_seconds)
    bounds = _message_bounds(job, party_file.role)
    state = ConnectionState(party_file.party, job.to_dict(), versions, wait_seconds, audit.append, bounds=bounds)
    context = PartyContext(job, party_file, folder, state, transport)
    with ExitStack() as stack:
        try:
            stack.enter_context(run_folder.lock_run_folder(job, party_file))
            stack.enter_context(run_folder.persist_ledger(context.folder, state.ledger))
            if party_file.telemetry != TelemetrySettings():
                observe_party = registry.SERVICES["telemetry"]  # nothing of it is imported without the section
                context = replace(context, telemetry=stack.enter_context(observe_party(context)))
            names = [f"{name} {version}" for name, version in versions.items()]
            audit.append("started", {"job": job.hash, "versions": names})
            predicting = predicting and run_folder.is_trained(folder)
            _check_start(job, party_file, audit, again=again, predicting=predicting)
            stack.enter_context(follow_credentials(party_file, getattr(transport, "credentials", None)))
            yield context
        except run_folder.AlreadyRunningError:  # the peers talk to that other process: nothing is wrong
            raise
        except BaseException as error:
            state.record_event = partial(_record_if_possible, audit)
            notice = _notice_without_paths(state, error)
            facts = {"job": job.hash, "sent_to_peers": notice.reason, "details": _failure_details(error)}
            state.record_event("stopped", facts)
            peer = Role.PRIMARY if predicting and party_file.role is Role.SECONDARY else job.hub.role
            _notify_peers(context, notice, error, peer)
            raise
        else:
            audit.append("finished", {"job": job.hash, "bytes": state.ledger.total_bytes})
            for session in context.sessions():
                session.close()
        finally:
            for listener in context.listeners:
                listener.close()
            state.stop_signal.stop()  # ends the threads that still wait for a party, for example one that has left


@contextmanager
def open_offline_context(job: Job, party_file: PartyFile) -> Iterator[PartyContext]:
    """Lock the folder of a party that sends nothing itself, and check policy, approval and inputs."""
    require_membership(job, party_file)
    audit = run_folder.open_audit_log(party_file)
    state = ConnectionState(party_file.party, job.to_dict(), {}, record_event=audit.append)
    with run_folder.lock_run_folder(job, party_file) as folder:
        _check_start(job, party_file, audit, again=False, predicting=run_folder.is_trained(folder))
        yield PartyContext(job, party_file, folder, state, InProcessTransport())


def _message_bounds(job: Job, role: Role) -> MessageBounds:
    linked = [(terms.filters, terms) for terms in job.secondaries.values()]
    lists = [ListSizes(filters.n_bits, terms.k, terms.n_similarities) for filters, terms in linked if filters]
    if not lists:
        return MessageBounds.for_tables()
    return MessageBounds.for_lists(lists, _cut_width(job) if role is Role.PRIMARY else None)


def _cut_width(job: Job) -> int | None:
    """Return the width of what a secondary sends, unless that is one column per number and category."""
    from fedsim.runtime.run_store import embedding_width  # noqa: PLC0415 - import networks, and this module
    from fedsim.runtime.secondary import secondary_model_spec  # noqa: PLC0415

    if job.protection.sealed:
        return None if job.protection.embedding_name == "features" else embedding_width(job)
    return secondary_model_spec(job).width


def _check_start(job: Job, party_file: PartyFile, audit: run_folder.AuditLog, *, again: bool, predicting: bool) -> None:
    """Check policy and approval, and that what is stored of the run is of the inputs at hand, or else discard it."""
    if broken := policy_violations(job, party_file):
        reasons = "; ".join(violation.message for violation in broken)
        raise errors.PolicyError(reasons, code="policy-violation")
    audit.append("approved", {"job": job.hash, "how": require_approval(job, party_file)})
    if again:
        input_record.discard_run(job, party_file)
    input_record.require_same_inputs(job, [party_file], predicting=predicting)


def _notice_without_paths(state: ConnectionState, error: BaseException) -> Trouble:
    """Return the message that reports a failure; the texts of some errors name files and commands of ours."""
    if isinstance(error, ApprovalError):
        return Trouble(str(state.party), "its owner has not approved this job", passing=False)
    if isinstance(error, errors.StaleResultError):
        kinds = " and ".join(dict.fromkeys(change.kind for change in error.changes))
        return Trouble(str(state.party), f"its {kinds} changed since this job was run", passing=True)
    return failure_notice(state, error)


def _record_if_possible(audit: run_folder.AuditLog, event: str, facts: Mapping[str, run_folder.AuditFact]) -> None:
    """Let a failing party reach its peers even if its audit log cannot be written; it must do nothing else then."""
    try:
        audit.append(event, facts)
    except errors.FileError as error:
        log.warning("%s", error)


def _failure_details(error: BaseException) -> str:
    """Return the reason for our own log; an internal error is given by its place, because its text may hold data."""
    if isinstance(error, errors.FedSimError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def _notify_peers(context: PartyContext, notice: Trouble, error: BaseException, waiting: Role) -> None:
    """Report a failure to all connected parties, and to those that have not connected yet or are ``waiting`` for us."""
    close_sessions(context.sessions(), notice)
    if not isinstance(error, Exception) or context.connection.serves_predictions:
        return  # a party stopped by its owner does not wait for others
    reason = str(error) if isinstance(error, errors.FedSimError) else notice.reason
    log.error("stopping and notifying the other parties: %s", reason)
    try:
        if context.connection.party == context.job.hub:  # everybody connects to it, so it waits a moment
            acceptor = context.acceptors[0] if context.acceptors else context.listen(context.others)
            acceptor.send_last(notice, min(LATE_PEER_SECONDS, context.job.network.wait_seconds))
            close_sessions(context.sessions(), notice)
        # With a PeerError the other side is the cause.
        elif not context.opened and not isinstance(error, errors.PeerError):
            close_sessions([context.dial(waiting, FAILURE_NOTICE_SECONDS)], notice)
    except (errors.PeerError, errors.SettingError) as unreachable:
        log.debug("not every party could be notified: %s", unreachable)


@dataclass(eq=False)
class LinkageProgress:
    """Publishes how far the work for a linkage without a coordinator is, as a share of records, and logs it at times.

    ``what`` is done for a list of that many ``records``.
    """

    context: PartyContext
    name: str
    records: int
    what: str

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not done:
            self._began = self._logged = now
        progress, share = self.context.progress, done / total if total else 1.0
        progress.link(self.name, int(share * self.records), self.records)
        if now - self._logged >= LOG_SECONDS:
            self._logged, left = now, (now - self._began) * (total - done) / max(done, 1)
            log.info("linking with %s: %.0f %% of %s; about %.0f seconds left", self.name, 100 * share, self.what, left)


class ReconnectingPeer:
    """A peer that may be restarted at any time: opens a new session when the old one is lost."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open = open_session
        self._session: Session | None = None

    @property
    def connected(self) -> bool:
        """Whether the peer is connected now."""
        return self._session is not None and not self._session.is_over and self._session.connected

    def session(self) -> Session:
        """Return the current session; open one if there is none."""
        if self._session is None or self._session.is_over:
            self._session = self._open()
        return self._session

    def ask(self, request: Callable[[Session], AnswerT]) -> AnswerT:
        """Repeat a request until it is answered; asking twice must be harmless."""
        while True:
            session = self.session()
            try:
                return request(session)
            except PeerRestarted as restarted:
                text = "%s; repeating the request"
                session.connection.log_peer_event("restarted", restarted.peer, logging.INFO, text, restarted)


def software_versions() -> dict[str, str]:
    """Return software versions and, if torch is loaded, what decides the last bit of a sum: threads and CPU features.

    A process that loads torch later records its versions once more.
    """
    versions = {"fedsim": VERSION, "python": platform.python_version(), "numpy": np.__version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions |= {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
        versions["threads"] = str(torch.get_num_threads())
    return versions
