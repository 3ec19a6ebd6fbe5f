"""Whatever `fedsim init --yes` writes trains, on any reasonable pair of tables."""

from __future__ import annotations

import json
import os
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.config import read_job, read_party_file
from fedsim.training import boosted_trees
from fedsim_lab.datasets.generated import random_firm_name, vary_spelling
from init_fixtures import fedsim
from job_fixtures import approve_party, change

PAIRS, PER_TEST = 50, 5


def identifiers(kind, n, rng):
    """Draw one identifier of ``n`` things: its columns."""
    if kind == "place":
        spread = 10.0 ** rng.uniform(-3, 1)  # from a street to a country
        return {"lat": 45 + spread * rng.normal(size=n), "lon": 9 + spread * rng.normal(size=n)}
    if kind == "name":
        return {"name": [random_firm_name(rng) for _ in range(n)]}
    if kind == "born":
        return {"born": [date(1950, 1, 1) + timedelta(days=int(day)) for day in rng.integers(0, 20_000, n)]}
    if kind == "size":
        return {"size": rng.lognormal(3, 2, n).round(2)}
    return {"town": [f"Town{int(number)}" for number in rng.integers(0, 9, n)]}  # few different values


def tables(seed):
    """Draw two tables of the same kind of thing: dense or sparse, tiny or not, with odd columns."""
    rng = np.random.default_rng(seed)
    kinds = list(rng.permutation(["place", "name", "born", "size", "town"])[: rng.choice([1, 1, 2, 3, 5])])
    if kinds in (["town"], ["size"]):
        kinds = ["name"]
    ours, theirs = int(rng.choice([12, 60, 300])), int(rng.choice([8, 50, 400]))
    found = {name: cells for kind in kinds for name, cells in identifiers(kind, max(ours, theirs), rng).items()}
    primary = pl.DataFrame(found).head(ours)
    secondary = pl.DataFrame(found).head(theirs).sample(fraction=1.0, shuffle=True, seed=seed)
    if "name" in found:
        secondary = secondary.with_columns(name=pl.Series([vary_spelling(name, rng) for name in secondary["name"]]))
    label = rng.normal(size=ours) if rng.random() < 0.6 else rng.permutation(np.resize(["yes", "no", "maybe"], ours))
    primary = primary.with_columns(area=pl.Series(rng.normal(size=ours)), constant=pl.lit(1), target=pl.Series(label))
    group = pl.Series([None if cell == "-" else cell for cell in rng.choice(list("ab-"), theirs)], dtype=pl.String)
    secondary = secondary.with_columns(
        group=group, empty=pl.lit(None, pl.String), worth=pl.Series(rng.normal(size=theirs))
    )
    return primary, secondary, list(found)


@pytest.mark.parametrize("first", range(0, PAIRS, PER_TEST))
def test_the_files_of_init_train_on_generated_tables(first, tmp_path, monkeypatch):
    for seed in range(first, first + PER_TEST):
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.chdir(folder)
        primary, secondary, on = tables(seed)
        primary.write_csv("ours.csv")
        secondary.write_parquet("theirs.parquet")
        words = ["--primary", "ours.csv", "--secondary", "theirs.parquet", "--label", "target", "--on", ",".join(on)]
        fedsim("init", *words, "--yes", "--epochs", "1", "--quiet")
        metrics = train("ours", "theirs")
        assert np.isfinite(metrics["test"]["rmse" if "rmse" in metrics["test"] else "accuracy"])


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    monkeypatch.setattr(boosted_trees, "ROUNDS", 20)


def train(primary, secondary):
    """Approve and train the job in this folder, with one member; return its metrics."""
    change(Path("job.toml"), "# members = 8", "members = 1")
    files = [f"{name}.toml" for name in (primary, secondary)]
    for file in files:
        approve_party(read_job(Path("job.toml")), read_party_file(Path(file)))
    return json.loads(fedsim("train", "job.toml", *files, "--quiet", "--json"))["metrics"]


REAL = {
    "hdb": ("hdb/flats.csv.gz", "hdb/schools.csv", "resale_price"),
    "house": ("house/lianjia_sample.csv.gz", "house/airbnb_beijing.csv.gz", "totalPrice"),
    "vgsales": ("game/vgsales.csv.gz", "game/metacritic.csv.gz", "Global_Sales"),
    "films": ("films/imdb.csv.gz", "films/tmdb.csv.gz", "numvotes"),
    "trips": ("taxi/bike_trips.csv.gz", "taxi/taxi_trips.csv.gz", "duration"),
}


@pytest.mark.parametrize("name", REAL)
def test_the_files_of_init_train_on_real_tables(name, tmp_path, monkeypatch):
    primary, secondary, label = REAL[name]
    data = Path(os.environ.get("FEDSIM_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (data / primary).is_file():
        pytest.skip("no real data on this machine")
    monkeypatch.chdir(tmp_path)
    pl.read_csv(data / primary, infer_schema=False).head(1_000).write_csv("ours.csv")
    pl.read_csv(data / secondary, infer_schema=False).head(1_000).write_csv("theirs.csv")
    fedsim("init", "--primary", "ours.csv", "--secondary", "theirs.csv", "--label", label, "--yes", "--epochs", "1")
    assert np.isfinite(train("ours", "theirs")["test"]["rmse"])
