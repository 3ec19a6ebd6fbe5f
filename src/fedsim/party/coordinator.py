"""The coordinator's process: receives everybody, links, and stays until the primary says that all is done."""

from __future__ import annotations

import logging
import threading

from fedsim.errors import FedSimError, PeerError
from fedsim.linkage.blind import Linking
from fedsim.linkage.secret_file import own_secret
from fedsim.party.post import Post
from fedsim.party.run_progress import WAIT
from fedsim.protocol.handshake import Reception
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.roles.coordinator import Coordinator
from fedsim.protocol.session import PeerRestarted
from fedsim.protocol.trouble import part

log = logging.getLogger("fedsim.parties")

POLL = 0.2


def run_coordinator(post: Post, *, stay: bool = False) -> None:
    """Attend all parties until the job is done; ``stay`` goes on for predictions."""
    lists = {
        name: Linking(terms.metric, terms.k, terms.tau, terms.sigma, terms.min_degree, terms.dummies, terms.hide_rows)
        for name, terms in post.job.secondaries.items()
    }
    secret, most_new = own_secret(post.folder / "secret"), post.own.policy.max_new_records
    role = Coordinator(lists, secret, post.folder / "lists", most_new=most_new)
    if role.was_finished and not stay:
        log.info("job '%s' was finished before", post.job.name)
        return
    if stay:
        post.station.wait_seconds, post.station.staying = float("inf"), role.was_finished
    reception = post.receive(post.others)
    attendants = [_Attendant(role, reception, party, post) for party in post.others]
    for attendant in attendants:
        attendant.start()
    _wait(post, role, attendants, stay)


class _Attendant(threading.Thread):
    """Attends one party through all its restarts."""

    def __init__(self, role: Coordinator, reception: Reception, party: Party, post: Post) -> None:
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
                    if self.post.station.alarm.rung or not self.post.station.staying:
                        raise
                    log.info("%s; others may still ask", fault)
                    part(session, fault)
        except BaseException as fault:  # raised again where the others are told
            if not (isinstance(fault, PeerError) and self._may_stay_away()):
                self.fault = fault

    def _may_stay_away(self) -> bool:
        """Once all is linked, a secondary that has gone is no matter of ours; nobody but the primary ends the job."""
        linked = self.role.all_linked and not self.post.station.alarm.rung
        return linked and self.party.role is Role.SECONDARY


def _wait(post: Post, role: Coordinator, attendants: list[_Attendant], stay: bool) -> None:
    while True:
        for attendant in attendants:
            if attendant.fault:
                raise attendant.fault
        post.station.alarm.check()
        if role.all_linked:
            post.progress.follow(post.station.ledger.entries())
            post.progress.enter(WAIT)
        if role.finished.wait(POLL):
            if not stay:
                return
            post.station.staying = True
            role.finished.clear()
