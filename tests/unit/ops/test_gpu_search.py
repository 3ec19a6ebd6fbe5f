"""The search on a card equals plain distances sorted by (distance, row), bit by bit.

Without a card, its kernels are emulated; everything around them is the product's code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from fedsim.errors import DeviceError
from fedsim_ops import gpu_search as gpu
from gpu_emulator import edit_distances, emulate_card, euclidean, filter_distances

CARDS = gpu.devices()


@pytest.fixture(params=["emulated", "card"])
def devices(request, monkeypatch):
    if request.param == "card":
        return CARDS or pytest.skip("there is no CUDA device")
    return emulate_card(monkeypatch)


def nearest(table, k, devices):
    search = gpu.DeviceSearch(table, devices)
    tiles = search.tiles()
    n_queries = sum(map(len, tiles))
    partner, distance = np.empty((n_queries, k), np.int64), np.empty((n_queries, k))
    with ThreadPoolExecutor(2) as pool:
        for tile, found in zip(tiles, pool.map(lambda tile: search.best(tile, k), tiles), strict=True):
            partner[tile], distance[tile] = found
    return partner, distance


def expect(found, distance, k):
    order = np.argsort(distance, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found[0], order)
    np.testing.assert_array_equal(found[1], np.take_along_axis(distance, order, axis=1))


def filters(kind, n, words, rng):
    """Random filters, or the order and ties that are hardest for a search with limits."""
    some = rng.integers(0, 2**63, (n, words), dtype=np.uint64)
    if kind == "equal":
        some[:] = some[0]
    if kind == "empty":
        some[::2] = 0
    if kind in ("nearing", "far"):  # ever nearer to zero; all at the largest distance from each other
        steps = np.arange(n)[:, None] if kind == "nearing" else np.zeros((n, 1))
        ones = np.clip(64 * words - steps // 2 - 64 * np.arange(words), 0, 63).astype(np.uint64)
        some = (np.uint64(1) << ones) - np.uint64(1)
    return some


@pytest.mark.parametrize("dice", [False, True])
@pytest.mark.parametrize(
    ("kind", "words", "k"),
    [("random", 1, 1), ("random", 5, 17), ("equal", 2, 9), ("empty", 1, 40), ("nearing", 16, 30), ("far", 33, 5)],
)
def test_filters_are_ranked_as_by_plain_distances(devices, kind, words, k, dice):
    rng = np.random.default_rng(0)
    queries, candidates = filters("random", 70, words, rng), filters(kind, 700, words, rng)
    queries[:20] = 0
    table = gpu.FilterTable(queries, candidates, by_ones=dice)
    expect(nearest(table, k, devices), filter_distances(queries, candidates, dice=dice), k)


@pytest.mark.parametrize(("dimensions", "k", "ties"), [(1, 3, True), (2, 17, False), (3, 1, True), (8, 40, False)])
def test_points_are_ranked_as_by_plain_distances(devices, dimensions, k, ties):
    rng = np.random.default_rng(1)
    queries, candidates = (rng.normal(size=(n, dimensions)) * 3 + 116.4 for n in (90, 900))
    if ties:
        queries, candidates = queries.round(), candidates.round()
    expect(nearest(gpu.PointTable(queries, candidates), k, devices), euclidean(queries, candidates), k)


@pytest.mark.parametrize("normalised", [False, True])
def test_texts_are_ranked_as_by_plain_distances(devices, normalised):
    rng = np.random.default_rng(2)

    def words(n, longest):
        return ["".join(rng.choice(list("abcé😀"), rng.integers(longest))) for _ in range(n)]

    queries, candidates = [*words(12, 8), "x" * 33, "", "ab" * 32, "ca" * 50], ["", *words(250, 9), "ab" * 40]
    found = nearest(gpu.TextTable(queries, candidates, normalised=normalised), 7, devices)
    expect(found, edit_distances(queries, candidates, normalised), 7)


def test_a_table_larger_than_the_card_is_searched_in_parts(devices, monkeypatch):
    monkeypatch.setattr(gpu, "candidates_fitting", lambda device, size: 256)
    rng = np.random.default_rng(3)
    queries, candidates = filters("random", 10, 2, rng), filters("nearing", 1000, 2, rng)
    found = nearest(gpu.FilterTable(queries, candidates, by_ones=False), 12, devices)
    expect(found, filter_distances(queries, candidates, dice=False), 12)


def test_lists_that_overflow_are_filled_in_smaller_ranges(devices, monkeypatch):
    """A table in descending order of distance, visited in its own order, fills every list at once."""
    monkeypatch.setattr(torch, "randperm", lambda n, **options: torch.arange(n, device=options["device"]))
    queries, candidates = np.zeros((3, 1)), np.arange(1500, 0, -1.0)[:, None]
    refused = []
    plain = gpu.Lists.add_range
    monkeypatch.setattr(gpu.Lists, "add_range", lambda *given: refused.append(not plain(*given)) or not refused[-1])
    expect(nearest(gpu.PointTable(queries, candidates), 10, devices), euclidean(queries, candidates), 10)
    assert any(refused)


def test_several_cards_share_the_tiles(devices, monkeypatch):
    monkeypatch.setattr(gpu, "PAIRS_PER_TILE", 300)
    rng = np.random.default_rng(4)
    queries, candidates = rng.normal(size=(600, 2)), rng.normal(size=(150, 2))
    expect(nearest(gpu.PointTable(queries, candidates), 5, [*devices, *devices]), euclidean(queries, candidates), 5)


@pytest.mark.skipif(not CARDS, reason="there is no CUDA device")
@pytest.mark.parametrize(("slabs", "k"), [(1, 1000), (3, 10), (9, 10), (21, 10)])
def test_any_width_and_any_k_run_on_the_card(slabs, k):
    rng = np.random.default_rng(5)
    queries, candidates = filters("random", 300, 16 * slabs, rng), filters("random", 3000, 16 * slabs, rng)
    found = nearest(gpu.FilterTable(queries, candidates, by_ones=True), k, CARDS)
    expect(found, filter_distances(queries, candidates, dice=True), k)


@pytest.mark.skipif(not CARDS, reason="there is no CUDA device")
@pytest.mark.parametrize("dice", [False, True])
def test_popcounts_replace_the_tensor_cores_of_hopper(monkeypatch, dice):
    monkeypatch.setattr(gpu, "HOPPER", 0)
    rng = np.random.default_rng(6)
    queries, candidates = filters("random", 200, 20, rng), filters("random", 2000, 20, rng)
    found = nearest(gpu.FilterTable(queries, candidates, by_ones=dice), 20, CARDS)
    expect(found, filter_distances(queries, candidates, dice=dice), 20)


def test_a_card_that_runs_out_of_memory_is_reported(devices, monkeypatch):
    def fail(*given):
        raise torch.OutOfMemoryError

    table = gpu.PointTable(np.eye(3), np.eye(3))
    monkeypatch.setattr(table, "load_queries", fail)
    with pytest.raises(DeviceError) as caught:
        gpu.DeviceSearch(table, devices).best(np.arange(3), 1)
    assert caught.value.code == "gpu-memory"


@pytest.mark.skipif(bool(CARDS), reason="there is a CUDA device")
def test_a_search_without_a_card_says_so():
    with pytest.raises(DeviceError) as caught:
        gpu.DeviceSearch(gpu.PointTable(np.eye(3), np.eye(3)))
    assert caught.value.code == "no-cuda-device"


BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "llvmlite", "polars", "narwhals", "pyarrow", "pydantic"}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import numpy as np
import pytest
from fedsim.linkage import link
from fedsim_ops import gpu_search as gpu
from gpu_emulator import emulate_card

if not gpu.devices():
    emulate_card(pytest.MonkeyPatch())
with np.load(sys.argv[1]) as tables:
    found = {}
    for metric in tables.files:
        table = tables[metric].tolist() if tables[metric].dtype.kind == "U" else tables[metric]
        found[metric] = link(table, table[:20], metric=metric, k=4, device="cuda").partner
np.savez(sys.argv[2], **found)
"""


def test_linkage_on_a_card_needs_torch_and_numpy_alone(tmp_path):
    rng = np.random.default_rng(0)
    tables = {
        "euclidean": rng.random((30, 2)),
        "hamming": rng.integers(0, 256, (30, 16), dtype=np.uint8),
        "dice": rng.integers(0, 256, (30, 16), dtype=np.uint8),
        "levenshtein": np.array(["".join(rng.choice([*"abc"], 5)) for _ in range(30)]),
    }
    np.savez(tmp_path / "tables.npz", **tables)
    words = [sys.executable, "-c", BARE, tmp_path / "tables.npz", tmp_path / "found.npz"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    distances = {
        "euclidean": euclidean,
        "hamming": partial(filter_distances, dice=False),
        "dice": partial(filter_distances, dice=True),
        "levenshtein": partial(edit_distances, normalised=False),
    }
    found = np.load(tmp_path / "found.npz")
    for metric, table in tables.items():
        order = np.argsort(distances[metric](table, table[:20]), axis=1, kind="stable")
        np.testing.assert_array_equal(found[metric], order[:, :4])
