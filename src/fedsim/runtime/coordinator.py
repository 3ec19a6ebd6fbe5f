"""The coordinator's process: accepts all parties, links, and waits until the primary reports the end."""

from __future__ import annotations

import logging
import threading

from fedsim.errors import FedSimError, PeerError
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.protocol.handshake import SessionAcceptor
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.roles.coordinator import Coordinator
from fedsim.protocol.session import PeerRestarted, abort_session
from fedsim.runs.progress import WAITING_STAGE
from fedsim.runtime.party_context import PartyContext
from fedsim.storage.secrets import load_or_create_secret

log = logging.getLogger("fedsim.parties")

POLL_SECONDS = 0.2


def run_coordinator(post: PartyContext, *, stay: bool = False) -> None:
    """Attend all parties until the job is done; ``stay`` goes on for predictions."""
    lists = {
        name: LinkageConfig(
            terms.metric, terms.k, terms.tau, terms.sigma, terms.min_degree, terms.dummies, terms.hide_rows
        )
        for name, terms in post.job.secondaries.items()
    }
    secret, most_new = load_or_create_secret(post.folder / "secret"), post.own.policy.max_new_records
    role = Coordinator(lists, secret, post.folder / "lists", most_new=most_new)
    if role.was_finished and not stay:
        log.info("job '%s' was finished before", post.job.name)
        return
    if stay:
        post.connection.wait_seconds, post.connection.serves_predictions = float("inf"), role.was_finished
    reception = post.receive(post.others)
    attendants = [_PartyHandler(role, reception, party, post) for party in post.others]
    for attendant in attendants:
        attendant.start()
    _wait_until_finished(post, role, attendants, stay)


class _PartyHandler(threading.Thread):
    """Attends one party through all its restarts."""

    def __init__(self, role: Coordinator, reception: SessionAcceptor, party: Party, post: PartyContext) -> None:
        super().__init__(name=f"attending {party}", daemon=True)
        self.role, self.reception, self.party, self.post = role, reception, party, post
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                session = self.reception.session_with(self.party)
                try:
                    self.role.attend(session)
                except PeerRestarted as restarted:
                    log.info("%s", restarted)
                except FedSimError as fault:
                    if self.post.connection.stop_signal.rung or not self.post.connection.serves_predictions:
                        raise
                    log.info("%s; others may still ask", fault)
                    abort_session(session, fault)
        except BaseException as fault:  # raised again where the others are told
            if not (isinstance(fault, PeerError) and self._may_stay_away()):
                self.fault = fault

    def _may_stay_away(self) -> bool:
        """Once all is linked, a secondary that has gone is no matter of ours; nobody but the primary ends the job."""
        linked = self.role.all_linked and not self.post.connection.stop_signal.rung
        return linked and self.party.role is Role.SECONDARY


def _wait_until_finished(post: PartyContext, role: Coordinator, attendants: list[_PartyHandler], stay: bool) -> None:
    while True:
        for attendant in attendants:
            if attendant.fault:
                raise attendant.fault
        post.connection.stop_signal.check()
        if role.all_linked:
            post.progress.follow(post.connection.ledger.entries())
            post.progress.enter(WAITING_STAGE)
        if role.finished.wait(POLL_SECONDS):
            if not stay:
                return
            post.connection.serves_predictions = True
            role.finished.clear()
