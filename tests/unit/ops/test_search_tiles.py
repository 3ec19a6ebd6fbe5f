"""Tiles of queries in chunks of the candidates give the same links, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.linkage import link, topk
from fedsim.linkage.metrics import get_metric
from fedsim.linkage.soft_linkage import BackendOptions, prepare_tables
from fedsim_ops.search_tiles import CandidateChunk, QueryTile
from tile_fixtures import COLUMNS, PLACES, TABLES, ByTiles, LocalEngine


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("metric", TABLES)
@pytest.mark.parametrize("k", [1, 7, 119, 120])
def test_tiles_and_chunks_find_the_same_partners(metric: str, k: int) -> None:
    whole = link(*TABLES[metric], metric=metric, k=k)
    tiled = link(*TABLES[metric], metric=metric, k=k, engine=ByTiles())
    for column in COLUMNS:
        assert getattr(whole, column).tobytes() == getattr(tiled, column).tobytes()


@pytest.mark.usefixtures("small_chunks")
def test_progress_of_tiles_ends_with_all_records() -> None:
    seen: list[tuple[int, int]] = []
    topk(*PLACES, metric="euclidean", k=2, engine=ByTiles(), progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_an_index_is_used_again_for_other_queries() -> None:
    metric = get_metric("great-circle")
    queries, candidates = prepare_tables(metric, *TABLES["great-circle"])
    chunk = CandidateChunk(metric, candidates, 0, 3, BackendOptions(backend="tree"))
    tiles = [QueryTile(0, queries[:70]), QueryTile(1, queries[70:])]
    found = [best.partner for _, best, _ in LocalEngine().search_tiles(chunk, tiles)]
    assert np.concatenate(found).tolist() == topk(*TABLES["great-circle"], metric=metric, k=3)[0].tolist()
