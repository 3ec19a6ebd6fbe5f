"""Engines: tiles of queries in chunks of the candidates give the same links, bit for bit, after any failure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.errors import FedSimError, FileError, InputError, SettingError
from fedsim.linkage import engines, link, load_links, topk
from fedsim.linkage.engines import CandidateChunk, LocalEngine, QueryTile, TileBest, load_engine, search_by_tiles
from fedsim.linkage.metrics import get_metric
from fedsim.linkage.soft_linkage import BackendOptions, fit_scale, fit_scale_in_parts, prepare_tables
from fedsim.types import EncodedTable
from fedsim_ops.partitioned_linkage import link_in_parts

RNG = np.random.default_rng(5)
PLACES = [np.round(RNG.uniform((50, 4), (51, 6), (n, 2)), 1) for n in (150, 120)]  # a grid, with many ties
FILTERS = [EncodedTable(RNG.integers(0, 256, (n, 2), np.uint8), 16, "f") for n in (150, 120)]
NAMES = [["".join(RNG.choice([*"ab "], 6)) + "x" for _ in range(n)] for n in (150, 120)]
TABLES = {
    "great-circle": PLACES,
    "euclidean": PLACES,
    "hamming": FILTERS,
    "dice": FILTERS,
    "levenshtein": NAMES,
    "qgram-dice": NAMES,
}
COLUMNS = ("partner", "distance", "similarity", "next_distance")


class ByTiles(LocalEngine):
    """An engine that searches small tiles, the last one first, and notes them."""

    def __init__(self, fails_after: int = sys.maxsize) -> None:
        self.searched, self.fails_after = list[int](), fails_after

    def search(self, *terms: Any) -> Any:
        return search_by_tiles(self, *terms)

    def search_tiles(self, chunk: CandidateChunk, tiles: Iterable[QueryTile]) -> Iterator[tuple[int, TileBest, str]]:
        for found in [*super().search_tiles(chunk, tiles)][::-1]:
            if len(self.searched) == self.fails_after:
                raise InputError("out of luck", code="stopped")
            self.searched.append(found[0])
            yield found


class Parts:
    """A table in memory, read in parts."""

    def __init__(self, table: Any, name: str) -> None:
        self.table, self.name, self.digest = table, name, f"{name} 1"

    def __len__(self) -> int:
        return len(self.table)

    def chunks(self, size: int) -> Iterator[Any]:
        encoded = isinstance(self.table, EncodedTable)
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            yield EncodedTable(self.table.bits[rows], 16, "f") if encoded else self.table[rows]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 40 queries; chunks of 32 places, or of a few texts or filters."""
    monkeypatch.setattr(engines, "RECORDS_PER_TASK", 40)
    monkeypatch.setattr(engines, "CHUNK_BYTES", 512)


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


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("metric", TABLES)
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_links_in_parts_are_those_in_memory(tmp_path: Path, metric: str, sigma: float) -> None:
    tables = [Parts(table, name) for table, name in zip(TABLES[metric], ("primary", "secondary"), strict=True)]
    whole = link(*TABLES[metric], metric=metric, k=7, sigma=sigma, seed=3)
    settings: dict[str, Any] = {"metric": get_metric(metric), "k": 7, "sigma": sigma, "records_per_file": 40}
    found = link_in_parts(*tables, tmp_path / "links", engine=LocalEngine(), rng=np.random.default_rng(3), **settings)
    loaded = load_links(tmp_path / "links")
    for column in COLUMNS:
        assert getattr(whole, column).tobytes() == getattr(loaded, column).tobytes()
    assert (loaded.scale, loaded.saturated, loaded.n_candidates) == (whole.scale, whole.saturated, whole.n_candidates)
    assert found.hubness.tolist() == np.bincount(whole.partner.ravel(), minlength=120).tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["links"]


@pytest.mark.usefixtures("small_chunks")
def test_a_failed_run_continues_where_it_was(tmp_path: Path) -> None:
    tables = Parts(PLACES[0], "primary"), Parts(PLACES[1], "secondary")
    settings: dict[str, Any] = {"metric": get_metric("great-circle"), "k": 3, "records_per_file": 40}
    first, second = ByTiles(fails_after=6), ByTiles()
    with pytest.raises(FedSimError) as stopped:
        link_in_parts(*tables, tmp_path / "links", engine=first, **settings)
    assert stopped.value.code == "stopped"
    assert not (tmp_path / "links").exists()
    link_in_parts(*tables, tmp_path / "links", engine=second, **settings)
    assert len(second.searched) == 16 - len(first.searched)  # four tiles, four chunks
    whole = link(*PLACES, metric="great-circle", k=3)
    assert load_links(tmp_path / "links").similarity.tobytes() == whole.similarity.tobytes()


@pytest.mark.usefixtures("small_chunks")
def test_a_run_on_a_changed_table_starts_again_and_damage_is_searched_again(tmp_path: Path) -> None:
    tables = Parts(PLACES[0], "primary"), Parts(PLACES[1], "secondary")
    settings: dict[str, Any] = {"metric": get_metric("great-circle"), "k": 3, "records_per_file": 40}
    with pytest.raises(FedSimError):
        link_in_parts(*tables, tmp_path / "links", engine=ByTiles(fails_after=2), **settings)
    block = next((tmp_path / ".links.part").rglob("*.safetensors"))
    block.write_bytes(block.read_bytes()[:-1] + b"?")
    with pytest.raises(FedSimError):
        link_in_parts(*tables, tmp_path / "links", engine=(second := ByTiles(fails_after=4)), **settings)
    assert len(second.searched) == 4  # one is new, one was damaged: three of the first chunk were missing
    tables[0].digest = "another"
    link_in_parts(*tables, tmp_path / "links", engine=(third := ByTiles()), **settings)
    assert len(third.searched) == 16


def test_a_folder_that_exists_is_not_replaced(tmp_path: Path) -> None:
    tables = Parts(PLACES[0], "primary"), Parts(PLACES[1], "secondary")
    with pytest.raises(FileError) as refused:
        link_in_parts(*tables, tmp_path, metric=get_metric("euclidean"), k=1, engine=LocalEngine())
    assert refused.value.code == "already-exists"


def test_a_folder_without_one_of_its_parts_is_refused(tmp_path: Path) -> None:
    tables = Parts(PLACES[0], "primary"), Parts(PLACES[1], "secondary")
    settings: dict[str, Any] = {"metric": get_metric("euclidean"), "k": 1, "records_per_file": 50}
    link_in_parts(*tables, tmp_path / "links", engine=LocalEngine(), **settings)
    (tmp_path / "links" / "part-00001.parquet").unlink()
    with pytest.raises(FileError) as refused:
        load_links(tmp_path / "links")
    assert refused.value.code == "damaged-file"


@pytest.mark.parametrize("n", [1, 9, 1000, 300_000, 1_000_003])
def test_the_scale_of_parts_is_that_of_the_whole(n: int) -> None:
    distance = np.random.default_rng(n).exponential(size=(n, 3))
    parts = np.array_split(distance, max(1, n // 7000))
    assert fit_scale_in_parts(lambda: parts, distance.size) == (fit_scale(distance), False)
    assert fit_scale_in_parts(lambda: [np.full((n, 2), 0.1)], 2 * n) == (fit_scale(np.full((n, 2), 0.1)), True)


def test_an_index_is_used_again_for_other_queries() -> None:
    metric = get_metric("great-circle")
    queries, candidates = prepare_tables(metric, *TABLES["great-circle"])
    chunk = CandidateChunk(metric, candidates, 0, 3, BackendOptions(backend="tree"))
    tiles = [QueryTile(0, queries[:70]), QueryTile(1, queries[70:])]
    found = [best.partner for _, best, _ in LocalEngine().search_tiles(chunk, tiles)]
    assert np.concatenate(found).tolist() == topk(*TABLES["great-circle"], metric=metric, k=3)[0].tolist()


def test_unknown_engines_and_addresses_are_refused() -> None:
    with pytest.raises(SettingError) as unknown:
        load_engine("spark")
    assert unknown.value.code == "unknown-engine"
    with pytest.raises(SettingError) as address:
        load_engine("local:6379")
    assert address.value.code == "bad-engine-address"


def test_ray_names_its_extra_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("os.environ", {})
    with pytest.raises(SettingError) as missing:
        load_engine("ray")
    assert (missing.value.code, missing.value.package) == ("missing-package", "ray")
