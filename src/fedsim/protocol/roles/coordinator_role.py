"""The coordinator's side of the protocol: encoded identifiers in, pseudonymous partners and row orders out.

Everything it has linked stays on its disk, so that nothing is sent again after a restart and new records can be linked
for predictions. Letters: n records, K partners.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.errors import FedSimError, FileError, InputError, PeerError, PolicyError, SettingError
from fedsim.linkage import private_linkage
from fedsim.linkage.private_linkage import LinkageConfig, LinkageState, count_links, link_encoded_tables
from fedsim.linkage.search.runner import distinct_records
from fedsim.privacy.keyed_prng import SECRET_BYTES, derive_subkey, hash_rows
from fedsim.protocol import messages as m
from fedsim.protocol.session import POLL, Session, log, notice_seconds, public_reason, send_notices
from fedsim.protocol.transport import NO_BYTES, Envelope, LinkedRows, derive_seal_key, offer_digest, seal_links
from fedsim.storage.files import DigestSet, append_durably, atomic_write, record_digest
from fedsim.storage.tensor_file import Tensors, arrays_digest, damaged_file, load_tensors, save_tensors
from fedsim.types import AnyArray, EncodedTable, Flags, Integers32, Links, Words

if TYPE_CHECKING:
    from fedsim.linkage.soft_linkage import Engine

LinkMessage = m.Offer | m.Candidates | m.Queries | m.NewQueries
NEW_RECORDS_FILE, NEW_LINKS_FILE = "new-records", "new-links"
NEW_LINK_FACTOR = 2  # a candidate may get this multiple of its training links, whatever the limit
QUERIES_FILE, QUERIES_FORMAT = "queries.safetensors", "fedsim linked queries 1"
FINISHED_FILE = "finished"
# A SettingError of the linkage can reveal the spread of the distances, which only the coordinator may know. Other
# parties get these texts, by the code of the error.
PUBLIC_SETTING_ERRORS = {
    "tau-too-small": "no noise reaches tau={0.tau}; choose a larger tau, set sigma instead, or blur coordinates (the "
    "coordinator's log has the smallest possible tau)",
    "flat-distances": "tau={0.tau} cannot be guaranteed, because all partners are equally distant; set sigma instead",
}


def linked_rows(links: Links, order: AnyArray) -> Integers32:
    """Return the secondary's row behind every link, (n K,)."""
    return np.asarray(order[links.partner].ravel(), dtype=np.int32)


@dataclass(frozen=True, eq=False)
class LinkedQueries:
    """What stays of the primary's records: a digest of all, a keyed hash of each, and which of them train."""

    digest: str
    records: Words  # (n,)
    counted: Flags  # (n,)

    def save(self, path: Path) -> None:
        """Write the file, atomically."""
        tensors: Tensors = {"records": self.records, "counted": self.counted.astype(np.uint8)}
        save_tensors(path, QUERIES_FORMAT, tensors, {"digest": self.digest})

    @classmethod
    def load(cls, path: Path) -> LinkedQueries:
        """Read the file; a ``FileError`` if it has changed."""
        tensors, facts = load_tensors(path, QUERIES_FORMAT)
        if set(tensors) != {"records", "counted"} or "digest" not in facts:
            raise damaged_file(path, QUERIES_FORMAT)
        return cls(facts["digest"], tensors["records"], tensors["counted"].astype(bool))


def changed_identifiers(party: str, list_name: str) -> PolicyError:
    """Return the error for a table other than the one that was linked: it would be a new sample of the noise."""
    fault = f"the identifiers of {party} have changed since list '{list_name}' was linked"
    hint = "restore the table, or run the job again with --again at every party"
    return PolicyError(f"{fault}; {hint}", code="identifiers-changed")


def find_new_records(linked: DigestSet, digests: list[bytes], limit: int, list_name: str) -> list[bytes]:
    """Return the records that were not linked for predictions before; raise ``PolicyError`` beyond the limit."""
    new = linked.missing(digests)
    if len(linked) + len(new) > limit:
        seen = f"the coordinator has linked {len(linked):,} new records of list '{list_name}'"
        rule = f"and its limit is {limit:,}; its owner may raise max_new_records"
        raise PolicyError(f"{seen}, {rule}", code="too-many-new-records", limit=limit)
    return new


LinkProgress = Callable[[str, int, int], None]  # list, records linked so far, all records


@dataclass(frozen=True)
class LinkLimits:
    """The most new records of a list, and the most of them that are linked to one candidate."""

    new_records: int
    new_links: int


@dataclass(eq=False)
class LinkedListState:
    """The list of one secondary: the tables received, the links made of them, and the digests of both tables."""

    name: str
    linking: LinkageConfig
    folder: Path
    candidates: EncodedTable | None = None
    linked: LinkageState | None = None
    delivery: Links | None = None
    queries: LinkedQueries | None = None
    digests: tuple[str, str] = ("", "")  # of queries and candidates
    new_records: DigestSet = field(default_factory=lambda: DigestSet(None))  # linked for predictions so far
    work: threading.Lock = field(default_factory=threading.Lock)

    def link_new(self, records: EncodedTable, limits: LinkLimits, link: Callable[[], Links]) -> Links:
        """Link new records and count them before they are answered: noise protects against few requests only.

        A record that was linked before gets the same answer and does not count again. Copies of a record in which a few
        bits differ are different records, each with noise of its own, so their answers could be averaged. Such copies
        share their candidates: the number of new records per candidate is limited, too.
        """
        digests = [record_digest(row.tobytes()) for row in records.bits]
        with self.work:
            new = find_new_records(self.new_records, digests, limits.new_records, self.name)
            links, first = link(), {digest: place for place, digest in enumerate(digests)}
            added = links.partner[[first[digest] for digest in new]].ravel()
            if len(new) and self.delivery is not None and self.linked is not None:
                n_candidates = len(self.linked.candidates)
                degree = np.bincount(self.delivery.partner.ravel(), minlength=n_candidates)
                path = self.folder / NEW_LINKS_FILE
                before = np.frombuffer(path.read_bytes() if path.is_file() else b"", "<i4")
                count = np.bincount(np.concatenate([before, added]), minlength=n_candidates)
                if (count > np.maximum(limits.new_links, NEW_LINK_FACTOR * degree))[added].any():
                    seen = f"a candidate of list '{self.name}' would be linked to too many new records"
                    rule = f"the limit is {limits.new_links:,}, or twice as many as in training"
                    hint = "its owner may raise max_new_links"
                    raise PolicyError(f"{seen}; {rule}; {hint}", code="too-many-new-links", limit=limits.new_links)
                append_durably(path, added.astype("<i4").tobytes(), after=before.nbytes, mode=0o600)
                self.new_records.add(new)
            return links

    def is_linked_from(self, peer: m.Party, digest: str) -> bool:
        """Return whether exactly this table was linked; raise ``PolicyError`` if another one was."""
        if self.delivery is None:
            return False
        if self.digests[0 if peer.role is m.Role.PRIMARY else 1] != digest:
            raise changed_identifiers(str(peer), self.name)
        return True

    def load(self) -> None:
        """Load what an earlier process linked."""
        self.new_records = DigestSet(self.folder / NEW_RECORDS_FILE)
        paths = [self.folder / name for name in ("delivery.safetensors", QUERIES_FILE)]
        if all(path.is_file() for path in paths):  # a folder of an older release is linked again, with the same result
            self.linked = private_linkage.load_linkage_state(self.folder / "linked.safetensors")
            self.delivery = private_linkage.load_private_links(self.folder / "delivery.safetensors")
            self.queries = LinkedQueries.load(self.folder / QUERIES_FILE)
            self.digests = self.queries.digest, offer_digest(self.linked.candidates)
            self.candidates = self.linked.candidates

    def store(self) -> None:
        """Save everything; the delivery is written last and marks the rest as complete."""
        if self.linked is None or self.delivery is None or self.queries is None:
            raise FileError(f"list '{self.name}' is not linked yet", code="not-linked")
        self.folder.mkdir(parents=True, exist_ok=True)
        private_linkage.save_linkage_state(self.linked, self.folder / "linked.safetensors")
        self.queries.save(self.folder / QUERIES_FILE)
        private_linkage.save_private_links(self.delivery, self.folder / "delivery.safetensors")
        self.delivery = private_linkage.load_private_links(self.folder / "delivery.safetensors")

    def link(
        self,
        queries: EncodedTable,
        candidates: EncodedTable,
        counted: Flags,
        secret: bytes,
        progress: LinkProgress,
        engine: Engine | None = None,
    ) -> tuple[LinkageState, Links]:
        """Link the tables; raise only errors whose text other parties may see."""
        progress(self.name, 0, len(queries))
        linking = self.linking
        if linking.k > len(candidates):
            fault = f"list '{self.name}' has {len(candidates)} candidates for k={linking.k}; lower k"
            raise PolicyError(fault, code="k-too-large", limit=len(candidates))
        try:
            with _blame_peer(self.name):
                options: dict[str, Any] = {"progress": partial(progress, self.name), "engine": engine}
                return link_encoded_tables(queries, candidates, counted, linking, secret, self.name, **options)
        except SettingError as error:
            log.error("list '%s' cannot be linked: %s", self.name, error)
            other = "its settings do not fit the tables; the coordinator's log has the details"
            reason = PUBLIC_SETTING_ERRORS.get(error.code, other)
            raise PolicyError(f"list '{self.name}': {reason.format(linking)}", code=error.code) from error


class Coordinator:
    """Serves any number of sessions, each in its own thread."""

    def __init__(
        self,
        lists: Mapping[str, LinkageConfig],
        secret: bytes,
        folder: Path,
        *,
        limits: LinkLimits,
        progress: LinkProgress = lambda name, done, total: None,
        engine: Engine | None = None,
    ) -> None:
        self._progress, self._engine = progress, engine
        self._secret, self._limits, self._end_file = secret, limits, folder.with_name(FINISHED_FILE)
        self._lists = {name: LinkedListState(name, linking, folder / name) for name, linking in lists.items()}
        self._changed = threading.Condition()
        self.finished = threading.Event()
        for partner_list in self._lists.values():
            partner_list.load()
        if engine is not None and not self.all_linked:
            engine.check()  # before any party waits for the links

    @property
    def was_finished(self) -> bool:
        """Whether the primary has reported, to this process or an earlier one, that training is complete."""
        return self._end_file.is_file()

    @property
    def all_linked(self) -> bool:
        """Whether every list has been linked."""
        return all(partner_list.linked is not None for partner_list in self._lists.values())

    def serve(self, session: Session) -> None:
        """Answer a party until it says farewell."""
        while not isinstance((envelope := session.receive()).message, m.Farewell):
            self._answer(session, envelope)

    def _answer(self, session: Session, envelope: Envelope) -> None:
        message, peer = envelope.message, session.peer
        if isinstance(message, m.Finish):
            # On disk before it is confirmed, because the primary exits after the confirmation.
            with atomic_write(self._end_file) as part:
                part.write_text("")
            session.phase = m.Phase.END
            session.send(m.Done(""), reply_to=envelope.sequence)
            self.finished.set()
            return
        if not isinstance(message, LinkMessage):
            raise PeerError(f"{peer} sent '{message.kind}', which is unexpected here", code="unexpected-message")
        name = message.partner_list
        if name not in self._lists or (peer.role is m.Role.SECONDARY and peer.name != name):
            raise PeerError(f"{peer} named a list that is not its own", code="not-its-list")
        self._answer_about_list(session, envelope.sequence, self._lists[name], message)

    def _answer_about_list(
        self, session: Session, sequence: int, partner_list: LinkedListState, message: LinkMessage
    ) -> None:
        have, peer = "", session.peer
        if isinstance(message, m.NewQueries):
            session.send(self._answer_new_queries(session, partner_list, message), reply_to=sequence)
            return
        if isinstance(message, m.Offer):
            with self._changed:
                wanted = not partner_list.is_linked_from(peer, message.digest)
                if wanted and peer.role is m.Role.SECONDARY:
                    partner_list.candidates = None  # the secondary may now send others
            session.send(m.Want(wanted), reply_to=sequence)
            if wanted:
                return
            have = message.have
        elif isinstance(message, m.Candidates):
            table = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
            with self._changed:
                if not partner_list.is_linked_from(peer, offer_digest(table)):
                    partner_list.candidates = table
                    self._changed.notify_all()
        else:
            self._link_queries(session, partner_list, message)
        session.send(self._delivery(session, partner_list, have), reply_to=sequence)

    def _link_queries(self, session: Session, partner_list: LinkedListState, message: m.Queries) -> None:
        queries = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
        digest = offer_digest(queries, message.counted)
        candidates = self._wait_for(session, partner_list, "candidates")
        with partner_list.work:
            if partner_list.is_linked_from(session.peer, digest):
                return
            with send_notices(session, f"linking list '{partner_list.name}'"):
                counted = message.counted.astype(bool)
                more = self._secret, self._progress, self._engine
                linked = partner_list.link(queries, candidates, counted, *more)
            records = self._hash_records(partner_list.name, queries)
            most_links = self._count_links(partner_list.name, records, linked[1])
            with self._changed:
                newest = partner_list.candidates
                if newest is not None and offer_digest(newest) != offer_digest(candidates):
                    fault = f"secondary '{partner_list.name}' sent other identifiers while its list was being linked"
                    raise PeerError(fault, code="identifiers-changed")
                partner_list.linked, partner_list.delivery = linked
                partner_list.queries = LinkedQueries(digest, records, counted)
                partner_list.digests = digest, offer_digest(candidates)
                partner_list.store()
                self._changed.notify_all()
        facts = {"list": partner_list.name, "records": len(queries), "most links": most_links}
        session.connection.record_event("linked", facts)

    def _count_links(self, name: str, records: Words, links: Links) -> int:
        """Return how many records the most linked candidate has.

        Equal records share their noise and count once. Near-copies of a record have noise of their own, which averages.
        """
        _, distinct = np.unique(records, return_index=True)
        n_candidates = int(links.partner.max()) + 1
        return int(count_links(links.partner[distinct], n_candidates).max())

    def _delivery(self, session: Session, partner_list: LinkedListState, have: str) -> m.Message:
        """Wait until a list is linked; return its links, its row order, or that the peer has the current version."""
        delivery: Links = self._wait_for(session, partner_list, "delivery")
        linked: LinkageState = self._wait_for(session, partner_list, "linked")
        queries: LinkedQueries = self._wait_for(session, partner_list, "queries")
        if session.peer.role is m.Role.PRIMARY:
            partners = _partners(partner_list, linked, delivery, NO_BYTES)
            if have == arrays_digest(partners.partner, partners.similarity):
                return m.Unchanged()
            first, _ = distinct_records(queries.records)
            return replace(partners, partner=partners.partner[first], similarity=partners.similarity[first])
        key = derive_seal_key(self._secret, partner_list.name)
        # Without the rows that no record is linked to: the secondary must not answer for them.
        order = np.full_like(linked.order, m.UNLINKED)
        named = np.flatnonzero(count_links(delivery.partner, len(linked.order)))
        order[named] = linked.order[named]
        if have == arrays_digest(order, key):
            return m.Unchanged()
        return m.RowOrder(partner_list.name, int(queries.counted.sum()), order=order, seal=key)

    def _hash_records(self, name: str, queries: EncodedTable) -> Words:
        """Return a keyed hash of every record's filter, by which the secondary recognises a record asked again."""
        return hash_rows(queries.bits, derive_subkey(self._secret, f"records of {name}", SECRET_BYTES))

    def _answer_new_queries(self, session: Session, partner_list: LinkedListState, message: m.NewQueries) -> m.Message:
        """Link new records; a request that fails is answered by its reason, and the session continues."""
        session.phase = m.Phase.PREDICT
        linked, linking, name = partner_list.linked, partner_list.linking, partner_list.name
        peer = session.peer
        try:
            if linked is None:
                fault = f"{peer} requested new links of '{name}', which is not linked yet"
                raise PeerError(fault, code="not-linked")
            queries = EncodedTable(np.array(message.bits), message.n_bits, message.fingerprint)
            with _blame_peer(name):
                link = partial(private_linkage.link_new_records, queries, linked, linking, self._secret, name)
                links = partner_list.link_new(queries, self._limits, link)
        except FedSimError as error:
            fault = "cannot link new records of %s: %s"
            session.connection.log_peer_event("new queries", peer, logging.WARNING, fault, peer, error)
            return m.Done(public_reason(error))
        partners = _partners(partner_list, linked, links, NO_BYTES)
        rows, records = linked_rows(links, linked.order), self._hash_records(name, queries)
        sealed = seal_links(derive_seal_key(self._secret, name), LinkedRows(partners.partner.ravel(), rows, records))
        return replace(partners, sealed=sealed)

    def _wait_for(self, session: Session, partner_list: LinkedListState, attribute: str) -> Any:
        """Wait until a list has its candidates or its delivery; notify the waiting peer what is missing."""
        notified = time.monotonic()
        with self._changed:
            while getattr(partner_list, attribute) is None:
                session.check()
                if time.monotonic() - notified > notice_seconds(session):
                    notified = time.monotonic()
                    missing = m.Role.SECONDARY if partner_list.candidates is None else m.Role.PRIMARY
                    session.send(m.Notice(f"list '{partner_list.name}' is waiting for the {missing}'s identifiers"))
                self._changed.wait(POLL)
            return getattr(partner_list, attribute)


def _partners(state: LinkedListState, linked: LinkageState, links: Links, sealed: AnyArray) -> m.Partners:
    n_candidates = len(linked.candidates)
    return m.Partners(state.name, n_candidates, partner=links.partner, similarity=links.similarity, sealed=sealed)


@contextmanager
def _blame_peer(name: str) -> Iterator[None]:
    """Translate an error in a received table: it is the sender's, not ours."""
    try:
        yield
    except InputError as error:
        raise PeerError(f"list '{name}': {error}", code="bad-identifiers") from error
