"""Links in parts are those in memory, bit for bit, after any failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.errors import FedSimError, FileError
from fedsim.linkage import link, load_links
from fedsim.linkage.metrics import get_metric
from fedsim.linkage.soft_linkage import fit_scale
from fedsim.types import EncodedTable
from fedsim_ops.partitioned_linkage import fit_scale_in_parts, link_in_parts
from fedsim_ops.search_tiles import LocalEngine
from tile_fixtures import COLUMNS, PLACES, TABLES, ByTiles


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
