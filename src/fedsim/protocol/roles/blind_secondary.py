"""The secondary's side of a blind linkage: it answers the primary and sends its shares to the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedsim.errors import PeerError
from fedsim.linkage import blind_linkage as blind
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.privacy.keyed_prng import SECRET_BYTES, derive_subkey
from fedsim.protocol import messages as m
from fedsim.protocol.session import Session
from fedsim.storage.files import DigestSet, NamedRows
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import AnyArray, EncodedTable, Integers32

ROWS_FILE, TRAINED_FILE = "asked-rows", "asked-table"
REQUESTS = (m.BlindBegin, m.AskVectors, m.MaskedTile, m.AskMembers)
AnswerT = TypeVar("AnswerT")
AskCoordinator = Callable[[Callable[[Session], AnswerT]], AnswerT]  # repeats a request until it is answered


@dataclass(eq=False)
class BlindResponder:
    """Answers a primary that links its records blindly with the table of a secondary.

    Parameters
    ----------
    name, terms
        The list, which is the name of this secondary, and its terms.
    encoded
        The encoded records, which stay here.
    secret
        The secondary's secret.
    ask_coordinator
        Sends requests to the coordinator.
    folder
        Where it stores which rows it has answered; None stores nothing.
    spare_records
        How many further records the primary may ask about under names of others.
    """

    name: str
    terms: LinkageConfig
    encoded: EncodedTable
    secret: bytes
    ask_coordinator: AskCoordinator[m.Message]
    folder: Path | None = None
    spare_records: int = 0
    begun: m.BlindBegin | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._metric = blind.blind_metric(self.terms.metric, self.encoded.n_bits)
        self.candidates = blind.blind_candidates(self.encoded, self._metric, self.secret, self.name)
        self._deal = b""
        self._key = derive_subkey(self.secret, f"rows asked about for {self.name}", SECRET_BYTES)
        self._rows = NamedRows(self.folder and self.folder / ROWS_FILE, self._key)
        self._trained = DigestSet(self.folder and self.folder / TRAINED_FILE)

    @property
    def changed_rows(self) -> int:
        """How many records came under the name of another one of the same request."""
        return self._rows.n_changed

    def offer(self) -> None:
        """Announce the table to the coordinator, which refuses a changed one, and get the masks."""
        parts = np.frombuffer(self.encoded.fingerprint.encode(), np.uint8), self.encoded.bits
        digest = blind.keyed_digest(self.secret, self.name, arrays_digest(*parts).encode())
        spread = blind.measure_spread(self.encoded, self._metric, self.terms.k) if self.terms.sigma else 0.0
        offer = m.CandidateOffer(self.name, digest, len(self.candidates.vectors), spread)
        answer = self.ask_coordinator(lambda session: session.call(offer, m.Deal))
        if not isinstance(answer, m.Deal) or len(answer.masks) != SECRET_BYTES:
            raise PeerError("the coordinator dealt no masks", code="unexpected-reply")
        self._deal = answer.masks.tobytes()

    def reply(self, session: Session, message: m.Message) -> m.Message:
        """Answer one of :data:`REQUESTS`."""
        if isinstance(message, m.BlindBegin):
            return self._begin(session, message)
        if self.begun is None:
            raise PeerError(f"{session.peer} sent '{message.kind}' before 'blind-begin'", code="not-begun")
        if isinstance(message, m.AskVectors):
            return self._masked_vectors(session, message.first)
        if isinstance(message, m.MaskedTile):
            return self._share_tile(session, self.begun, message)
        if isinstance(message, m.AskMembers):
            counts, rows = self.candidates.members_of(self._check_classes(session, self.begun, message))
            return m.ClassMembers(counts, rows=rows)
        raise PeerError(f"{session.peer} sent '{message.kind}', which is unexpected here", code="unexpected-message")

    def _begin(self, session: Session, begin: m.BlindBegin) -> m.BlindReady:
        if begin.fingerprint != self.encoded.fingerprint:
            fault = f"{session.peer} encodes with another schema or key"
            raise PeerError(f"{fault}; both need the same schema and key file", code="other-fingerprint")
        expected = len(begin.records) if self._metric.by_ones else 0
        if len(begin.common) != SECRET_BYTES or len(begin.ones) != expected:
            raise PeerError(f"{session.peer} announced an impossible table", code="bad-identifiers")
        if not begin.new:
            self._bind_trained(session, begin)
        if not self._deal:
            self.offer()
        if begin.new:
            session.phase = m.Phase.PREDICT
        self.begun = begin
        vectors = self.candidates.vectors
        return m.BlindReady(len(self.encoded), len(vectors), ones=vectors.ones)

    def _bind_trained(self, session: Session, begin: m.BlindBegin) -> None:
        """Refuse another table than the first one, whose records are not counted as new ones."""
        content = f"{begin.request} {begin.n_trained} ".encode() + begin.records.tobytes()
        digest = blake2b(content, key=self._key, digest_size=16).digest()
        if len(self._trained) and self._trained.missing([digest]):
            fault = f"the identifiers of {session.peer} have changed since list '{self.name}' was linked"
            raise PeerError(f"{fault}; a changed table needs a new job", code="identifiers-changed")
        self._trained.add([digest])

    def _masked_vectors(self, session: Session, first: int) -> m.MaskedVectors:
        vectors = self.candidates.vectors
        block = blind.vector_block(first, len(vectors))
        if block is None:
            raise PeerError(f"{session.peer} requested vectors that are no block", code="bad-tile")
        masks = blind.candidate_masks(self._deal, block, self._metric, vectors.rows.shape[1])
        return m.MaskedVectors(vectors.rows[block] - masks)

    def _share_tile(self, session: Session, begun: m.BlindBegin, message: m.MaskedTile) -> m.Done:
        vectors, values = self.candidates.vectors, message.values
        tile = slice(message.first, message.first + len(values))
        fits = blind.is_tile(tile, len(begun.records), len(vectors))
        if not fits or values.dtype != self._metric.ring or values.shape[1] != vectors.rows.shape[1]:
            raise PeerError(f"{session.peer} sent rows that are no tile", code="bad-tile")
        seed, size = begun.common.tobytes(), len(vectors)
        ones = begun.ones[tile] if self._metric.by_ones else begun.ones
        self._count_rows(session, begun, tile, values)

        def send_share(coordinator: Session) -> m.Done:
            # While the coordinator computes the correction, so does this party its product.
            ask = m.AskCorrection(self.name, begun.request, tile.start, tile.stop - tile.start)
            asked = coordinator.send(ask)
            product = blind.secondary_product(vectors, values)
            secrets = blind.RowSecrets.draw(seed, begun.occasion, begun.records, tile, self._metric, n_candidates=size)
            dealt = coordinator.wait_reply(asked, m.Correction).values
            if dealt.shape != product.shape or dealt.dtype != product.dtype:
                raise PeerError(f"{coordinator.peer} sent a correction of the wrong size", code="bad-tile")
            share = blind.secondary_share(vectors, product, dealt, ones, secrets)
            return coordinator.call(m.ShareOfTile(self.name, begun.request, tile.start, values=share), m.Done)

        self.ask_coordinator(send_share)
        return m.Done("")

    def _count_rows(self, session: Session, begun: m.BlindBegin, tile: slice, values: AnyArray) -> None:
        """Count rows that differ from the first one of their request and name; the primary chooses all three.

        Masks are the same for a request, so that a request that is repeated sends the same rows.
        """
        request = blake2b(begun.request.encode(), key=self._key, digest_size=NamedRows.NAME_BYTES)
        common, rows = begun.common.tobytes(), []
        for place, row in zip(range(tile.start, tile.stop), values, strict=True):
            name = request.copy()
            name.update(begun.records[place].tobytes())
            ones = begun.ones[place : place + 1].tobytes()
            rows.append((name.digest(), common + ones + row.tobytes()))
        if not self._rows.add(rows, self.spare_records):
            fault = f"{session.peer} requested other records under the names of known ones, beyond the limit"
            raise PeerError(f"{fault} of new records that the policy sets", code="over-limit")

    def _check_classes(self, session: Session, begun: m.BlindBegin, message: m.AskMembers) -> Integers32:
        classes = np.array(message.classes)
        if len(classes) > len(begun.records) * self.terms.k:
            raise PeerError(f"{session.peer} asked for more records than it can be linked to", code="bad-rows")
        ascending = len(classes) and classes[0] >= 0 and bool((classes[1:] > classes[:-1]).all())
        if not ascending or classes[-1] >= len(self.candidates.vectors):
            raise PeerError(f"{session.peer} asked for records that do not exist, or twice", code="bad-rows")
        return classes
