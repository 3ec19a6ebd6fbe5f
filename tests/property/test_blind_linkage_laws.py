"""A blind coordinator finds the links of the plain one, bit for bit, and sees nothing but differences within rows."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedsim.errors import SettingError
from fedsim.linkage import blind_linkage as blind
from fedsim.linkage.encoding.positions import pack_positions
from fedsim.linkage.private_linkage import LinkageConfig, PrivateLinks, link_encoded_tables
from fedsim.privacy.keyed_prng import derive_subkey
from fedsim.types import EncodedTable

PRIMARY, SECONDARY, COORDINATOR = (derive_subkey(bytes(32), name, 32) for name in ("p", "s", "c"))
SHARED, DEAL_P, DEAL_S = (derive_subkey(bytes(32), name, 32) for name in ("ps", "cp", "cs"))
seeds = st.integers(0, 2**32)
metrics = st.sampled_from(["hamming", "dice", "position"])


def tables(seed: int, metric: str) -> tuple[EncodedTable, EncodedTable]:
    """Small tables with ties, equal records and empty filters, one of each size at times."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12), rng.integers(1, 25)
    if metric == "position":
        axes, reach = int(rng.integers(1, 7)), int(rng.choice([2, 40, 6_000_000]))
        rows = [pack_positions(rng.integers(-reach, reach, (size, axes)).astype(float)) for size in sizes]
        return tuple(EncodedTable(packed, 32 * axes, "ab") for packed in rows)
    n_bits, density = int(rng.integers(3, 40)), rng.choice([0.1, 0.5])
    filters = [np.packbits(rng.random((size, n_bits)) < density, axis=1) for size in sizes]
    return tuple(EncodedTable(packed, n_bits, "ab") for packed in filters)


def link_blindly(
    queries: EncodedTable, candidates: EncodedTable, linking: LinkageConfig, noise: blind.BlindNoise | None = None
) -> PrivateLinks:
    """Let the three roles compute tile by tile, each from what it would hold."""
    metric = blind.blind_metric(linking.metric, queries.n_bits)
    ours = blind.blind_queries(queries, metric, PRIMARY, "list")
    theirs = blind.blind_candidates(candidates, metric, SECONDARY, "list")
    m, d = theirs.vectors.rows.shape
    masks = blind.all_candidate_masks(DEAL_S, m, metric, d)
    shifts = blind.row_shifts(PRIMARY, ours.names, metric)
    parts = []
    for tile in blind.tiles(len(ours.names), m):
        secrets = blind.RowSecrets.draw(SHARED, "once", ours.names, tile, metric, n_candidates=m)
        hidden = ours.vectors.rows[tile] - blind.query_masks(DEAL_P, tile, metric, d)
        dealt = blind.correction(DEAL_P, tile, metric, masks)
        product = blind.secondary_product(theirs.vectors, hidden)
        right = blind.secondary_share(theirs.vectors, product, dealt, ours.vectors.ones[tile], secrets)
        masked = theirs.vectors.rows[:] - masks
        left = blind.primary_share(ours.vectors, tile, DEAL_P, masked, theirs.vectors.ones, secrets, shifts)
        opened = blind.open_tile(metric, (left, right), linking.k, ours.names[tile], noise)
        ones = ours.vectors.ones[tile], theirs.vectors.ones
        facts = {"first": tile.start, "noisy": noise is not None}
        parts.append(blind.read_opened(metric, opened, secrets.permutation, shifts[tile], ones, **facts))
    found = blind.nearest_classes(parts, linking.k)
    partner, distance = blind.expand_classes(found, *theirs.members_of(found.distinct), linking.k)
    counted = np.ones(len(queries), bool)
    return blind.scale_links(partner, distance, ours.place, counted=counted, scale=None)[1]


@settings(max_examples=120, deadline=None)
@given(seeds, metrics, st.data())
def test_partners_and_similarities_are_those_of_the_plain_coordinator_bit_for_bit(seed, metric, data):
    queries, candidates = tables(seed, metric)
    linking = LinkageConfig(metric, data.draw(st.integers(1, len(candidates)), label="k"))
    counted = np.ones(len(queries), bool)
    _, plain = link_encoded_tables(queries, candidates, counted, linking, SECONDARY, "list", threads=1)
    found = link_blindly(queries, candidates, linking)
    assert np.array_equal(found.partner, plain.partner)
    assert found.vectors.tobytes() == plain.vectors.tobytes()


@settings(max_examples=60, deadline=None)
@given(seeds, metrics, st.data())
def test_links_without_masks_are_those_of_the_three_roles_with_and_without_noise(seed, metric, data):
    queries, candidates = tables(seed, metric)
    linking = LinkageConfig(metric, data.draw(st.integers(1, len(candidates)), label="k"))
    counted, plain = np.ones(len(queries), bool), link_blindly(queries, candidates, linking)
    found = blind.link_unmasked(queries, candidates, linking, SECONDARY, "list")
    place, facts = np.arange(len(queries)), {"counted": counted, "scale": None}
    links = blind.scale_links(found.partner, found.distance, place, **facts)[1]
    assert np.array_equal(links.partner, plain.partner)
    assert links.vectors.tobytes() == plain.vectors.tobytes()
    noisy = blind.link_unmasked(queries, candidates, replace(linking, sigma=0.5), SECONDARY, "list")
    every = blind.link_unmasked(queries, candidates, replace(linking, k=len(candidates)), SECONDARY, "list")
    by_pseudonym = np.take_along_axis(every.distance, np.argsort(every.partner, axis=1), axis=1)
    assert np.array_equal(noisy.exact, np.take_along_axis(by_pseudonym, noisy.partner.astype(np.int64), axis=1))


def test_small_tiles_give_the_links_of_a_single_one(monkeypatch):
    queries, candidates = tables(5, "hamming")
    linking = LinkageConfig("hamming", 2)
    whole = link_blindly(queries, candidates, linking)
    monkeypatch.setattr(blind, "TILE_PAIRS", 2 * len(candidates))
    monkeypatch.setattr(blind, "VECTORS_PER_BLOCK", 3)
    assert len(list(blind.tiles(len(queries), len(candidates)))) > 1
    again = link_blindly(queries, candidates, linking)
    assert np.array_equal(again.partner, whole.partner)
    assert again.vectors.tobytes() == whole.vectors.tobytes()


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 60), st.integers(-2, 42), st.integers(0, 42))
def test_a_tile_is_recognised_without_listing_all(n_queries, n_candidates, tile_pairs, first, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blind, "TILE_PAIRS", tile_pairs)
        every, tile = list(blind.tiles(n_queries, n_candidates)), slice(first, first + length)
        assert blind.is_tile(tile, n_queries, n_candidates) == (tile in every)
        assert all(blind.is_tile(one, n_queries, n_candidates) for one in every)
        patch.setattr(blind, "VECTORS_PER_BLOCK", tile_pairs)
        blocks = {block.start: block for block in blind.vector_blocks(n_queries)}
        assert blind.vector_block(first, n_queries) == blocks.get(first)


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from(["<u2", "<u4", "<u8"]), st.integers(1, 40))
def test_products_of_the_ring_are_those_of_whole_numbers(seed, dtype, dimensions):
    rng, size = np.random.default_rng(seed), 2 ** (8 * np.dtype(dtype).itemsize)
    left, right = (rng.integers(0, size, (rows, dimensions), dtype=dtype) for rows in (3, 5))
    expected = [[sum(a * b for a, b in zip(x, y, strict=True)) % size for y in right.tolist()] for x in left.tolist()]
    assert blind.ring_product(left, right).tolist() == expected


@settings(max_examples=30, deadline=None)
@given(seeds, metrics)
def test_noise_moves_similarities_and_is_the_same_when_asked_again(seed, metric):
    queries, candidates = tables(seed, metric)
    linking = LinkageConfig(metric, min(3, len(candidates)))
    noise = blind.BlindNoise(COORDINATOR[:16], 1e-3 if metric == "hamming" else 10.0)
    first, second = (link_blindly(queries, candidates, linking, noise) for _ in range(2))
    assert first.vectors.tobytes() == second.vectors.tobytes()
    assert first.partner.shape == (len(queries), linking.k)


def test_the_coordinator_opens_the_same_for_tables_that_differ_by_a_secret_pattern():
    rng = np.random.default_rng(0)
    rows, pattern = rng.integers(0, 256, (50, 16), np.uint8), rng.integers(0, 256, 16, np.uint8)
    left, right = EncodedTable(rows[:20], 128, ""), EncodedTable(rows[20:], 128, "")
    moved = [EncodedTable(table.bits ^ pattern, 128, "") for table in (left, right)]
    views = [np.sort(blind.opened_view(*pair, "hamming"), axis=0) for pair in ((left, right), moved)]
    assert np.array_equal(*views)


def test_filters_are_held_packed_and_unpacked_in_parts():
    filters = EncodedTable(np.random.default_rng(0).integers(0, 256, (20_000, 64), np.uint8), 512, "ab")
    metric = blind.blind_metric("hamming", 512)
    tracemalloc.start()
    vectors = blind.blind_candidates(filters, metric, SECONDARY, "list").vectors
    product = blind.secondary_product(vectors, vectors.rows[:3])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < filters.bits.nbytes * 16  # with a number for each bit: 16 times that alone
    assert np.array_equal(vectors.squares, vectors.rows[:].sum(axis=1))
    assert np.array_equal(product[:, 7], (vectors.rows[:3] * vectors.rows[7:8]).sum(axis=1))


def test_masks_beyond_the_limit_of_memory_lie_in_a_file(tmp_path, monkeypatch):
    metric = blind.blind_metric("hamming", 64)
    whole = blind.all_candidate_masks(DEAL_S, 30, metric, 64, tmp_path)
    monkeypatch.setattr("fedsim.storage.tensor_file.MAPPED_BYTES", 1)
    mapped = blind.all_candidate_masks(DEAL_S, 30, metric, 64, tmp_path)
    assert (type(whole), type(mapped)) == (np.ndarray, np.memmap)
    assert np.array_equal(whole, mapped)


def test_every_row_is_shuffled_in_its_own_way():
    found = blind.column_permutations(SHARED, np.arange(40, dtype=np.uint64), 300)
    assert (np.sort(found, axis=1) == np.arange(300)).all()
    assert len(np.unique(found[:, 0])) > 20
    assert np.array_equal(blind.column_permutations(SHARED, np.array([7], np.uint64), 300)[0], found[7])


@pytest.mark.parametrize(("metric", "n_bits"), [("levenshtein", 64), ("dice", 20_000), ("hamming", 20_000)])
def test_what_cannot_be_computed_in_shares_is_refused(metric, n_bits):
    with pytest.raises(SettingError):
        blind.blind_metric(metric, n_bits)
