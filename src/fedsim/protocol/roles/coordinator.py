"""The coordinator's side of the conversations: encoded identifiers in, pseudonymous partners and row orders out.

What it has linked it keeps on its disk, so neither side need send again after a restart, and new records can be linked
for predictions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedsim.errors import FileError, PeerError, PolicyError, SettingError
from fedsim.linkage.blind import Delivery, Linked, Linking, link_again, link_blind
from fedsim.linkage.blind_file import load_delivery, load_linked, save_delivery, save_linked
from fedsim.linkage.whole_file import whole_file
from fedsim.protocol.codec import Envelope
from fedsim.protocol.digests import arrays_digest, table_digest
from fedsim.protocol.messages import (
    Candidates,
    Done,
    Farewell,
    Finish,
    Message,
    NewQueries,
    Notice,
    Offer,
    Partners,
    Phase,
    Queries,
    RowOrder,
    Unchanged,
    Want,
)
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.session import Session
from fedsim.types import EncodedTable

NOTICE_SECONDS = 5.0
POLL = 0.2


@dataclass(eq=False)
class PartnerList:
    """One secondary's list: what came in, and what came of it. The digests are those of the tables linked."""

    name: str
    linking: Linking
    folder: Path
    candidates: EncodedTable | None = None
    linked: Linked | None = None
    delivery: Delivery | None = None
    digests: tuple[str, str] = ("", "")  # of queries and candidates
    work: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        """Take up what an earlier process linked."""
        if (self.folder / "delivery.safetensors").is_file():
            self.linked = load_linked(self.folder / "linked.safetensors")
            self.delivery = load_delivery(self.folder / "delivery.safetensors")
            digest = (self.folder / "queries.digest").read_text().strip()
            self.digests = digest, table_digest(self.linked.candidates)
            self.candidates = self.linked.candidates

    def store(self) -> None:
        """Keep it; the delivery, written last, says that all is there."""
        if self.linked is None or self.delivery is None:
            raise FileError(f"list '{self.name}' is not linked yet")
        self.folder.mkdir(parents=True, exist_ok=True)
        save_linked(self.linked, self.folder / "linked.safetensors")
        with whole_file(self.folder / "queries.digest") as part:
            part.write_text(self.digests[0])
        save_delivery(self.delivery, self.folder / "delivery.safetensors")


class Coordinator:
    """Attends any number of conversations at a time, each in its own thread."""

    def __init__(self, lists: Mapping[str, Linking], secret: bytes, folder: Path) -> None:
        self._secret = secret
        self._lists = {name: PartnerList(name, linking, folder / name) for name, linking in lists.items()}
        self._changed = threading.Condition()
        self.finished = threading.Event()
        for partner_list in self._lists.values():
            partner_list.load()

    @property
    def all_linked(self) -> bool:
        """Whether every list has been linked."""
        return all(partner_list.linked is not None for partner_list in self._lists.values())

    def attend(self, session: Session) -> None:
        """Answer a party until it says farewell."""
        while True:
            envelope = session.next()
            if isinstance(envelope.message, Farewell):
                return
            self._answer(session, envelope)

    def _answer(self, session: Session, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Finish):
            self.finished.set()
            session.post(Done(""), reply_to=envelope.sequence)
        elif isinstance(message, Offer | Candidates | Queries | NewQueries):
            self._link(session, envelope, message)
        else:
            raise PeerError(f"{session.peer} sent '{message.kind}', which has no place here")

    def _link(self, session: Session, envelope: Envelope, message: Offer | Candidates | Queries | NewQueries) -> None:
        partner_list = self._list_of(session.peer, message.partner_list)
        if isinstance(message, Offer):
            wanted = self._is_wanted(session.peer, partner_list, message.digest)
            session.post(Want(wanted), reply_to=envelope.sequence)
            if not wanted:
                self._deliver(session, partner_list, envelope, message.have)
        elif isinstance(message, Candidates):
            self._take_candidates(partner_list, message)
            self._deliver(session, partner_list, envelope, "")
        elif isinstance(message, Queries):
            self._take_queries(session, partner_list, message)
            self._deliver(session, partner_list, envelope, "")
        else:
            session.post(self._again(session, partner_list, message), reply_to=envelope.sequence)

    def _list_of(self, peer: Party, name: str) -> PartnerList:
        if name not in self._lists or (peer.role is Role.SECONDARY and peer.name != name):
            raise PeerError(f"{peer} spoke of a list that is not its own")
        return self._lists[name]

    def _is_wanted(self, peer: Party, partner_list: PartnerList, digest: str) -> bool:
        with self._changed:
            place = 0 if peer.role is Role.PRIMARY else 1
            if partner_list.delivery is not None and partner_list.digests[place] != digest:
                partner_list.linked = partner_list.delivery = None  # identifiers have changed: link anew
            return partner_list.delivery is None

    def _take_candidates(self, partner_list: PartnerList, message: Candidates) -> None:
        table = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        with self._changed:
            partner_list.candidates = table
            self._changed.notify_all()

    def _take_queries(self, session: Session, partner_list: PartnerList, message: Queries) -> None:
        queries = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        self._wait(session, partner_list, "candidates")
        with partner_list.work:
            candidates = partner_list.candidates
            if candidates is None:
                raise PeerError(f"secondary '{partner_list.name}' took its identifiers back")
            found = self._linked(partner_list, queries, candidates, message.counted.astype(bool))
            with self._changed:
                partner_list.linked, partner_list.delivery = found
                partner_list.digests = table_digest(queries, message.counted), table_digest(candidates)
                partner_list.store()
                self._changed.notify_all()
        session.station.note("linked", {"list": partner_list.name, "records": len(queries)})

    def _linked(
        self, partner_list: PartnerList, queries: EncodedTable, candidates: EncodedTable, counted: np.ndarray
    ) -> tuple[Linked, Delivery]:
        linking = partner_list.linking
        if linking.k > len(candidates):
            raise PolicyError(f"list '{partner_list.name}' has {len(candidates)} candidates for k={linking.k}; lower k")
        try:
            return link_blind(queries, candidates, counted, linking, self._secret, partner_list.name)
        except SettingError as fault:  # its text tells the spread of the distances, which only we may know
            raise PolicyError(
                f"list '{partner_list.name}': no noise reaches tau={linking.tau}; ask for a larger tau or longer "
                "filters (the coordinator's log names the smallest)"
            ) from fault

    def _deliver(self, session: Session, partner_list: PartnerList, envelope: Envelope, have: str) -> None:
        self._wait(session, partner_list, "delivery")
        linked, delivery = partner_list.linked, partner_list.delivery
        if linked is None or delivery is None:
            raise PeerError(f"the identifiers of list '{partner_list.name}' changed while they were linked")
        if session.peer.role is Role.PRIMARY:
            same = have == arrays_digest(delivery.partner, delivery.similarity)
            answer: Message = Unchanged() if same else _partners(partner_list.name, linked, delivery)
        else:
            same = have == arrays_digest(linked.order)
            answer = Unchanged() if same else RowOrder(partner_list.name, order=linked.order)
        session.post(answer, reply_to=envelope.sequence)

    def _again(self, session: Session, partner_list: PartnerList, message: NewQueries) -> Message:
        session.phase = Phase.PREDICT
        if partner_list.linked is None:
            raise PeerError(f"{session.peer} asked for new links of '{partner_list.name}' before any were made")
        queries = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        delivery = link_again(queries, partner_list.linked, partner_list.linking, self._secret, partner_list.name)
        return _partners(partner_list.name, partner_list.linked, delivery)

    def _wait(self, session: Session, partner_list: PartnerList, what: str) -> None:
        """Until the other side has done its part; the one who waits is told for whom."""
        told = time.monotonic()
        with self._changed:
            while getattr(partner_list, what) is None:
                session.check()
                if time.monotonic() - told > NOTICE_SECONDS:
                    told = time.monotonic()
                    missing = "the secondary's identifiers" if partner_list.candidates is None else "the primary's"
                    session.post(Notice(f"list '{partner_list.name}' waits for {missing}"))
                self._changed.wait(POLL)


def _partners(name: str, linked: Linked, delivery: Delivery) -> Partners:
    return Partners(name, len(linked.candidates), partner=delivery.partner, similarity=delivery.similarity)
