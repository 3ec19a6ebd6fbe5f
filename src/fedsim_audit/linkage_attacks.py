"""The attacks on a linkage: by the primary on its links, and by the coordinator on encoded identifiers.

The audit links both tables in the clear, under the terms of the job or changed ones. Filters are made with a throwaway
key; the success of attacks does not depend on the key.

Letters: n primary records, m secondary records, K partners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.random import Generator
from scipy import spatial

from fedsim import cells
from fedsim.config.job import SecondaryTerms, place_columns
from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim.linkage import metrics, similarities
from fedsim.linkage.encoding import Key
from fedsim.linkage.private_linkage import LinkageState, link_encoded_tables
from fedsim.linkage.search.runner import distinct_records
from fedsim.pipeline import party_table
from fedsim.privacy import bounds, mechanisms
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.registry import METRICS
from fedsim.types import EncodedTable, Flags, Floats, Integers
from fedsim_audit.attacks import location_attacks, similarity_attacks
from fedsim_audit.attacks.attack_finding import AttackFinding
from fedsim_audit.attacks.similarity_attacks import PrimaryView
from fedsim_audit.audit_report import NO_GUARANTEE, AuditSettings, Guarantee, PlannedAttack

PAIRS_PER_TILE = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class AttackSetup:
    """The identifiers of both sides under the agreed names, and which primary records are training records."""

    name: str
    terms: SecondaryTerms
    primary: pl.DataFrame
    secondary: pl.DataFrame
    counted: Flags
    seed: int

    @cached_property
    def place_columns(self) -> tuple[str, str] | None:
        """The columns of latitude and longitude: those that are blurred, or those named so."""
        if self.terms.blur is not None:
            return self.terms.blur.latitude, self.terms.blur.longitude
        return place_columns(self.terms.encoding)

    @cached_property
    def all_places(self) -> list[Place]:
        """Every place that links: one, or several, such as both ends of a trip."""
        fields = enumerate(self.terms.encoding.fields)
        places = [Place((field.column, field.longitude), at) for at, field in fields if field.longitude is not None]
        return places or ([Place(self.place_columns)] if self.place_columns else [])

    @cached_property
    def key(self) -> Key:
        """The throwaway linkage key, which all jobs share."""
        return Key(np.random.default_rng([self.seed, 1]).bytes(SECRET_BYTES))

    @cached_property
    def _encoded_once(self) -> tuple[EncodedTable, EncodedTable]:
        return self._encode([self.primary, self.secondary])

    def _encode(self, sides: Sequence[pl.DataFrame]) -> tuple[EncodedTable, EncodedTable]:
        queries, candidates = (
            party_table.encode_table(self.terms.encoding, side, self.key, self.name) for side in sides
        )
        return queries, candidates

    def linkage(self, job: int = 0, **changes: Any) -> AuditedLinkage:
        """Link under the job's terms, with some of them changed; another number of a job draws other noise.

        Places move once for all jobs.
        """
        terms = self.terms.model_copy(update=changes)
        rng = np.random.default_rng([self.seed, 1])
        _, secret, *lasting = (rng.bytes(SECRET_BYTES) for _ in range(4))  # the first is the key
        secret = np.random.default_rng([self.seed, 1, job]).bytes(SECRET_BYTES) if job else secret
        tables, linking = (self.primary, self.secondary), replace(terms.linkage, k=min(terms.k, len(self.secondary)))
        sides = [
            party_table.blur_identifiers(table, terms, moving, self.name)
            for table, moving in zip(tables, lasting, strict=True)
        ]
        encoded = self._encoded_once if terms.blur is None else self._encode(sides)
        common = encoded, sides[0], sides[1], self.key, secret
        state, delivery = link_encoded_tables(*encoded, self.counted, linking, secret, self.name, threads=1)
        partner, similarity = delivery.partner.astype(np.int64), delivery.overall.astype(np.float64)
        view = PrimaryView(partner, similarity, state.scale, state.sigma)
        return AuditedLinkage(self, terms, view, state.order.astype(np.int64), *common, state)

    def places(self, frame: pl.DataFrame) -> Floats | None:
        """Return latitude and longitude of a table's records, if these link."""
        return None if self.place_columns is None else cells.read_number_columns(frame, self.place_columns, self.name)


class Place(NamedTuple):
    """The columns of latitude and longitude, and the field of the schema if it holds nothing else."""

    columns: tuple[str, str]
    field: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class AuditedLinkage:
    """A linkage under certain terms; partners are pseudonyms."""

    setup: AttackSetup
    terms: SecondaryTerms
    view: PrimaryView
    order: Integers  # (m,), the secondary's row behind each pseudonym
    encoded: tuple[EncodedTable, EncodedTable]
    linked: pl.DataFrame  # the primary's identifiers as they were linked
    partners: pl.DataFrame  # those of the secondary
    key: Key
    secret: bytes  # of the coordinator's noise and pseudonyms
    state: LinkageState  # by which the coordinator answers about new records

    @property
    def places(self) -> Floats | None:
        """The primary's places as they were linked, (n, 2), if one place links."""
        return self.setup.places(self.linked)

    @cached_property
    def codes(self) -> similarity_attacks.Codebook:
        """All filters that partner records may have, and the true one of each number that the primary sees."""
        queries, candidates = self.encoded
        if self.terms.blur is not None:  # an attacker can list the true places, but not the blurred ones
            candidates = party_table.encode_table(self.terms.encoding, self.setup.secondary, self.key, self.setup.name)
        book = similarity_attacks.Codebook.of(metrics.get_metric(self.terms.metric), queries, candidates)
        return replace(book, truth=book.truth[self.order])

    def truth(self, radius: float, place: Place) -> location_attacks.TrueLocations:
        """Return the true places of all partner records that the primary sees."""
        by_row = self.true_places(place, radius)
        return replace(by_row, places=by_row.places[self.order])

    def true_places(self, place: Place, radius: float) -> location_attacks.TrueLocations:
        """Return the same by row of the secondary instead of pseudonym."""
        places = cells.read_number_columns(self.setup.secondary, place.columns, self.setup.name)
        return location_attacks.TrueLocations(places, radius)

    def distances(self) -> Floats:
        """Return the true Hamming distance of every link, (n, K)."""
        queries, candidates = self.encoded
        record = np.repeat(np.arange(len(self.view)), self.view.partner.shape[1])
        row = self.order[self.view.partner.ravel()]
        distance = np.empty(len(row))
        for first in range(0, len(row), PAIRS_PER_TILE):
            tile = slice(first, first + PAIRS_PER_TILE)
            distance[tile] = np.bitwise_count(queries.bits[record[tile]] ^ candidates.bits[row[tile]]).sum(axis=1)
        return distance.reshape(self.view.partner.shape)

    def with_distinct_pairs(self) -> PrimaryView:
        """Return the view with every pair of filters once, because all links of a pair share one draw of noise."""
        queries, candidates = self.encoded
        left, right = (distinct_records(table.bits)[1] for table in (queries, candidates))
        pair = left[:, None] * len(candidates) + right[self.order[self.view.partner]]
        first = np.zeros(pair.size, dtype=bool)
        first[np.unique(pair.ravel(), return_index=True)[1]] = True
        partner = np.where(first.reshape(pair.shape), self.view.partner, -1)
        return PrimaryView(partner, self.view.similarity, self.view.scale, self.view.sigma)


FILTER_SECRET = "the exact filter of a partner record, and hence its identifiers"  # noqa: S105
PRIOR_SLACK = 0.05  # the shape of a town helps any attacker a little beyond the blurred place
METRES_PER_DEGREE = 111_195.0
ViewAttack = Callable[[PrimaryView], AttackFinding]


def primary_attacks(linkage: AuditedLinkage, settings: AuditSettings, rng: Generator) -> Iterator[PlannedAttack]:
    """Plan every attack of the primary that applies to this linkage."""
    yield from _filter_attacks(linkage, settings, rng)
    yield from place_attacks(linkage, settings, rng)


def primary_attack(
    kind: AttackKind,
    what: str,
    learns: str,
    run: Callable[[], AttackFinding],
    promised: Guarantee | Callable[[], Guarantee] = NO_GUARANTEE,
    memory: float = 0.0,
) -> PlannedAttack:
    """Plan an attack of the primary on the secondary."""
    return PlannedAttack(kind, Adversary.PRIMARY, Victim.SECONDARY, what, learns, run, promised, memory)


def _filter_attacks(linkage: AuditedLinkage, settings: AuditSettings, rng: Generator) -> Iterator[PlannedAttack]:
    view, promised, terms = linkage.view, NO_GUARANTEE, linkage.terms
    if terms.tau is not None:  # the bound that the job claims, whatever the build does
        promised = Guarantee(f"tau={terms.tau:g} against the greedy attack", terms.tau)
    elif terms.sigma and METRICS.detail(terms.metric, "counts_bits"):
        bound = bounds.success_bound(terms.sigma, linkage.view.known_scale().deviation)
        promised = Guarantee(f"sigma={terms.sigma:g} (tau={bound:.3g}) against the greedy attack", bound)
    if METRICS.detail(terms.metric, "counts_bits"):
        distance, distinct = linkage.distances(), linkage.with_distinct_pairs()

        def on_distances(seen: PrimaryView) -> AttackFinding:
            return similarity_attacks.distance_attack(seen, distance)

        guarantee = _with_reference_noise(linkage, promised, distinct, on_distances, rng)
        run = partial(_best_of_two_attackers, distinct, on_distances)
        yield primary_attack(AttackKind.DISTANCES, "greedy, distances", "the exact distance of a link", run, guarantee)
    blurred = nearest_guarantee(linkage, linkage.setup.secondary, linkage.partners, linkage.setup.secondary)
    if promised.most is not None or blurred.most is not None:
        promised = blurred if blurred.most is not None else Guarantee("none: tau covers single similarities only")

    def likelihood() -> AttackFinding:
        return similarity_attacks.likelihood_attack(view, linkage.codes, rng=rng, targets=settings.targets)

    queries, candidates = linkage.encoded
    # Distances of some hundred links to all possible filters, and the unpacked filters of both tables.
    memory = float(3 * 200 * 8 * len(candidates) + 4 * (len(queries) + len(candidates)) * queries.bits.shape[1])
    yield primary_attack(AttackKind.LIKELIHOOD, "likelihood", FILTER_SECRET, likelihood, promised, memory)


def place_attacks(linkage: AuditedLinkage, settings: AuditSettings, rng: Generator) -> Iterator[PlannedAttack]:
    """Plan every attack that locates partner records; a blurred job guarantees something against all of them."""
    for place in linkage.setup.all_places:
        yield from _attacks_on_place(linkage, place, settings, rng)


def _attacks_on_place(
    linkage: AuditedLinkage, place: Place, settings: AuditSettings, rng: Generator
) -> Iterator[PlannedAttack]:
    view, truth = linkage.view, linkage.truth(settings.metres, place)
    own = cells.read_number_columns(linkage.linked, place.columns, linkage.setup.name)
    which = f" ({place.columns[0]})" if len(linkage.setup.all_places) > 1 else ""
    learns = f"where a partner record is, within {settings.metres:g} m{which}"
    promised = blur_guarantee(linkage, settings, place)

    def located(what: str, run: Callable[[], AttackFinding]) -> PlannedAttack:
        return primary_attack(AttackKind.LOCATION, what + which, learns, run, promised)

    for way in (location_attacks.PLAIN_CENTROID, location_attacks.RANKED_CENTROID):
        yield located(way.attack, partial(location_attacks.link_graph_attack, view, own, truth, rng=rng, way=way))
    yield located("link graph made consistent", partial(location_attacks.consistency_attack, view, own, truth, rng=rng))
    without_scale = PrimaryView(view.partner, view.similarity, None, view.sigma)
    yield located(
        "multilateration", partial(location_attacks.multilateration_attack, without_scale, own, truth, rng=rng)
    )


def blur_guarantee(linkage: AuditedLinkage, settings: AuditSettings, place: Place) -> Guarantee:
    """Return what blurring guarantees: no attacker does better than one who knows the blurred place itself."""
    blur = linkage.terms.blur
    if blur is None or (blur.latitude, blur.longitude) != place.columns:
        return NO_GUARANTEE
    reach = blur.epsilon * settings.metres
    share = 1.0 - (1.0 + reach) * math.exp(-reach)
    # Guessing the one best place for every record may succeed more often.
    places = linkage.truth(settings.metres, place).places
    some = places[:: 1 + len(places) // 500]
    near = np.hypot(*np.moveaxis((some[:, None] - some) * METRES_PER_DEGREE, -1, 0)) <= settings.metres
    most = max(share, float(near.mean(axis=1).max()))
    return Guarantee(mechanisms.PlanarLaplace(blur.epsilon).guarantee, min(1.0, most + PRIOR_SLACK))


def _with_reference_noise(
    linkage: AuditedLinkage, promised: Guarantee, seen: PrimaryView, attempt: ViewAttack, rng: Generator
) -> Guarantee:
    """Add the score under noise drawn here: the theorem assumes normal similarities, which real ones are not quite."""
    scale = linkage.view.known_scale()
    if promised.most is None or scale.deviation <= 0:
        return promised
    distance = linkage.distances()
    sigma = linkage.terms.sigma or bounds.sigma_for_bound(promised.most, scale.deviation)
    similarity = similarities(distance, scale, sigma=sigma, noise=rng)
    reached = _best_of_two_attackers(PrimaryView(seen.partner, similarity, scale, sigma), attempt).score.high
    return replace(promised, reached=reached)


def _best_of_two_attackers(view: PrimaryView, attempt: ViewAttack) -> AttackFinding:
    """Return the better of two attackers: one who takes the noise into account, and one who does not."""
    naive = PrimaryView(view.partner, view.similarity, view.scale, 0.0)
    tries = [attempt(seen) for seen in ([view, naive] if view.sigma else [view])]
    return max(tries, key=lambda found: found.score.value)


def nearest_guarantee(
    linkage: AuditedLinkage, before: pl.DataFrame, after: pl.DataFrame, listed: pl.DataFrame
) -> Guarantee:
    """Return what blurring guarantees: nobody names more records than one who knows the blurred places themselves.

    Of the places that a record may have, the nearest to its blurred place is the most likely one.
    """
    blur, (true, moved, possible) = linkage.terms.blur, map(linkage.setup.places, (before, after, listed))
    if blur is None or true is None or moved is None or possible is None:
        return NO_GUARANTEE
    if sorted(linkage.terms.encoding.columns) != sorted((blur.latitude, blur.longitude)):
        return NO_GUARANTEE
    stretch = np.array([1.0, math.cos(math.radians(float(possible[:, 0].mean())))])
    nearest = spatial.KDTree(possible * stretch).query(moved * stretch)[1]
    right = (possible[nearest] == true).all(axis=1)
    return Guarantee(mechanisms.PlanarLaplace(blur.epsilon).guarantee, min(1.0, float(right.mean()) + PRIOR_SLACK))
