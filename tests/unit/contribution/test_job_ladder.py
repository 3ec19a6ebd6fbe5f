"""The rungs without identifiers have none, whatever the job learns from; what a comparison keeps is its owner's."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import with_embedding, with_settings
from fedsim.contribution.rungs import STACKED, ResultStore, train_missing
from fedsim.data.splits import group_equal_records
from fedsim.data.table_reader import read_table
from fedsim.hyperparameters import TrainingSettings
from fedsim.runs.record import read_test_predictions
from fedsim.runs.run_folder import run_path
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all

PLACES = {"city": {"[label]": '[features]\ncolumns = ["area", "lat", "storey", "age", "lon"]\n\n[label]'}}
ONLY_PLACES = {"city": {"[label]": '[features]\ncolumns = ["lat", "lon"]\n\n[label]'}}
NUMBERS = """{ column = "lat", encoding = { kind = "numeric", low = 0.9, high = 1.8, threshold = 0.05 } },
  { column = "lon", encoding = { kind = "numeric", low = 103.3, high = 104.4, threshold = 0.05 } },"""
NAMES = {
    "job": {NUMBERS: '{ column = "name", encoding = { kind = "string" } },', '"random"': '"group"'},
    "rentals": {'"lat", "lon"': '"name"'},
}


EMBEDDING = {"[network]": '[protection]\nembedding = "random"\n\n[network]', '"fedsim"': '"stacked"'}


def cases(folder, changes):
    lay_out(folder, changes)
    job, files = read_all(folder)
    (found,) = JobCases.read(job, [files["city"], files["rentals"]], folder / "compare").cases(1, ["random"])
    return found


def test_places_that_are_learnt_from_come_in_by_rungs_of_their_own(tmp_path):
    with_places, without = (tmp_path / name for name in ("with", "without"))
    with_places.mkdir()
    without.mkdir()
    found, plain = cases(with_places, PLACES), cases(without, {})
    np.testing.assert_array_equal(found.primary.numbers, plain.primary.numbers)
    np.testing.assert_array_equal(found.own.numbers, plain.own.numbers)


@pytest.mark.parametrize("kind", ["random", "group"])
def test_the_first_seed_is_judged_by_the_records_that_judge_the_job(tmp_path, kind):
    lay_out(tmp_path, {"job": {'split = "random"': f'split = "{kind}"'}})
    job, files = read_all(tmp_path)
    first, second = JobCases.read(job, [files["city"], files["rentals"]], tmp_path / "compare").cases(2, [kind])
    run_local(job, list(files.values()))
    tested = read_test_predictions(run_path(job, files["city"]))["row"].to_numpy()
    np.testing.assert_array_equal(first.split.test, tested)
    assert not np.array_equal(second.split.test, tested)
    assert first.about["hash"] == job.hash


@pytest.mark.parametrize(
    ("kind", "splits"),
    [("random", ["group", "random"]), ("group", ["random", "group"]), ("time", ["time"]), ("column", ["column"])],
)
def test_the_last_split_is_the_jobs_own_and_nothing_leaks_beside_time_and_columns(tmp_path, kind, splits):
    by = {"city": {'column = "price"': 'column = "price"\nsplit_by = "age"'}} if kind in ("time", "column") else {}
    lay_out(tmp_path, {"job": {'split = "random"': f'split = "{kind}"'}, **by})
    job, files = read_all(tmp_path)
    found = list(JobCases.read(job, [files["city"], files["rentals"]], tmp_path / "compare").cases(1))
    assert [arrays.about["split"] for arrays in found] == splits
    run_local(job, list(files.values()))
    tested = read_test_predictions(run_path(job, files["city"]))["row"].to_numpy()
    np.testing.assert_array_equal(found[-1].split.test, tested)


def test_trees_of_a_job_with_an_embedding_may_see_the_partners_by_it(tmp_path):
    found, results = cases(tmp_path, {"job": EMBEDDING}), ResultStore(tmp_path / "results")
    (linked,) = found.secondaries
    assert len(linked.embedding) == len(linked.features) == 200
    (rung,) = [one for one in with_embedding(with_settings(TrainingSettings(epochs=1))) if one.key == STACKED]
    train_missing([found], [rung], results, lambda _: None)
    assert "trees_see_partners" in results.line(rung.result_key(found))


def named_tables(folder):
    """Every firm of the primary twice, as two clerks write it; the partner has them in its own way."""
    lay_out(folder, NAMES)
    flats, rentals = (read_table(folder / f"{name}.csv").drop("lat", "lon") for name in ("flats", "rentals"))
    ours = [f"Firm {row // 2} Trading" if row % 2 else f"FIRM {row // 2}  TRADING " for row in range(len(flats))]
    flats.with_columns(name=pl.Series(ours)).write_csv(folder / "flats.csv")
    theirs = [f"firm {row} trading" for row in range(len(rentals))]
    rentals.with_columns(name=pl.Series(theirs)).write_csv(folder / "rentals.csv")
    return read_all(folder)


def test_names_that_the_filters_cannot_tell_apart_stay_on_one_side_and_match_exactly(tmp_path):
    job, files = named_tables(tmp_path)
    (found,) = JobCases.read(job, [files["city"], files["rentals"]], tmp_path / "compare").cases(1, ["group"])
    firm, (linked,) = np.arange(300) // 2, found.secondaries
    assert not set(firm[found.split.train]) & set(firm[found.split.test])
    assert len(np.unique(found.groups)) == 150
    np.testing.assert_array_equal(linked.equal, firm)


def test_the_job_itself_keeps_such_names_on_one_side(tmp_path):
    job, files = named_tables(tmp_path)
    run_local(job, list(files.values()))
    tested = read_test_predictions(run_path(job, files["city"]))["row"].to_numpy()
    twins = tested ^ 1  # rows 0 and 1 are one firm, 2 and 3 the next
    assert set(twins) == set(tested)


def test_groups_of_numbers_are_numbered_as_they_were_before_they_were_read(tmp_path):
    found = cases(tmp_path, {})
    np.testing.assert_array_equal(
        found.groups, group_equal_records(read_table(tmp_path / "flats.csv").select("lat", "lon"))
    )


def test_places_stay_where_there_is_nothing_else_to_learn_from(tmp_path):
    assert cases(tmp_path, ONLY_PLACES).primary.numbers.shape == (300, 2)
