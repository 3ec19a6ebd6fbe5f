"""Datasets of one table that are cut into parties."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from dataset_files import boone_file, frog_file
from error_fixtures import raises
from fedsim.errors import FileError, InputError
from fedsim_lab.datasets.dataset_registry import load_dataset
from fedsim_lab.datasets.single_table import generate_sklearn, generate_sklearn_random
from fedsim_lab.paper_sizes import PAPER_DATA


def test_boone_reads_events_and_their_kinds(tmp_path: Path) -> None:
    boone_file(tmp_path)
    events = load_dataset("boone", tmp_path)
    assert events.labels.tolist() == [1] * 6 + [0] * 9
    assert (len(events.primary.features), len(events.secondaries[0].link.primary)) == (10, 30)


def test_frog_reads_the_public_table(tmp_path: Path) -> None:
    frog_file(tmp_path)
    frogs = load_dataset("frog", tmp_path)
    assert set(frogs.labels) == {"a", "b"}
    assert not {"Family", "Genus", "RecordID"} & set(frogs.primary.frame.columns)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    boone_file(tmp_path, events=14)
    with pytest.raises(InputError) as caught:
        load_dataset("boone", tmp_path)
    assert (caught.value.code, caught.value.found) == ("truncated-file", 700)
    path = frog_file(tmp_path)
    packed = gzip.compress(path.read_bytes())
    (path.parent / "frogs_mfcc.csv.gz").write_bytes(packed[: len(packed) // 2])
    with raises(FileError, "damaged-file"):
        load_dataset("frog", tmp_path)


@pytest.mark.parametrize("content", ["<html>not found</html>\n", "1 two\n3\n", "2 1\n" + "x " * 150])
def test_another_file_under_the_name_is_refused(tmp_path: Path, content: str) -> None:
    boone_file(tmp_path).write_text(content)
    with raises(InputError, "damaged-file"):
        load_dataset("boone", tmp_path)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_one_table_is_cut_into_parties_that_share_identifiers_alone(rng: np.random.Generator) -> None:
    whole = generate_sklearn(200)
    for dataset in (whole.cut(rng), whole.paper_cut(rng)):
        theirs = dataset.secondaries[0].table
        assert (len(dataset.primary.features), len(theirs.features)) == PAPER_DATA["sklearn"].columns
        assert not set(dataset.primary.features) & set(theirs.features)
        keys = list(dataset.secondaries[0].link.primary)
        assert_frame_equal(dataset.primary.frame.select(keys), theirs.frame.select(keys))


def test_noise_blurs_the_secondarys_identifiers_alone(rng: np.random.Generator) -> None:
    whole = generate_sklearn(3_000)
    dataset = whole.paper_cut(rng, noise=0.4)
    keys = list(dataset.secondaries[0].link.primary)
    ours, theirs = dataset.primary.frame.select(keys), dataset.secondaries[0].table.frame.select(keys)
    assert_frame_equal(ours, whole.frame.select(keys))
    assert np.std(theirs.to_numpy() - ours.to_numpy()) == pytest.approx(0.4, rel=0.05)


def test_the_columns_of_a_cut_follow_the_seed() -> None:
    whole = generate_sklearn(50)
    first, same, other = (whole.cut(np.random.default_rng(seed)).primary.features for seed in (1, 1, 2))
    assert first == same != other


def test_random_identifiers_say_nothing(rng: np.random.Generator) -> None:
    whole = generate_sklearn_random(2_000)
    dataset = whole.cut_at_random_identifiers(rng)
    drawn = dataset.primary.frame.select(dataset.secondaries[0].link.primary).to_numpy()
    features = dataset.primary.frame.select(dataset.primary.features).to_numpy()
    assert np.abs(np.corrcoef(drawn.T, features.T)[:5, 5:]).max() < 0.1
    assert dataset.name == "sklearn-random"
