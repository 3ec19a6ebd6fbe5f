"""Homes in Beijing."""

from __future__ import annotations

from pathlib import Path

from dataset_files import ROWS, house_files
from error_fixtures import raises
from fedsim.errors import FileError
from fedsim_lab.datasets.dataset_registry import load_dataset


def test_house_reads_the_public_table_in_its_chinese_encoding(tmp_path: Path) -> None:
    house_files(tmp_path)
    homes = load_dataset("house", tmp_path)
    # One row each: too early, no DOM, too dear, too cheap, no year of construction, a spreadsheet's complaint.
    assert len(homes.primary) == ROWS - 6
    assert set(homes.primary.frame["floor"]) == {26.0, 6.0}
    assert "DOM" in homes.primary.features
    assert "ty_2017" in homes.primary.features


def test_a_table_that_is_no_table_is_refused(tmp_path: Path) -> None:
    homes, _ = house_files(tmp_path)
    homes.write_bytes(b'a,b\n"1,2\n3,4,5\n')
    with raises(FileError, "bad-csv"):
        load_dataset("house", tmp_path)
