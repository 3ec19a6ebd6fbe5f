"""A split in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim_lab.arrays_file import load_arrays, save_arrays
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.study_runner import load_sample


def test_arrays_survive_their_file(tmp_path: Path) -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 60)).one("random", 0)
    save_arrays(arrays, tmp_path / "one.npz")
    again = load_arrays(tmp_path / "one.npz")
    np.testing.assert_array_equal(arrays.secondaries[0].similarity, again.secondaries[0].similarity)
    np.testing.assert_array_equal(arrays.primary.numbers, again.primary.numbers)
    assert again.digest == arrays.digest
    assert again.about == arrays.about
