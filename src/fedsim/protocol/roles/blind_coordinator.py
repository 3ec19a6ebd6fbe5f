"""The coordinator's side of a blind linkage: it deals masks and opens shuffled, shifted distances.

It stores the digests and sizes of both tables and the names of new records, and never receives an encoding.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedsim.errors import PeerError, PolicyError, SettingError
from fedsim.linkage import blind_linkage as blind
from fedsim.linkage.private_linkage import LinkageConfig
from fedsim.privacy.keyed_prng import BLOCK_KEY_BYTES, SECRET_BYTES, derive_subkey
from fedsim.protocol import messages as m
from fedsim.protocol.session import POLL, Session, log, notice_seconds, public_reason
from fedsim.storage.files import DigestSet, NamedRows, atomic_write
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import AnyArray, Words

MAX_PENDING_SHARES = 4  # of a secondary that is ahead of the primary
LARGEST_NOISE = 8.3  # standard deviations, see normal_from_words
STATE_FILE, NEW_RECORDS_FILE, OPENED_FILE = "blind.json", "new-records", "opened-rows"
BlindMessage = m.CandidateOffer | m.QueryOffer | m.AskCorrection | m.ShareOfTile
Found = TypeVar("Found")


def changed_identifiers(party: str, list_name: str) -> PolicyError:
    """Return the error for a table other than the one that was linked: it would be a new sample of the noise."""
    fault = f"the identifiers of {party} have changed since list '{list_name}' was linked"
    hint = "a changed table needs a new job: give the job another name and have it approved"
    return PolicyError(f"{fault}; {hint}", code="identifiers-changed")


def find_new_records(
    linked: DigestSet, digests: list[bytes], limit: int, list_name: str, *, changed: int = 0
) -> list[bytes]:
    """Return the records that were not linked for predictions before; raise ``PolicyError`` beyond the limit.

    ``changed`` counts further records that came under the name of another.
    """
    new = linked.missing(digests)
    if len(linked) + changed + len(new) > limit:
        raise too_many_new_records(len(linked) + changed, limit, list_name)
    return new


def too_many_new_records(n_linked: int, limit: int, list_name: str) -> PolicyError:
    """Return the error for new records beyond the limit."""
    seen = f"the coordinator has linked {n_linked:,} new records of list '{list_name}'"
    rule = f"and its limit is {limit:,}; its owner may raise max_new_records"
    return PolicyError(f"{seen}, {rule}", code="too-many-new-records", limit=limit)


@dataclass(frozen=True)
class BlindListFacts:
    """What the coordinator knows of a list: digests under secrets that it does not have, sizes, one deviation."""

    candidates: str = ""
    n_candidates: int = 0
    spread: float = 0.0
    queries: str = ""
    linked: bool = False
    names: str = ""  # digest of the names of the primary's table


@dataclass(eq=False)
class BlindDealer:
    """Deals and opens one list; all methods may be called from several threads.

    Parameters
    ----------
    name, linking
        The list and its terms.
    n_bits
        Bits of an encoded record, which the job says.
    secret
        The coordinator's secret.
    folder
        Where it stores its facts.
    max_new_records
        The most new records for predictions.
    """

    name: str
    linking: LinkageConfig
    n_bits: int
    secret: bytes
    folder: Path
    max_new_records: int
    facts: BlindListFacts = field(default_factory=BlindListFacts, init=False)

    def __post_init__(self) -> None:
        if self.linking.tau is not None:  # Theorem 2 needs the spread of the links, which nobody here knows
            message = f"tau={self.linking.tau} cannot be bounded by a blind coordinator; give sigma instead"
            raise SettingError(message, code="not-blind", setting="tau")
        self._metric = blind.blind_metric(self.linking.metric, self.n_bits)
        self._dimensions = self.n_bits // 32 if self._metric.name == "position" else self.n_bits
        self._changed = threading.Condition()
        self._shares: OrderedDict[tuple[str, int], AnyArray] = OrderedDict()
        self._names: dict[str, Words] = {}  # of the requests of this process
        self._masks: tuple[str, AnyArray] = ("", np.zeros((0, 0)))
        path = self.folder / STATE_FILE
        if path.is_file():
            self.facts = BlindListFacts(**json.loads(path.read_text()))
        self._new_records = DigestSet(self.folder / NEW_RECORDS_FILE)
        key = derive_subkey(self.secret, f"opened rows of {self.name}", SECRET_BYTES)
        self._opened = NamedRows(self.folder / OPENED_FILE, key)

    @property
    def linked(self) -> bool:
        """Whether the primary's table has been linked to its end."""
        return self.facts.linked

    def answer(self, session: Session, message: BlindMessage, progress: Callable[[int, int], None]) -> m.Message:
        """Deal masks, or open a tile; new records that are refused are answered by the reason."""
        if isinstance(message, m.CandidateOffer):
            return self.offer_candidates(message)
        if isinstance(message, m.AskCorrection):
            return self.correct(message)
        if isinstance(message, m.QueryOffer):
            session.phase = m.Phase.PREDICT if message.new else session.phase
            try:
                self._wait(session, lambda: self.facts.candidates or None)
                deal = self.offer_queries(message)
            except PolicyError as error:
                if not message.new:
                    raise
                log.warning("cannot link new records of %s: %s", session.peer, error)
                return m.Done(public_reason(error))
            if not message.new:
                progress(0, len(message.records))
            return deal
        if session.peer.role is m.Role.SECONDARY:
            self.add_share(message)
            return m.Done("")
        return self.open(session, message, progress)

    def _wait(self, session: Session, find: Callable[[], Found | None]) -> Found:
        """Wait until something is found; the waiting peer is told what is missing."""
        notified = time.monotonic()
        with self._changed:
            while (found := find()) is None:
                session.check()
                if time.monotonic() - notified > notice_seconds(session):
                    notified = time.monotonic()
                    session.send(m.Notice(f"list '{self.name}' is waiting for the secondary"))
                self._changed.wait(POLL)
            return found

    def offer_candidates(self, offer: m.CandidateOffer) -> m.Deal:
        """Return the seed of the secondary's masks; raise ``PolicyError`` for another table."""
        self._check_unchanged("secondary", self.facts.candidates, offer.request)
        if offer.n_candidates < 1 or offer.spread < 0:
            raise PeerError(f"secondary '{self.name}' announced an impossible table", code="bad-identifiers")
        self._noise(offer.spread)  # raises if the noise cannot be reached
        with self._changed:
            if not self.facts.candidates:
                size, spread = offer.n_candidates, offer.spread
                self._store(replace(self.facts, candidates=offer.request, n_candidates=size, spread=spread))
            self._changed.notify_all()
        return m.Deal(self.facts.n_candidates, np.frombuffer(self._secondary_deal, np.uint8))

    def offer_queries(self, offer: m.QueryOffer) -> m.Deal:
        """Return the seed of the masks of a request; the secondary's offer must have arrived.

        New records are counted; raise ``PolicyError`` beyond the limit, or for another table than the one linked.
        """
        names = np.array(offer.records)
        if (names[1:] <= names[:-1]).any():
            raise PeerError("the primary named a record twice", code="bad-identifiers")
        if offer.new:
            self._count_new(names)
        else:
            self._check_unchanged("primary", self.facts.queries, offer.request)
            self._check_unchanged("primary", self.facts.names, arrays_digest(names))
        with self._changed:
            if not offer.new and not self.facts.names:
                self._store(replace(self.facts, queries=offer.request, names=arrays_digest(names)))
            self._names = {**{k: v for k, v in self._names.items() if k == self.facts.queries}, offer.request: names}
        return m.Deal(self.facts.n_candidates, np.frombuffer(self._primary_deal(offer.request), np.uint8))

    def correct(self, ask: m.AskCorrection) -> m.Correction:
        """Return the correction of a tile for the secondary."""
        if not self.facts.candidates or not 0 < ask.n_rows <= blind.tile_rows(self.facts.n_candidates):
            raise PeerError(f"secondary '{self.name}' requested a tile too early, or too large a one", code="bad-tile")
        deal, tile = self._primary_deal(ask.request), slice(ask.first, ask.first + ask.n_rows)
        return m.Correction(blind.correction(deal, tile, self._metric, self._candidate_masks()))

    def add_share(self, share: m.ShareOfTile) -> None:
        """Keep the share of the secondary until the primary's arrives."""
        self._check_share(share)
        with self._changed:
            self._shares[share.request, share.first] = np.array(share.values)
            while len(self._shares) > MAX_PENDING_SHARES:
                self._shares.popitem(last=False)
            self._changed.notify_all()

    def open(self, session: Session, share: m.ShareOfTile, progress: Callable[[int, int], None]) -> m.Opened:
        """Open a tile once the secondary's share is here."""
        names = self._names.get(share.request)
        if names is None:
            raise PeerError("the primary sent a share of a request that it did not announce", code="bad-tile")
        self._check_share(share)
        tile = slice(share.first, share.first + len(share.values))
        if not blind.is_tile(tile, len(names), self.facts.n_candidates):
            raise PeerError("the primary sent a share of rows that are no tile", code="bad-tile")
        other = self._wait(session, lambda: self._shares.pop((share.request, share.first), None))
        if other.shape != share.values.shape:
            raise PeerError(f"the shares of list '{self.name}' have different sizes", code="bad-tile")
        self._count_opened(names[tile], share.values + other)
        noise = self._noise(self.facts.spread)
        found = blind.open_tile(self._metric, (share.values, other), self.linking.k, names[tile], noise)
        if share.request == self.facts.queries and not self.linked:
            progress(tile.stop, len(names))
            if tile.stop == len(names):
                with self._changed:
                    self._store(replace(self.facts, linked=True))
                facts = {"list": self.name, "records": len(names), "coordinator": "blind"}
                session.connection.record_event("linked", facts)
        return m.Opened(found.counts, places=found.places, values=found.values)

    def _check_share(self, share: m.ShareOfTile) -> None:
        rows, columns = share.values.shape
        fits = 0 < columns == self.facts.n_candidates and rows <= blind.tile_rows(columns)
        if not fits or share.values.dtype != self._metric.ring:
            raise PeerError(f"a share of list '{self.name}' has the wrong size", code="bad-tile")

    def _check_unchanged(self, role: str, known: str, request: str) -> None:
        if known and known != request:
            raise changed_identifiers(f"the {role}", self.name)

    def _count_new(self, names: Words) -> None:
        """Count new records before they are linked: a record asked again gets the same answer and counts once."""
        digests = [name.tobytes().ljust(16, b"\0") for name in names]
        with self._changed:
            facts, changed = (digests, self.max_new_records, self.name), self._opened.n_changed
            self._new_records.add(find_new_records(self._new_records, *facts, changed=changed))

    def _count_opened(self, names: Words, total: AnyArray) -> None:
        """Count rows that differ from the first one of their name as new records, before anything of them is returned.

        The primary chooses the names. A record that is asked about again has the same order and shift, and so the same
        row; another record under its name has not, and would get the noise of the first.
        """
        rows = [(name.tobytes(), row.tobytes()) for name, row in zip(names, total, strict=True)]
        with self._changed:
            spare = self.max_new_records - len(self._new_records)
            if not self._opened.add(rows, spare):
                n_linked = len(self._new_records) + self._opened.n_changed
                raise too_many_new_records(n_linked, self.max_new_records, self.name)

    def _noise(self, spread: float) -> blind.BlindNoise | None:
        """Return the noise that the terms require, scaled by the secondary's spread."""
        sigma = self.linking.sigma or 0.0
        if sigma == 0:
            return None
        deviation = self._metric.noise_deviation(sigma, spread)
        if LARGEST_NOISE * deviation > self._metric.largest_noise(self.n_bits):
            fault = f"noise of sigma {sigma:g} exceeds what a blind coordinator can add; lower it"
            raise PolicyError(f"list '{self.name}': {fault}", code="sigma-too-large")
        rule = [f"{number:.9g}" for number in (sigma, spread)]
        purpose = json.dumps(["blind noise", self.name, self.linking.metric, *rule])
        return blind.BlindNoise(derive_subkey(self.secret, purpose, BLOCK_KEY_BYTES), deviation)

    @property
    def _secondary_deal(self) -> bytes:
        purpose = json.dumps(["deal to the secondary", self.name, self.facts.candidates])
        return derive_subkey(self.secret, purpose, SECRET_BYTES)

    def _primary_deal(self, request: str) -> bytes:
        purpose = json.dumps(["deal to the primary", self.name, self.facts.candidates, request])
        return derive_subkey(self.secret, purpose, SECRET_BYTES)

    def _candidate_masks(self) -> AnyArray:
        known, size = self.facts.candidates, self.facts.n_candidates
        if self._masks[0] != known:
            facts = self._secondary_deal, size, self._metric, self._dimensions
            self._masks = known, blind.all_candidate_masks(*facts, self.folder)
        return self._masks[1]

    def _store(self, facts: BlindListFacts) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / STATE_FILE, mode=0o600) as part:
            part.write_text(json.dumps(asdict(facts)))
        self.facts = facts
