"""Datasets load by name, agree with the paper's sizes, and say what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError, InputError, SettingError
from fedsim.linkage.metrics import get_metric
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.datasets.dataset import Dataset, DatasetTask, PartyTable
from fedsim_lab.datasets.dataset_registry import SOURCES, find_datasets, load_dataset, load_single_table
from fedsim_lab.datasets.single_table import generate_sklearn
from fedsim_lab.paper_sizes import PAPER_DATA
from fedsim_lab.study_config import STUDY_RUNGS
from fedsim_lab.study_runner import load_sample

ROOT = Path(__file__).parents[4]
DATA = Path(os.environ.get("FEDSIM_DATA", ROOT.parent / "shared" / "data"))
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not here; set FEDSIM_DATA to its folder")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture(scope="module")
def town() -> Dataset:
    return load_dataset("city")


@real
@pytest.mark.parametrize(
    ("name", "records", "columns"),
    [("hdb", (92_240, 165), (68, 8)), ("house", (25_168, 27_827), (52, 23)), ("game", (26_986, 10_280), (37, 77))],
)
def test_real_files_load_with_the_columns_of_the_paper(name: str, records: tuple, columns: tuple) -> None:
    dataset = load_dataset(name, DATA)
    theirs = dataset.secondaries[0].table
    assert (len(dataset.primary), len(theirs)) == records
    assert (len(dataset.primary.features), len(theirs.features)) == columns
    assert not any(table.frame.null_count().sum_horizontal()[0] for table in (dataset.primary, theirs))


@real
def test_frog_is_cut_as_the_authors_cut_it() -> None:
    frogs = load_dataset("frog", DATA)
    assert len(frogs.primary) == 7_195
    assert len(np.unique(frogs.labels)) == 10
    columns = np.arange(1, 23)[:, np.newaxis]
    np.random.RandomState(0).shuffle(columns)  # their way, on rows of numbers
    order = tuple(f"MFCCs_{number:2}" for number in columns.ravel())
    assert frogs.secondaries[0].link.primary == order[:16]
    assert frogs.primary.features == order[16:19]


@pytest.mark.parametrize("name", sorted(PAPER_DATA))
def test_what_is_known_about_a_dataset_agrees_with_the_papers_sizes(name: str) -> None:
    about, sizes = SOURCES[name].about, PAPER_DATA[name]
    assert about.records == sizes.records
    assert (about.task == DatasetTask.REGRESSION) == (sizes.classes == 1)


@pytest.mark.parametrize("name", ["city", "firms"])
def test_generated_datasets_need_no_folder(name: str) -> None:
    dataset = load_dataset(name)
    assert dataset.truth is not None
    assert dataset.about.records == (len(dataset.primary), *(len(party.table) for party in dataset.secondaries))
    assert all(get_metric(party.link.metric) for party in dataset.secondaries)


def test_a_folder_without_files_has_the_generated_datasets_alone(tmp_path: Path) -> None:
    state = {here.about.name: here for here in find_datasets(tmp_path)}
    assert [name for name, here in state.items() if here.complete] == ["city", "firms", "sklearn", "sklearn-random"]
    assert [file.name for file in state["taxi"].missing] == ["bikes", "taxis"]


def test_a_dataset_is_complete_without_the_files_the_paper_did_not_have(tmp_path: Path) -> None:
    (tmp_path / "hdb").mkdir()
    for name in ("flats.csv", "schools.csv"):
        (tmp_path / "hdb" / name).write_text("lat,lon\n")
    here = next(here for here in find_datasets(tmp_path) if here.about.name == "hdb")
    assert here.complete
    assert [file.name for file in here.missing] == ["rentals", "stations"]


def test_a_missing_file_is_named_with_its_source(tmp_path: Path) -> None:
    with raises(FileError, "dataset-file-missing"):
        load_dataset("hdb", tmp_path)


def test_what_cannot_be_loaded_is_refused_with_a_way_out() -> None:
    with raises(SettingError, "unknown-dataset", nearest="house"):
        load_dataset("hosue")
    with raises(SettingError, "noise-not-allowed"):
        load_dataset("firms", noise=1.0)
    with raises(SettingError, "not-a-single-table"):
        load_single_table("city")
    with raises(SettingError, "out-of-range", name="noise"):
        generate_sklearn(20).cut(np.random.default_rng(0), noise=-1.0)


def test_a_label_among_the_features_is_refused(town: Dataset) -> None:
    table = PartyTable(town.primary.frame, (*town.primary.features, town.label))
    with raises(InputError, "label-is-feature", column="price"):
        Dataset(town.about, table, town.label, town.secondaries)


def test_secondaries_are_found_by_name(town: Dataset) -> None:
    assert town.secondary("schools").link.k == 3
    with raises(InputError, "no-secondary", name="pubs"):
        town.secondary("pubs")


def test_a_report_shows_no_record(town: Dataset) -> None:
    assert repr(town) == "Dataset(city: 4000 records, secondaries rentals 16000, schools 4000)"
    assert str(town.primary) == "PartyTable(4000 records, 3 features)"


def test_combine_joins_the_true_row_however_far_the_noise_moves_it(rng: np.random.Generator) -> None:
    arrays = DatasetCases(generate_sklearn(400).paper_cut(rng, noise=3.0), LinkageOverrides(k=2)).one("random", 0)
    (other,) = arrays.secondaries
    nearest = other.partner[other.list_of, 0]
    assert (nearest != np.arange(400)).mean() > 0.5
    joined = STUDY_RUNGS["combine"].primary_data(arrays).features.numbers
    np.testing.assert_array_equal(joined, np.hstack([arrays.primary.numbers, other.features.numbers]))


def test_a_sample_keeps_the_true_rows_of_its_records() -> None:
    whole, some = load_sample("sklearn", None, 0), load_sample("sklearn", None, 50)
    (other,) = some.secondaries
    rows = [whole.primary.frame.row(row) for row in other.match]
    assert rows == some.primary.frame.rows()


def test_combine_does_not_exist_where_the_true_rows_are_not_known(town: Dataset) -> None:
    with raises(SettingError, code="no-true-rows"):
        STUDY_RUNGS["combine"].primary_data(DatasetCases(town).one("random", 0))
