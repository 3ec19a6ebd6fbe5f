"""Real titles and places link exactly as the oracle says."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import reference_distances
from fedsim.linkage import fit_scale, topk
from fedsim.privacy.bounds import sigma_for_bound
from fedsim_audit.attacks.similarity_attacks import expected_success_rate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DATA = Path(os.environ.get("FEDSIM_DATA", Path(__file__).parents[3] / "shared" / "data"))

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here; set FEDSIM_DATA to its folder")


def test_real_titles_link_as_the_oracle_says() -> None:
    queries = pl.read_csv(DATA / "game/steam.csv.gz", columns=["name"])["name"].gather_every(9000).to_list()
    candidates = pl.read_csv(DATA / "game/vgsales.csv.gz", columns=["Name"])["Name"].gather_every(9).to_list()
    for metric, oracle in (
        ("levenshtein", reference_distances.levenshtein),
        ("levenshtein-normalised", reference_distances.normalised_levenshtein),
    ):
        partner, distance = topk(queries, candidates, metric=metric, k=20)
        expected = reference_distances.nearest(queries, candidates, oracle, 20)
        np.testing.assert_array_equal(partner, expected[0])
        np.testing.assert_array_equal(distance, expected[1])


@pytest.mark.parametrize("k", [50, 165])
def test_real_flats_link_to_schools_as_the_oracle_says(k: int) -> None:
    flats = pl.read_csv(DATA / "hdb/flats.csv.gz").select("lat", "lon").gather_every(900)
    schools = pl.read_csv(DATA / "hdb/schools.csv").select("lat", "lon")
    partner, distance = topk(flats, schools, metric="euclidean", k=k)
    expected = reference_distances.nearest(flats.rows(), schools.rows(), reference_distances.euclidean, k)
    np.testing.assert_array_equal(partner, expected[0])
    np.testing.assert_array_equal(distance, expected[1])


def test_real_listings_link_by_great_circle_as_every_pair_says() -> None:
    homes = pl.read_csv(DATA / "house/lianjia_sample.csv.gz").select("Lat", "Lng").gather_every(40).to_numpy()
    listings = pl.read_csv(DATA / "house/airbnb_beijing.csv.gz").select("lat", "lon").to_numpy()
    tree = topk(homes, listings, metric="great-circle", k=50)
    every_pair = topk(homes, listings, metric="great-circle", k=50, backend="blocks")
    np.testing.assert_array_equal(tree[0], every_pair[0])
    np.testing.assert_array_equal(tree[1], every_pair[1])


@pytest.mark.parametrize("name", ["hdb", "house"])
@pytest.mark.parametrize("tau", [1e-2, 1e-3, 1e-4])
def test_the_greedy_attack_stays_under_tau_on_real_places(
    name: str, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("privacy_links")
    monkeypatch.setattr(benchmark, "DATA", DATA)
    links = benchmark.linked(benchmark.read_case(name, 1_000))
    scale = fit_scale(links.distance)
    assert expected_success_rate(links.distance, scale, sigma_for_bound(tau, scale.deviation)) <= tau * (1.0 + 1e-6)
