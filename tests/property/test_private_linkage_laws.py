"""Laws of the coordinator's linkage: what the primary gets does not depend on the secondary's row order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

import reference_distances
from fedsim.linkage.private_linkage import LinkageConfig, LinkageState, link_encoded_tables, link_new_records
from fedsim.types import EncodedTable, Links

DISTANCES = {"hamming": reference_distances.hamming, "dice": reference_distances.dice}
SECRET = bytes(range(32))
seeds = st.integers(0, 2**32)
metrics = st.sampled_from(["hamming", "dice"])
sigmas = st.sampled_from([None, 0.3, 2.0])


def tables(seed: int) -> tuple[EncodedTable, EncodedTable]:
    """Small tables with many ties; the candidates' filters are distinct."""
    rng = np.random.default_rng(seed)
    n_bits = int(rng.integers(5, 12))
    every = np.unpackbits(np.arange(2**n_bits, dtype=">u2").view(np.uint8).reshape(-1, 2), axis=1)[:, 16 - n_bits :]
    queries = every[rng.integers(0, len(every), rng.integers(1, 12))]
    candidates = every[rng.permutation(len(every))[: rng.integers(1, 25)]]
    left, right = (EncodedTable(np.packbits(rows, axis=1), n_bits, "ab" * 32) for rows in (queries, candidates))
    return left, right


def link(queries: EncodedTable, candidates: EncodedTable, linking: LinkageConfig) -> tuple[LinkageState, Links]:
    return link_encoded_tables(queries, candidates, np.ones(len(queries), bool), linking, SECRET, "rents", threads=1)


def by_filter(linked: LinkageState, delivery: Links) -> list[dict[bytes, float]]:
    """The delivery with pseudonyms resolved to filters, which no renaming changes."""
    named = [row.tobytes() for row in linked.candidates.bits[linked.order]]
    rows = zip(delivery.partner.tolist(), delivery.overall.tolist(), strict=True)
    return [{named[there]: value for there, value in zip(*row, strict=True)} for row in rows]


@settings(max_examples=60)
@given(seeds, metrics, sigmas)
def test_the_secondarys_row_order_only_renames_pseudonyms(seed, metric, sigma):
    queries, candidates = tables(seed)
    rows = np.random.default_rng(seed).permutation(len(candidates))
    moved = EncodedTable(candidates.bits[rows], candidates.n_bits, candidates.fingerprint)
    linking = LinkageConfig(metric, len(candidates), sigma=sigma)
    here, there = link(queries, candidates, linking), link(queries, moved, linking)
    assert by_filter(*here) == by_filter(*there)
    assert here[0].scale == there[0].scale


@settings(max_examples=60)
@given(seeds, metrics, sigmas, st.data())
def test_with_fewer_partners_only_ties_at_the_border_may_differ(seed, metric, sigma, data):
    queries, candidates = tables(seed)
    k = data.draw(st.integers(1, len(candidates)))
    linked, delivery = link(queries, candidates, LinkageConfig(metric, k, sigma=sigma))
    for query, pairs in zip(queries.bits, by_filter(linked, delivery), strict=True):
        near = sorted(DISTANCES[metric](query, candidate) for candidate in candidates.bits)[:k]
        found = [DISTANCES[metric](query, np.frombuffer(name, np.uint8)) for name in pairs]
        np.testing.assert_array_equal(sorted(found), near)


@settings(max_examples=60)
@given(seeds, metrics, sigmas, st.data())
def test_a_record_asked_about_again_gets_the_same_answer(seed, metric, sigma, data):
    queries, candidates = tables(seed)
    linking = LinkageConfig(metric, data.draw(st.integers(1, len(candidates))), sigma=sigma)
    linked, delivery = link(queries, candidates, linking)
    some = data.draw(st.lists(st.integers(0, len(queries) - 1), min_size=1, max_size=5))
    asked = EncodedTable(queries.bits[some], queries.n_bits, queries.fingerprint)
    again = link_new_records(asked, linked, linking, SECRET, "rents", threads=1)
    np.testing.assert_array_equal(again.partner, delivery.partner[some])
    np.testing.assert_array_equal(again.overall, delivery.overall[some])


@settings(max_examples=60)
@given(seeds, metrics, sigmas, st.data())
def test_what_is_delivered_is_ordered_by_itself_alone(seed, metric, sigma, data):
    queries, candidates = tables(seed)
    k = data.draw(st.integers(1, len(candidates)))
    _, delivery = link(queries, candidates, LinkageConfig(metric, k, sigma=sigma))
    for row, values in zip(delivery.partner.tolist(), delivery.overall.tolist(), strict=True):
        seen = [(-value, there) for value, there in zip(values, row, strict=True)]
        assert seen == sorted(seen)
        assert len(set(row)) == k
