"""The primary's side of a blind linkage, which it leads tile by tile.

It sends masked rows to the secondary and its own share to the coordinator, which opens a tile when both shares are
there. Opened tiles are stored, so that an interrupted linkage continues with the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.errors import FileError, PeerError
from fedsim.linkage import blind_linkage as blind
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.privacy.keyed_prng import SECRET_BYTES, derive_subkey
from fedsim.protocol import messages as m
from fedsim.protocol.session import Session
from fedsim.storage.tensor_file import Tensors, arrays_digest, load_tensors, save_tensors, scratch_array
from fedsim.types import AnyArray, EncodedTable, Flags, Integers, Integers32

TILES_AHEAD = 2  # on their way at the same time, so that all parties compute
TILE_FORMAT = "fedsim opened tile 1"


class BlindPartners(NamedTuple):
    """What a blind linkage yields: distances, of which the primary makes similarities itself."""

    n_records: int  # rows of the secondary
    partner: Integers32  # (n, K), pseudonyms
    distance: AnyArray  # (n, K)
    place: Integers  # of every record among the n distinct ones


@dataclass(eq=False)
class VectorCache:
    """B - V of a secondary for several requests; its masks stay the same until one of both peers is restarted."""

    folder: Path | None = None  # where large vectors are stored; None keeps them in memory
    sessions: tuple[Session, Session] | None = None
    masked: AnyArray | None = None  # (m, d)


@dataclass(frozen=True, eq=False)
class _Exchange:
    """The sessions of a linkage, and what both peers sent at its beginning."""

    coordinator: Session
    secondary: Session
    deal: bytes
    occasion: str
    ready: m.BlindReady
    masked: AnyArray  # (m, d), B - V


@dataclass(eq=False)
class BlindRequest:
    """Records of the primary that are to be linked blindly.

    Parameters
    ----------
    partner_list, terms
        The list and its terms.
    encoded
        The encoded records, which stay here.
    secret
        The primary's secret.
    counted
        Which of them train; None for new records.
    folder
        Where opened tiles are stored; None stores nothing.
    cache
        Masked vectors of earlier requests.
    """

    partner_list: str
    terms: LinkageConfig
    encoded: EncodedTable
    secret: bytes
    counted: Flags | None = None
    folder: Path | None = None
    cache: VectorCache = field(default_factory=VectorCache)

    def __post_init__(self) -> None:
        self._metric = blind.blind_metric(self.terms.metric, self.encoded.n_bits)
        self._queries = blind.blind_queries(self.encoded, self._metric, self.secret, self.partner_list)
        parts = [np.frombuffer(self.encoded.fingerprint.encode(), np.uint8), self.encoded.bits]
        parts += [] if self.counted is None else [self.counted.astype(np.uint8)]
        self.digest = blind.keyed_digest(self.secret, self.partner_list, arrays_digest(*parts).encode())
        self._common = derive_subkey(self.secret, f"blind linkage with {self.partner_list}", SECRET_BYTES)
        self._shifts = blind.row_shifts(self.secret, self._queries.names, self._metric)

    def offer(self, coordinator: Session) -> m.Deal:
        """Announce the records to the coordinator, which refuses a changed table and too many new records."""
        offer = m.QueryOffer(self.partner_list, self.digest, self.counted is None, records=self._queries.names)
        answer = coordinator.call(offer, m.Message)
        if isinstance(answer, m.Done):
            fault = f"{coordinator.peer} cannot link '{self.partner_list}': {answer.fault}"
            raise PeerError(fault, code="not-linked")
        if not isinstance(answer, m.Deal) or len(answer.masks) != SECRET_BYTES:
            raise PeerError(f"{coordinator.peer} dealt no masks for '{self.partner_list}'", code="unexpected-reply")
        return answer

    def link(
        self, coordinator: Session, secondary: Session, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> BlindPartners:
        """Return partners and distances; ``PeerRestarted`` if a peer was restarted: then call it again."""
        names, found = self._queries.names, []
        progress(0, len(names))
        exchange = self._begin(coordinator, secondary)
        waiting: deque[tuple[slice, Integers, int, int]] = deque()

        def finish_first() -> None:
            found.append(self._receive_tile(exchange, *waiting.popleft()))
            progress(waiting[0][0].start if waiting else tile.stop, len(names))

        for tile in blind.tiles(len(names), exchange.ready.n_candidates):
            stored = self._load(exchange, tile)
            if stored is None:
                waiting.append(self._send_tile(exchange, tile))
            else:  # tiles are stored in order, so that none is waiting
                found.append(stored)
            if len(waiting) >= TILES_AHEAD:
                finish_first()
        while waiting:
            finish_first()
        nearest = blind.nearest_classes(found, self.terms.k)
        counts, rows = self._members(exchange, nearest.distinct)
        partner, distance = blind.expand_classes(nearest, counts, rows, self.terms.k)
        return BlindPartners(exchange.ready.n_records, partner, distance, self._queries.place)

    def _begin(self, coordinator: Session, secondary: Session) -> _Exchange:
        dealt = self.offer(coordinator)
        deal, new = dealt.masks.tobytes(), self.counted is None
        n_trained = 1 if self.counted is None else int(self.counted.sum())
        occasion = blind.keyed_digest(self._common, "occasion", self.digest.encode() + deal)
        facts = (self.encoded.fingerprint, self.digest, occasion, new, n_trained)
        common, vectors = np.frombuffer(self._common, np.uint8), self._queries.vectors
        begin = m.BlindBegin(*facts, common=common, records=self._queries.names, ones=vectors.ones)
        ready = secondary.call(begin, m.BlindReady)
        size, expected = ready.n_candidates, ready.n_candidates if self._metric.by_ones else 0
        if size != dealt.n_candidates or not 1 <= size <= ready.n_records or len(ready.ones) != expected:
            raise PeerError(f"{secondary.peer} announced an impossible table", code="bad-identifiers")
        if self.terms.k > ready.n_records:
            fault = f"list '{self.partner_list}' has {ready.n_records} candidates for k={self.terms.k}; lower k"
            raise PeerError(fault, code="k-too-large", limit=ready.n_records)
        if self.cache.masked is None or self.cache.sessions != (coordinator, secondary):
            self.cache.masked = self._fetch_vectors(secondary, size)
            self.cache.sessions = coordinator, secondary
        return _Exchange(coordinator, secondary, deal, occasion, ready, self.cache.masked)

    def _fetch_vectors(self, secondary: Session, size: int) -> AnyArray:
        shape = size, self._queries.vectors.rows.shape[1]
        masked = scratch_array(shape, self._metric.ring, self.cache.folder)
        for block in blind.vector_blocks(size):
            values = secondary.call(m.AskVectors(block.start), m.MaskedVectors).values
            if values.shape != masked[block].shape or values.dtype != masked.dtype:
                raise PeerError(f"{secondary.peer} sent vectors of the wrong size", code="bad-tile")
            masked[block] = values
        return masked

    def _send_tile(self, exchange: _Exchange, tile: slice) -> tuple[slice, Integers, int, int]:
        """Send what both peers need of a tile; return how to read what is opened, and the two requests."""
        vectors, masked, deal = self._queries.vectors, exchange.masked, exchange.deal
        hidden = vectors.rows[tile] - blind.query_masks(deal, tile, self._metric, masked.shape[1])
        asked = exchange.secondary.send(m.MaskedTile(tile.start, values=hidden))
        names, size = self._queries.names, len(masked)
        secrets = blind.RowSecrets.draw(self._common, exchange.occasion, names, tile, self._metric, n_candidates=size)
        share = blind.primary_share(vectors, tile, deal, masked, exchange.ready.ones, secrets, self._shifts)
        message = m.ShareOfTile(self.partner_list, self.digest, tile.start, values=share)
        return tile, secrets.permutation, asked, exchange.coordinator.send(message)

    def _receive_tile(
        self, exchange: _Exchange, tile: slice, permutation: Integers, asked: int, sent: int
    ) -> blind.NearestClasses:
        # The secondary first: it repeats a tile whose share a restarted coordinator has lost.
        exchange.secondary.wait_reply(asked, m.Done)
        opened = exchange.coordinator.wait_reply(sent, m.Opened)
        self._check_opened(exchange, tile, opened)
        noisy = bool(self.terms.sigma)
        ones, shifts = (self._queries.vectors.ones[tile], exchange.ready.ones), self._shifts[tile]
        found = blind.read_opened(
            self._metric,
            blind.OpenedTile(opened.counts, opened.places, opened.values),
            permutation,
            shifts,
            ones,
            first=tile.start,
            noisy=noisy,
        )
        if self.folder is not None:
            tensors: Tensors = {"rows": found.rows, "classes": found.classes, "distance": found.distance}
            self.folder.mkdir(parents=True, exist_ok=True)
            save_tensors(self._path(tile), TILE_FORMAT, tensors, {"occasion": exchange.occasion})
        return found

    def _check_opened(self, exchange: _Exchange, tile: slice, opened: m.Opened) -> None:
        size, least = exchange.ready.n_candidates, min(self.terms.k, exchange.ready.n_candidates)
        fits = (
            len(opened.counts) == tile.stop - tile.start
            and int(opened.counts.sum(dtype=np.int64)) == len(opened.places)
            and opened.counts.min() >= least
            and opened.places.min() >= 0
            and opened.places.max() < size
            and opened.values.dtype == self._metric.delivered
        )
        if not fits:
            fault = f"{exchange.coordinator.peer} opened a tile of '{self.partner_list}' that does not fit the job"
            raise PeerError(fault, code="bad-links")

    def _members(self, exchange: _Exchange, classes: Integers32) -> tuple[Integers32, Integers32]:
        """Ask the secondary for the pseudonyms in the classes that records are linked to."""
        secondary, n_records = exchange.secondary, exchange.ready.n_records
        members = secondary.call(m.AskMembers(classes), m.ClassMembers)
        counts, rows = members.counts, members.rows
        fits = len(counts) == len(classes) and counts.min() >= 1 and int(counts.sum(dtype=np.int64)) == len(rows)
        if not fits or rows.min() < 0 or rows.max() >= n_records or len(np.unique(rows)) < len(rows):
            raise PeerError(f"{secondary.peer} sent members that do not fit its table", code="bad-links")
        if exchange.ready.n_candidates < self.terms.k and len(rows) < self.terms.k:
            raise PeerError(f"{secondary.peer} has fewer than k={self.terms.k} records", code="k-too-large")
        return counts, rows

    def _path(self, tile: slice) -> Path:
        return (self.folder or Path()) / f"{tile.start}.safetensors"

    def _load(self, exchange: _Exchange, tile: slice) -> blind.NearestClasses | None:
        """Load a tile that was opened before, if it was for the same masks; a damaged file is opened again."""
        if self.folder is None or not self._path(tile).is_file():
            return None
        with suppress(FileError):
            tensors, facts = load_tensors(self._path(tile), TILE_FORMAT)
            if facts == {"occasion": exchange.occasion} and set(tensors) == {"rows", "classes", "distance"}:
                return blind.NearestClasses(tensors["rows"], tensors["classes"], tensors["distance"])
        return None
