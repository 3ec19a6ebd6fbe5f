"""The coordinator's side of the protocol: encoded identifiers in, pseudonymous partners and row orders out.

What it has linked it keeps on its disk, so neither side need send again after a restart, and new records can be linked
for predictions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FedSimError, FileError, InputError, PeerError, PolicyError, SettingError
from fedsim.linkage.private_linkage import (
    LinkageConfig,
    LinkageState,
    PrivateLinks,
    link_encoded_tables,
    link_new_records,
    load_linkage_state,
    load_private_links,
    save_linkage_state,
    save_private_links,
)
from fedsim.protocol.codec import (
    NO_BYTES,
    Envelope,
    derive_seal_key,
    offer_digest,
    seal_rows,
)
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
    Party,
    Phase,
    Queries,
    Role,
    RowOrder,
    Unchanged,
    Want,
)
from fedsim.protocol.session import PeerRestarted, Session, log, public_reason
from fedsim.storage.digest import arrays_digest
from fedsim.storage.files import append_durably, atomic_write
from fedsim.types import EncodedTable

NOTICE_SECONDS = 2.0  # before a peer takes our silence for a fault
POLL = 0.2
NEW_RECORDS_FILE, DIGEST_BYTES = "new-records", 16  # bytes each
FINISHED_FILE = "finished"


def number_links(delivery: PrivateLinks) -> PrivateLinks:
    """The same similarities with a row number of its own for every link.

    >>> number_links(PrivateLinks(np.array([[7, 3], [7, 1]], np.int32), np.zeros((2, 2), np.float32))).partner.tolist()
    [[0, 1], [2, 3]]
    """
    numbers = np.arange(delivery.partner.size, dtype=np.int32).reshape(delivery.partner.shape)
    return PrivateLinks(numbers, delivery.similarity)


def linked_rows(delivery: PrivateLinks, order: NDArray[Any]) -> NDArray[np.int32]:
    """The secondary's own row behind every number, (n K,)."""
    return np.asarray(order[delivery.partner].ravel(), dtype=np.int32)


@dataclass(eq=False)
class LinkedListState:
    """One secondary's list: what came in, and what came of it. The digests are those of the tables linked."""

    name: str
    linking: LinkageConfig
    folder: Path
    candidates: EncodedTable | None = None
    linked: LinkageState | None = None
    delivery: PrivateLinks | None = None
    digests: tuple[str, str] = ("", "")  # of queries and candidates
    asked: set[bytes] = field(default_factory=set)  # digests of the new records linked for predictions so far
    work: threading.Lock = field(default_factory=threading.Lock)

    def count(self, records: EncodedTable, most: int) -> None:
        """Count new records before they are linked; noise protects against some questions, not against any number.

        A record that was asked before gets the same answer and counts once.
        """
        new = {blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in records.bits}
        with self.work:
            new -= self.asked
            if len(self.asked) + len(new) > most:
                raise PolicyError(
                    f"the coordinator links {most:,} new records of list '{self.name}' and has linked "
                    f"{len(self.asked):,}; its owner may raise max_new_records"
                )
            append_durably(self.folder / NEW_RECORDS_FILE, b"".join(sorted(new)))
            self.asked |= new

    def is_linked_from(self, peer: Party, digest: str) -> bool:
        """Whether this very table of a party was linked; refuses another one, in whatever message it comes."""
        if self.delivery is None:
            return False
        if self.digests[0 if peer.role is Role.PRIMARY else 1] != digest:
            raise PolicyError(  # every other set of records would be a new sample of the noise
                f"the identifiers of {peer} have changed since list '{self.name}' was linked; a changed "
                "table is a new job: give it another name and have it approved"
            )
        return True

    def load(self) -> None:
        """Take up what an earlier process linked."""
        if (self.folder / NEW_RECORDS_FILE).is_file():
            self.asked = _read_digests(self.folder / NEW_RECORDS_FILE)
        if (self.folder / "delivery.safetensors").is_file():
            self.linked = load_linkage_state(self.folder / "linked.safetensors")
            self.delivery = load_private_links(self.folder / "delivery.safetensors")
            digest = (self.folder / "queries.digest").read_text().strip()
            self.digests = digest, offer_digest(self.linked.candidates)
            self.candidates = self.linked.candidates

    def store(self) -> None:
        """Keep it; the delivery, written last, says that all is there."""
        if self.linked is None or self.delivery is None:
            raise FileError(f"list '{self.name}' is not linked yet")
        self.folder.mkdir(parents=True, exist_ok=True)
        save_linkage_state(self.linked, self.folder / "linked.safetensors")
        with atomic_write(self.folder / "queries.digest") as part:
            part.write_text(self.digests[0])
        save_private_links(self.delivery, self.folder / "delivery.safetensors")


def _read_digests(path: Path) -> set[bytes]:
    """What was appended; the end of a write that a kill cut short is taken off."""
    found = path.read_bytes()
    whole = len(found) - len(found) % DIGEST_BYTES
    if whole < len(found):
        os.truncate(path, whole)
    return {found[start : start + DIGEST_BYTES] for start in range(0, whole, DIGEST_BYTES)}


class Coordinator:
    """Attends any number of conversations at a time, each in its own thread."""

    def __init__(self, lists: Mapping[str, LinkageConfig], secret: bytes, folder: Path, *, most_new: int) -> None:
        self._secret, self._most_new, self._end = secret, most_new, folder.with_name(FINISHED_FILE)
        self._lists = {name: LinkedListState(name, linking, folder / name) for name, linking in lists.items()}
        self._changed = threading.Condition()
        self.finished = threading.Event()
        for partner_list in self._lists.values():
            partner_list.load()

    @property
    def was_finished(self) -> bool:
        """Whether the primary has said, in this process or an earlier one, that training has ended."""
        return self._end.is_file()

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
            with atomic_write(self._end) as part:  # before it is confirmed: the primary then leaves for good
                part.write_text("")
            session.phase = Phase.END
            session.post(Done(""), reply_to=envelope.sequence)
            self.finished.set()
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
            self._take_candidates(session, partner_list, message)
            self._deliver(session, partner_list, envelope, "")
        elif isinstance(message, Queries):
            self._take_queries(session, partner_list, message)
            self._deliver(session, partner_list, envelope, "")
        else:
            session.post(self._again_or_why_not(session, partner_list, message), reply_to=envelope.sequence)

    def _list_of(self, peer: Party, name: str) -> LinkedListState:
        if name not in self._lists or (peer.role is Role.SECONDARY and peer.name != name):
            raise PeerError(f"{peer} spoke of a list that is not its own")
        return self._lists[name]

    def _is_wanted(self, peer: Party, partner_list: LinkedListState, digest: str) -> bool:
        with self._changed:
            if partner_list.is_linked_from(peer, digest):
                return False
            if peer.role is Role.SECONDARY:
                partner_list.candidates = None  # other ones may come than those of before
            return True

    def _take_candidates(self, session: Session, partner_list: LinkedListState, message: Candidates) -> None:
        table = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        with self._changed:
            if not partner_list.is_linked_from(session.peer, offer_digest(table)):
                partner_list.candidates = table
                self._changed.notify_all()

    def _take_queries(self, session: Session, partner_list: LinkedListState, message: Queries) -> None:
        queries = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        candidates = self._wait(session, partner_list, "candidates")
        with partner_list.work:
            if partner_list.is_linked_from(session.peer, offer_digest(queries, message.counted)):
                return
            with _send_notices(session, f"list '{partner_list.name}' is being linked"):
                found = self._linked(partner_list, queries, candidates, message.counted.astype(bool))
            with self._changed:
                newest = partner_list.candidates
                if newest is not None and offer_digest(newest) != offer_digest(candidates):
                    raise PeerError(f"secondary '{partner_list.name}' sent other identifiers while they were linked")
                partner_list.linked, partner_list.delivery = found
                partner_list.digests = offer_digest(queries, message.counted), offer_digest(candidates)
                partner_list.store()
                self._changed.notify_all()
        session.connection.note("linked", {"list": partner_list.name, "records": len(queries)})

    def _linked(
        self, partner_list: LinkedListState, queries: EncodedTable, candidates: EncodedTable, counted: np.ndarray
    ) -> tuple[LinkageState, PrivateLinks]:
        linking = partner_list.linking
        if linking.k > len(candidates):
            raise PolicyError(f"list '{partner_list.name}' has {len(candidates)} candidates for k={linking.k}; lower k")
        try:
            with _blame_peer(partner_list.name):
                return link_encoded_tables(queries, candidates, counted, linking, self._secret, partner_list.name)
        except SettingError as fault:  # its text tells the spread of the distances, which only we may know
            raise PolicyError(
                f"list '{partner_list.name}': no noise reaches tau={linking.tau}; ask for a larger tau, for "
                "sigma or for blurred places (the coordinator's log names the smallest)"
            ) from fault

    def _deliver(self, session: Session, partner_list: LinkedListState, envelope: Envelope, have: str) -> None:
        self._wait(session, partner_list, "delivery")
        linked, delivery = partner_list.linked, partner_list.delivery
        if linked is None or delivery is None:
            raise PeerError(f"list '{partner_list.name}' was not linked")
        if session.peer.role is Role.PRIMARY:
            shown = number_links(delivery) if partner_list.linking.hide_rows else delivery
            same = have == arrays_digest(shown.partner, shown.similarity)
            answer: Message = Unchanged() if same else self._partners(partner_list, delivery, NO_BYTES)
        else:
            order, key = self._order_of(partner_list, linked, delivery)
            same = have == arrays_digest(order, key)
            answer = Unchanged() if same else RowOrder(partner_list.name, order=order, seal=key)
        session.post(answer, reply_to=envelope.sequence)

    def _order_of(
        self, partner_list: LinkedListState, linked: LinkageState, delivery: PrivateLinks
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        if not partner_list.linking.hide_rows:
            return linked.order, NO_BYTES
        return linked_rows(delivery, linked.order), derive_seal_key(self._secret, partner_list.name)

    def _partners(self, partner_list: LinkedListState, delivery: PrivateLinks, closed: NDArray[np.uint8]) -> Partners:
        linked, hidden = partner_list.linked, partner_list.linking.hide_rows
        shown = number_links(delivery) if hidden else delivery
        n_candidates = shown.partner.size if hidden or linked is None else len(linked.candidates)
        return Partners(
            partner_list.name, n_candidates, partner=shown.partner, similarity=shown.similarity, sealed=closed
        )

    def _again_or_why_not(self, session: Session, partner_list: LinkedListState, message: NewQueries) -> Message:
        """A question that cannot be answered is no reason to leave: others will follow."""
        try:
            return self._again(session, partner_list, message)
        except FedSimError as fault:
            log.warning("%s asked for links that were not made: %s", session.peer, fault)
            return Done(public_reason(fault))

    def _again(self, session: Session, partner_list: LinkedListState, message: NewQueries) -> Message:
        session.phase = Phase.PREDICT
        if partner_list.linked is None:
            raise PeerError(f"{session.peer} asked for new links of '{partner_list.name}' before any were made")
        queries = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        partner_list.count(queries, self._most_new)
        with _blame_peer(partner_list.name):
            delivery = link_new_records(
                queries, partner_list.linked, partner_list.linking, self._secret, partner_list.name
            )
        closed = NO_BYTES
        if partner_list.linking.hide_rows:
            rows = linked_rows(delivery, partner_list.linked.order)
            closed = seal_rows(derive_seal_key(self._secret, partner_list.name), rows)
        return self._partners(partner_list, delivery, closed)

    def _wait(self, session: Session, partner_list: LinkedListState, what: str) -> Any:
        """What the other side makes, as soon as it has; the one who waits is told for whom."""
        told = time.monotonic()
        with self._changed:
            while getattr(partner_list, what) is None:
                session.check()
                if time.monotonic() - told > _notice_seconds(session):
                    told = time.monotonic()
                    missing = Role.SECONDARY if partner_list.candidates is None else Role.PRIMARY
                    session.post(Notice(f"list '{partner_list.name}' waits for the {missing}'s identifiers"))
                self._changed.wait(POLL)
            return getattr(partner_list, what)


@contextmanager
def _blame_peer(name: str) -> Iterator[None]:
    """A table that came from a party and breaks a rule is no fault of ours."""
    try:
        yield
    except InputError as fault:
        raise PeerError(f"list '{name}': {fault}") from fault


@contextmanager
def _send_notices(session: Session, text: str) -> Iterator[None]:
    """Say every few seconds that work goes on: a peer takes long silence for a fault."""
    done = threading.Event()
    threading.Thread(target=_send_notices_until, args=(done, session, text), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _send_notices_until(done: threading.Event, session: Session, text: str) -> None:
    with suppress(PeerError, PeerRestarted):  # what ends a conversation is told where it is used
        while not done.wait(_notice_seconds(session)):
            session.post(Notice(text))


def _notice_seconds(session: Session) -> float:
    return min(NOTICE_SECONDS, session.connection.wait_seconds / 3)
