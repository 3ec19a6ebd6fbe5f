"""Soft linkage: scaling, noise, and links that survive a file."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fedsim
from fedsim.errors import FileError, InputError, SettingError
from fedsim.linkage import fit_scale, load_links, save_links, similarities
from fedsim.linkage.soft_linkage import load_engine
from fedsim.types import LinkageResult, Scale


def tables() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(30, 2)), rng.normal(size=(50, 2))


def some_links(sigma: float = 0.0, k: int = 4) -> LinkageResult:
    return fedsim.link(*tables(), metric="euclidean", k=k, sigma=sigma, seed=7)


def test_similarities_of_training_links_have_mean_zero_and_deviation_one() -> None:
    links = some_links()
    assert abs(links.similarity.mean()) < 1e-12
    assert abs(links.similarity.std() - 1) < 1e-12


def test_nearer_partners_are_more_similar() -> None:
    assert (np.diff(some_links().similarity, axis=1) <= 0).all()


def test_later_records_reuse_the_scale_of_the_training_links() -> None:
    scale = Scale(mean=-2.0, deviation=0.5)
    links = fedsim.link(np.zeros((1, 1)), np.array([[1.0], [3.0]]), metric="euclidean", k=2, scale=scale)
    assert links.similarity.tolist() == [[2.0, -2.0]]
    assert links.scale == scale


def test_noise_has_the_scale_asked_for_and_repeats_with_its_seed() -> None:
    distance = np.zeros((400, 50))
    draw = [similarities(distance, Scale(0.0, 1.0), sigma=0.4, noise=np.random.default_rng(3)) for _ in range(2)]
    assert abs(draw[0].std() - 0.4) < 0.01
    np.testing.assert_array_equal(draw[0], draw[1])
    np.testing.assert_array_equal(draw[0], np.random.default_rng(3).normal(0.0, 0.4, distance.shape))


def test_noise_may_be_given_as_standard_normal_values() -> None:
    noise = np.array([[1.0, -2.0]])
    assert similarities(np.zeros((1, 2)), Scale(0.0, 1.0), sigma=0.5, noise=noise).tolist() == [[0.5, -1.0]]


def test_noise_leaves_partners_and_distances_alone() -> None:
    plain, noisy = some_links(), some_links(sigma=2.0)
    np.testing.assert_array_equal(plain.partner, noisy.partner)
    np.testing.assert_array_equal(plain.distance, noisy.distance)
    assert not np.array_equal(plain.similarity, noisy.similarity)


def test_noise_without_a_seed_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        fedsim.link(np.eye(3), np.eye(3), metric="euclidean", k=1, sigma=0.1)
    assert caught.value.code == "no-seed"


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_an_impossible_noise_scale_is_refused(sigma: float) -> None:
    with pytest.raises(SettingError) as caught:
        fedsim.link(np.eye(3), np.eye(3), metric="euclidean", k=1, sigma=sigma, seed=1)
    assert caught.value.code in ("out-of-range", "invalid-type")


@pytest.mark.parametrize("value", [5.0, 0.1])
def test_equal_distances_have_a_scale_all_the_same(value: float) -> None:
    assert fit_scale(np.full((7, 3), value)) == Scale(-value, 1.0)


@pytest.mark.parametrize("scale", [Scale(0.0, 0.0), Scale(float("nan"), 1.0)])
def test_a_scale_that_cannot_scale_is_refused(scale: Scale) -> None:
    with pytest.raises(SettingError) as caught:
        fedsim.link(np.eye(3), np.eye(3), metric="euclidean", k=1, scale=scale)
    assert caught.value.code == "bad-scale"


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    save_links(some_links(k=20), tmp_path / "links.parquet")
    whole = bytearray((tmp_path / "links.parquet").read_bytes())
    rng = np.random.default_rng(0)
    for place in rng.integers(4, len(whole) - 8, 60):
        changed = whole.copy()
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "changed.parquet").write_bytes(changed)
        try:
            again = load_links(tmp_path / "changed.parquet")
        except FileError:
            continue
        np.testing.assert_array_equal(again.partner, some_links(k=20).partner)


@pytest.mark.parametrize("k", [1, 4, 50])
def test_links_come_back_from_a_file_bit_for_bit(tmp_path: Path, k: int) -> None:
    links = some_links(sigma=0.3, k=k)
    save_links(links, tmp_path / "links.parquet")
    again = load_links(tmp_path / "links.parquet")
    for name in ("partner", "distance", "similarity", "next_distance"):
        ours, theirs = getattr(links, name), getattr(again, name)
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()
    assert (again.scale, again.sigma, again.metric) == (links.scale, links.sigma, links.metric)
    assert (again.n_candidates, again.plan, again.saturated) == (50, links.plan, links.saturated)


def test_a_file_lists_pairs_with_the_keys_of_both_tables(tmp_path: Path) -> None:
    links, ours, theirs = some_links(), [f"p{row}" for row in range(len(some_links()))], list(range(100, 150))
    save_links(links, tmp_path / "links.parquet", ours, theirs)
    table = pl.read_parquet(tmp_path / "links.parquet")
    assert len(table) == links.partner.size
    row = table.filter(record=2, rank=3).row(0, named=True)
    partner = int(links.partner[2, 2])
    assert (row["record_id"], row["partner"], row["partner_id"]) == ("p2", partner, 100 + partner)
    assert (row["distance"], row["next_distance"]) == (links.distance[2, 2], links.next_distance[2])
    assert links.to_pandas(ours)["record_id"].tolist() == table["record_id"].to_list()
    with pytest.raises(InputError) as caught:
        save_links(links, tmp_path / "links.parquet", ours[1:])
    assert caught.value.code == "id-count"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "links.parquet"
    save_links(some_links(), target)
    before = target.read_bytes()

    def write_half(frame: pl.DataFrame, path: Path, **_: object) -> None:
        path.write_bytes(before[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", write_half)
    with pytest.raises(FileError):
        save_links(some_links(), target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["links.parquet"]


def test_files_that_hold_no_links_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "foreign.parquet")
    save_links(some_links(), tmp_path / "whole.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "whole.parquet").read_bytes()[:-200])
    for path in (tmp_path / "foreign.parquet", cut, tmp_path / "absent.parquet"):
        with pytest.raises(FileError):
            load_links(path)


def test_the_distance_beyond_the_boundary_is_kept() -> None:
    links = fedsim.link(np.zeros((1, 1)), np.array([[1.0], [2.0], [5.0]]), metric="euclidean", k=2)
    assert links.next_distance.tolist() == [5.0]
    assert fedsim.link(np.zeros((1, 1)), np.ones((2, 1)), metric="euclidean", k=2).next_distance.tolist() == [np.inf]


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
