"""The coordinator's process: receives everybody, links, and stays until the primary says that all is done."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from fedsim.errors import FedSimError, PeerError
from fedsim.linkage.blind import Linking
from fedsim.linkage.secret_file import coordinator_secret
from fedsim.linkage.whole_file import whole_file
from fedsim.party.post import Post
from fedsim.protocol.handshake import Reception
from fedsim.protocol.parties import Party
from fedsim.protocol.roles.coordinator import Coordinator
from fedsim.protocol.session import PeerRestarted

log = logging.getLogger("fedsim.parties")

POLL = 0.2
FINISHED = "finished"


def run_coordinator(post: Post, *, stay: bool = False) -> None:
    """Attend all parties until the job is done; ``stay`` goes on for predictions."""
    finished = post.folder / FINISHED
    if finished.is_file() and not stay:
        log.info("job '%s' was finished before", post.job.name)
        return
    lists = {
        name: Linking(terms.metric, terms.k, terms.tau, terms.sigma) for name, terms in post.job.secondaries.items()
    }
    role = Coordinator(lists, coordinator_secret(post.folder / "secret"), post.folder / "lists")
    expected = [party for party in post.job.parties if party != post.station.party]
    if stay:
        post.station.wait_seconds = float("inf")
    reception = post.receive(expected)
    attendants = [_Attendant(role, reception, party, post) for party in expected]
    for attendant in attendants:
        attendant.start()
    _wait(post, role, attendants, finished, stay)


class _Attendant(threading.Thread):
    """Attends one party through all its restarts."""

    def __init__(self, role: Coordinator, reception: Reception, party: Party, post: Post) -> None:
        super().__init__(name=f"attending {party}", daemon=True)
        self.role, self.reception, self.party, self.post = role, reception, party, post
        self.fault: FedSimError | None = None

    def run(self) -> None:
        try:
            while True:
                try:
                    self.role.attend(self.reception.session_with(self.party))
                except PeerRestarted as restarted:
                    log.info("%s", restarted)
        except FedSimError as fault:
            if not (isinstance(fault, PeerError) and self.role.all_linked and not self.post.station.alarm.rung):
                self.fault = fault  # once all is linked, a party that stays away is no matter of ours


def _wait(post: Post, role: Coordinator, attendants: list[_Attendant], finished: Path, stay: bool) -> None:
    while True:
        for attendant in attendants:
            if attendant.fault:
                raise attendant.fault
        post.station.alarm.check()
        if role.finished.wait(POLL):
            with whole_file(finished) as part:
                part.write_text("")
            if not stay:
                return
            role.finished.clear()
