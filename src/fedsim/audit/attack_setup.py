"""One linkage with both tables in the clear, under the terms of the job or changed ones, prepared for attacks.

Filters are made with a throwaway key: what attacks achieve does not depend on which key it is.

Letters: n primary records, m secondary records, K partners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.attack.location_attacks import TrueLocations
from fedsim.attack.primary_view import Codebook, PrimaryView
from fedsim.config.job import SecondaryTerms, coordinate_columns
from fedsim.data.columns import parse_required_numbers
from fedsim.linkage.encoding import Key, NumericFilter, Schema
from fedsim.linkage.encoding.record_filters import Concatenate, Shuffle
from fedsim.linkage.metrics import Metric, RankHamming, get_metric
from fedsim.linkage.private_linkage import LinkageConfig, link_encoded_tables
from fedsim.linkage.search.runner import Records, distinct_records
from fedsim.privacy.keyed_prng import SECRET_BYTES
from fedsim.runtime.party_data import encode_table
from fedsim.runtime.run_store import blur_with_secret
from fedsim.types import EncodedTable, Floats, Integers

PAIRS_PER_TILE = 1 << 16
MAX_RANKED_BITS = 1 << 17  # of filters whose pivots are sorted for every guess


@dataclass(frozen=True, eq=False, repr=False)
class AttackSetup:
    """Identifiers of both sides under the agreed names, and which primary records train."""

    name: str
    terms: SecondaryTerms
    primary: pl.DataFrame
    secondary: pl.DataFrame
    counted: NDArray[np.bool_]
    seed: int

    @cached_property
    def place_columns(self) -> tuple[str, str] | None:
        """The identifiers that are latitude and longitude: those that are blurred, or those called so."""
        if self.terms.blur is not None:
            return self.terms.blur.latitude, self.terms.blur.longitude
        numeric = [field.column for field in self.terms.encoding.fields if isinstance(field.encoding, NumericFilter)]
        return coordinate_columns(numeric)

    def linkage(self, **changes: Any) -> AuditedLinkage:
        """The linkage under the job's terms, some of them changed."""
        terms = self.terms.model_copy(update=changes)
        rng = np.random.default_rng([self.seed, 1])
        key, secret = Key(rng.bytes(SECRET_BYTES)), rng.bytes(SECRET_BYTES)
        sides = [
            blur_with_secret(frame, terms, rng.bytes(SECRET_BYTES), self.name)
            for frame in (self.primary, self.secondary)
        ]
        queries, candidates = (encode_table(terms.encoding, side, key, self.name) for side in sides)
        linking = LinkageConfig(
            terms.metric,
            min(terms.k, len(candidates)),
            terms.tau,
            terms.sigma,
            min_degree=terms.min_degree,
            dummies=terms.dummies,
        )
        linked, delivery = link_encoded_tables(queries, candidates, self.counted, linking, secret, self.name, threads=1)
        partner, similarity = delivery.partner.astype(np.int64), delivery.similarity.astype(np.float64)
        view = PrimaryView(partner, similarity, linked.scale, linked.sigma)
        own = self._places(sides[0])
        return AuditedLinkage(self, terms, view, linked.order.astype(np.int64), (queries, candidates), own, key)

    def primary_places(self) -> Floats | None:
        """Where the primary's records really are."""
        return self._places(self.primary)

    def secondary_places(self) -> Floats | None:
        """Where the secondary's records really are."""
        return self._places(self.secondary)

    def _places(self, frame: pl.DataFrame) -> Floats | None:
        if self.place_columns is None:
            return None
        return np.column_stack(
            [parse_required_numbers(frame[name], table=self.name).to_numpy() for name in self.place_columns]
        )


@dataclass(frozen=True, eq=False)
class AuditedLinkage:
    """What follows from a scene under certain terms; partners are pseudonyms."""

    scene: AttackSetup
    terms: SecondaryTerms
    view: PrimaryView
    order: Integers  # (m,), the secondary's row behind each pseudonym
    encoded: tuple[EncodedTable, EncodedTable]
    own: Floats | None  # (n, 2), the primary's places as they were linked
    key: Key

    def __repr__(self) -> str:
        return f"AuditedLinkage({self.scene.name}, {len(self.view)} records)"

    @cached_property
    def seen(self) -> PrimaryView:
        """What the primary sees: where rows are hidden, every link has a number of its own."""
        if not self.terms.hide_rows:
            return self.view
        apart = np.arange(self.view.partner.size, dtype=np.int64).reshape(self.view.partner.shape)
        return PrimaryView(apart, self.view.similarity, self.view.scale, self.view.sigma)

    @cached_property
    def row_of_visible(self) -> Integers:
        """The secondary's row behind each number the primary sees."""
        return self.order if not self.terms.hide_rows else self.order[self.view.partner.ravel()]

    @cached_property
    def codes(self) -> Codebook:
        """All filters the partners may have, and the true one of each number the primary sees."""
        queries, candidates = self.encoded
        if self.terms.blur is not None:  # whoever blurred knows no list of blurred places: the true ones are listed
            candidates = encode_table(self.terms.encoding, self.scene.secondary, self.key, self.scene.name)
        book = Codebook.of(get_metric(self.terms.metric), queries, candidates)
        return Codebook(book.metric, book.own, book.possible, book.truth[self.row_of_visible])

    def truth(self, radius: float) -> TrueLocations:
        """The true places of all the primary sees."""
        places = self.scene.secondary_places()
        if places is None:
            raise ValueError("no places")  # pragma: no cover - asked only where there are some
        return TrueLocations(places[self.row_of_visible], radius)

    def distances(self) -> Floats:
        """True Hamming distance of every link, (n, K)."""
        queries, candidates = self.encoded
        record = np.repeat(np.arange(len(self.view)), self.view.partner.shape[1])
        row = self.order[self.view.partner.ravel()]
        found = np.empty(len(row))
        for first in range(0, len(row), PAIRS_PER_TILE):
            tile = slice(first, first + PAIRS_PER_TILE)
            found[tile] = np.bitwise_count(queries.bits[record[tile]] ^ candidates.bits[row[tile]]).sum(axis=1)
        return found.reshape(self.view.partner.shape)

    def with_distinct_pairs(self) -> PrimaryView:
        """The view with every pair of filters once: a pair has one noise however many links share it.

        Counted as often as it stands there, one lucky draw would look like many.
        """
        queries, candidates = self.encoded
        left, right = (distinct_records(table.bits)[1] for table in (queries, candidates))
        pair = left[:, None] * len(candidates) + right[self.order[self.view.partner]]
        first = np.zeros(pair.size, dtype=bool)
        first[np.unique(pair.ravel(), return_index=True)[1]] = True
        partner = np.where(first.reshape(pair.shape), self.view.partner, -1)
        return PrimaryView(partner, self.view.similarity, self.view.scale, self.view.sigma)

    def share_of_links_kept(self, plain: AuditedLinkage) -> float:
        """Share of a plain linkage's links that are still there."""
        rows = zip(self.order[self.view.partner], plain.order[plain.view.partner], strict=True)
        return float(np.mean([len(np.intersect1d(new, old)) / len(old) for new, old in rows]))

    def place_encoder(self) -> SchemaPlaceEncoder | None:
        """The encoder of places the primary can run by itself, where filters hold nothing but a place."""
        schema, columns = self.terms.encoding, self.scene.place_columns
        short = schema.n_bits <= MAX_RANKED_BITS
        if columns is None or not short or self.terms.metric != "hamming" or not _holds_only(schema, columns):
            return None
        return SchemaPlaceEncoder(schema, self.key, columns)


@dataclass(frozen=True, eq=False, repr=False)
class SchemaPlaceEncoder:
    """Places in the rank form of a schema's filters; those beyond the agreed range count as being at its border."""

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


def _holds_only(schema: Schema, columns: Sequence[str]) -> bool:
    plain = isinstance(schema.combine, Concatenate) and all(isinstance(step, Shuffle) for step in schema.hardening)
    return plain and sorted(schema.columns) == sorted(columns)
