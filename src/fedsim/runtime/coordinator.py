"""The coordinator's process: accepts all parties, links, and waits until the primary reports the end."""

import logging
import threading

from fedsim.errors import FedSimError, PeerError
from fedsim.linkage.soft_linkage import load_engine
from fedsim.protocol.handshake import SessionAcceptor
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.roles.coordinator_role import Coordinator, LinkLimits
from fedsim.protocol.session import PeerRestarted, abort_session
from fedsim.runs.run_folder import SECRET_FILE, SERVING_STAGE, WAITING_STAGE
from fedsim.runtime.party_context import PartyContext
from fedsim.storage.files import load_or_create_secret

log = logging.getLogger("fedsim.parties")

POLL_SECONDS = 0.2


def run_coordinator(context: PartyContext, *, stay: bool = False) -> None:
    """Serve all parties until the job is done.

    Parameters
    ----------
    context
        The running party, from :func:`open_party_context`.
    stay
        Whether to stay for predictions afterwards.
    """
    lists = {name: terms.linkage for name, terms in context.job.secondaries.items()}
    secret, policy = load_or_create_secret(context.folder / SECRET_FILE), context.party_file.policy
    limits = LinkLimits(policy.max_new_records, policy.max_new_links)
    role = Coordinator(
        lists,
        secret,
        context.folder / "lists",
        limits=limits,
        progress=context.progress.link,
        engine=load_engine(context.party_file.engine),
    )
    connection = context.connection
    if role.was_finished and not stay:
        log.info("job '%s' is already finished; with --again at every party it is run again", context.job.name)
        return
    if stay:
        connection.wait_seconds, connection.serves_predictions = float("inf"), role.was_finished
    acceptor = context.listen(context.others)
    handlers = [_PartyHandler(role, acceptor, party, context) for party in context.others]
    for handler in handlers:
        handler.start()
    while True:
        for handler in handlers:
            if handler.error:
                raise handler.error
        connection.stop_signal.check()
        if role.all_linked:
            context.progress.follow(connection.ledger.entries())
            context.progress.enter(SERVING_STAGE if connection.serves_predictions else WAITING_STAGE)
        if role.finished.wait(POLL_SECONDS):
            if not stay:
                return
            connection.serves_predictions = True
            role.finished.clear()


class _PartyHandler(threading.Thread):
    """Serves one party through all its restarts."""

    def __init__(self, role: Coordinator, acceptor: SessionAcceptor, party: Party, context: PartyContext) -> None:
        super().__init__(name=f"serving {party}", daemon=True)
        self.role, self.acceptor, self.party, self.connection = role, acceptor, party, context.connection
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                session = self.acceptor.session_with(self.party)
                try:
                    self.role.serve(session)
                except PeerRestarted as restarted:
                    self.connection.log_peer_event("restarted", self.party, logging.INFO, "%s", restarted)
                except FedSimError as error:
                    if self.connection.stop_signal.failure or not self.connection.serves_predictions:
                        raise
                    served = "%s; other requests are still served"
                    self.connection.log_peer_event("refused request", self.party, logging.INFO, served, error)
                    abort_session(session, error)
        except BaseException as error:  # raised again in the main thread, which notifies the other parties
            # Once everything is linked, the coordinator no longer needs a secondary; only the primary ends the job.
            linked = self.role.all_linked and not self.connection.stop_signal.failure
            if not (isinstance(error, PeerError) and linked and self.party.role is Role.SECONDARY):
                self.error = error
