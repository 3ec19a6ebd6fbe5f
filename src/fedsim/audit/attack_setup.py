"""One linkage with both tables in the clear, under the terms of the job or changed ones, prepared for attacks.

Filters are made with a throwaway key; the success of attacks does not depend on the key.

Letters: n primary records, m secondary records, K partners.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.attack.location_attacks import TrueLocations
from fedsim.attack.primary_view import Codebook, PrimaryView
from fedsim.cells import read_number_columns
from fedsim.config.job import SecondaryTerms, coordinate_columns
from fedsim.linkage.encoding import Key, NumericFilter, Schema
from fedsim.linkage.encoding.record_filters import Concatenate, Shuffle
from fedsim.linkage.metrics import Metric, RankHamming, get_metric
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables
from fedsim.linkage.search.runner import Records, distinct_records
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.runtime.party_data import blur_identifiers, encode_table
from fedsim.types import EncodedTable, Floats, Integers

PAIRS_PER_TILE = 1 << 16
MAX_RANKED_BITS = 1 << 17  # longer filters take too long: their pivots are sorted for every guess


@dataclass(frozen=True, eq=False, repr=False)
class AttackSetup:
    """The identifiers of both sides under the agreed names, and which primary records are training records."""

    name: str
    terms: SecondaryTerms
    primary: pl.DataFrame
    secondary: pl.DataFrame
    counted: NDArray[np.bool_]
    seed: int

    @cached_property
    def place_columns(self) -> tuple[str, str] | None:
        """The columns of latitude and longitude: those that are blurred, or those named so."""
        if self.terms.blur is not None:
            return self.terms.blur.latitude, self.terms.blur.longitude
        numeric = [field.column for field in self.terms.encoding.fields if isinstance(field.encoding, NumericFilter)]
        return coordinate_columns(numeric)

    def linkage(self, **changes: Any) -> AuditedLinkage:
        """Link under the job's terms, with some of them changed."""
        terms = self.terms.model_copy(update=changes)
        rng = np.random.default_rng([self.seed, 1])
        key, secret = Key(rng.bytes(SECRET_BYTES)), rng.bytes(SECRET_BYTES)
        tables = (self.primary, self.secondary)
        sides = [blur_identifiers(table, terms, rng.bytes(SECRET_BYTES), self.name) for table in tables]
        queries, candidates = (encode_table(terms.encoding, side, key, self.name) for side in sides)
        k, degree = min(terms.k, len(candidates)), terms.min_degree
        linking = LinkageConfig(terms.metric, k, terms.tau, terms.sigma, min_degree=degree, dummies=terms.dummies)
        linked, delivery = link_encoded_tables(queries, candidates, self.counted, linking, secret, self.name, threads=1)
        partner, similarity = delivery.partner.astype(np.int64), delivery.similarity.astype(np.float64)
        view = PrimaryView(partner, similarity, linked.scale, linked.sigma)
        own = self.places(sides[0])
        return AuditedLinkage(self, terms, view, linked.order.astype(np.int64), (queries, candidates), own, key)

    def places(self, frame: pl.DataFrame) -> Floats | None:
        """Return latitude and longitude of a table's records, if these link."""
        return None if self.place_columns is None else read_number_columns(frame, self.place_columns, self.name)


@dataclass(frozen=True, eq=False, repr=False)
class AuditedLinkage:
    """A linkage under certain terms; partners are pseudonyms."""

    setup: AttackSetup
    terms: SecondaryTerms
    view: PrimaryView
    order: Integers  # (m,), the secondary's row behind each pseudonym
    encoded: tuple[EncodedTable, EncodedTable]
    places: Floats | None  # (n, 2), the primary's places as they were linked
    key: Key

    @cached_property
    def visible(self) -> PrimaryView:
        """What the primary sees: where rows are hidden, every link has a number of its own."""
        if not self.terms.hide_rows:
            return self.view
        numbers = np.arange(self.view.partner.size, dtype=np.int64).reshape(self.view.partner.shape)
        return PrimaryView(numbers, self.view.similarity, self.view.scale, self.view.sigma)

    @cached_property
    def row_of_visible(self) -> Integers:
        """The secondary's row behind each number that the primary sees."""
        return self.order if not self.terms.hide_rows else self.order[self.view.partner.ravel()]

    @cached_property
    def codes(self) -> Codebook:
        """All filters that partner records may have, and the true one of each number that the primary sees."""
        queries, candidates = self.encoded
        if self.terms.blur is not None:  # an attacker can list the true places, but not the blurred ones
            candidates = encode_table(self.terms.encoding, self.setup.secondary, self.key, self.setup.name)
        book = Codebook.of(get_metric(self.terms.metric), queries, candidates)
        return Codebook(book.metric, book.own, book.possible, book.truth[self.row_of_visible])

    def truth(self, radius: float) -> TrueLocations:
        """Return the true places of all partner records that the primary sees."""
        places = self.setup.places(self.setup.secondary)
        if places is None:
            raise ValueError("no places")  # pragma: no cover - called only where there are some
        return TrueLocations(places[self.row_of_visible], radius)

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
        """Return the view with every pair of filters once.

        All links of a pair share one draw of noise, so counting copies would make one lucky draw look like many.
        """
        queries, candidates = self.encoded
        left, right = (distinct_records(table.bits)[1] for table in (queries, candidates))
        pair = left[:, None] * len(candidates) + right[self.order[self.view.partner]]
        first = np.zeros(pair.size, dtype=bool)
        first[np.unique(pair.ravel(), return_index=True)[1]] = True
        partner = np.where(first.reshape(pair.shape), self.view.partner, -1)
        return PrimaryView(partner, self.view.similarity, self.view.scale, self.view.sigma)

    def share_of_links_kept(self, plain: AuditedLinkage) -> float:
        """Return the share of a plain linkage's links that this one still has."""
        rows = zip(self.order[self.view.partner], plain.order[plain.view.partner], strict=True)
        return float(np.mean([len(np.intersect1d(new, old)) / len(old) for new, old in rows]))

    def place_encoder(self) -> SchemaPlaceEncoder | None:
        """Return the encoder of places that the primary can run itself, if filters hold nothing but a place."""
        schema, columns = self.terms.encoding, self.setup.place_columns
        if columns is None or schema.n_bits > MAX_RANKED_BITS or self.terms.metric != "hamming":
            return None
        plain = isinstance(schema.combine, Concatenate) and all(isinstance(step, Shuffle) for step in schema.hardening)
        only_places = plain and sorted(schema.columns) == sorted(columns)
        return SchemaPlaceEncoder(schema, self.key, columns) if only_places else None


@dataclass(frozen=True, eq=False, repr=False)
class SchemaPlaceEncoder:
    """Encode places in the rank form of a schema's filters; places beyond the agreed range are moved to its border."""

    schema: Schema
    key: Key
    columns: tuple[str, str]

    @property
    def metric(self) -> Metric:
        return RankHamming()

    def encode(self, places: Floats) -> Records:
        codes = {field.column: field.encoding for field in self.schema.fields}
        inside = {
            name: np.clip(places[:, axis], code.low, code.high)
            for axis, name in enumerate(self.columns)
            if isinstance(code := codes[name], NumericFilter)
        }
        return np.ascontiguousarray(self.schema.ranks(inside, self.key).astype(np.int32))
