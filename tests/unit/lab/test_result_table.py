"""Tables of results beside those of the paper."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from lab_fixtures import STUDY, Reproduced, reproduce


def test_ours_stand_beside_the_papers_and_missing_data_is_named(first_run: Reproduced) -> None:
    folder = first_run.folder
    assert "40.00 ± 1.00" in first_run.out
    assert "taxi: not trained" in first_run.out
    sheet = json.loads((folder / "out" / "figure-k.json").read_text())
    assert sheet["facts"]["trainings"] == 4
    assert sheet["charts"][0]["places"] == ["3", "6"]
    trainings = pl.read_parquet(folder / "out" / "figure-k.parquet")
    assert trainings["settings.k"].to_list() == [None, 3, None, None]  # six are all that were linked
    assert "<svg" in (folder / "out" / "figure-k.html").read_text()
    assert (folder / "out" / "figure-k-1.svg").read_text().count("http://www.w3.org/2000/svg") == 1


def test_two_parts_with_one_dataset_are_told_apart_by_a_label(folder: Path) -> None:
    first = STUDY[: STUDY.index('[[parts]]\ndataset = "taxi"')]
    second = first[first.index("[[parts]]") :].replace("records = 150", 'records = 100\nlabel = "fewer"')
    (folder / "table-real.toml").write_text(first + second)
    assert reproduce(folder, "table-real", "--fast") == 0
    sheet = json.loads((folder / "out" / "fast" / "table-real.json").read_text())
    assert [table["title"].partition(":")[0] for table in sheet["tables"]] == ["firms", "firms, fewer"]
    assert all(len(table["rows"]) == 2 for table in sheet["tables"])


def test_table_one_stands_beside_whatever_no_value_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taxi = STUDY[STUDY.index('[[parts]]\ndataset = "taxi"') :].replace('["fedsim"]', '["top1sim", "fedsim"]')
    (folder / "figure-k.toml").write_text(f'title = "Rides"\nplace = "nowhere"\n{taxi}vary = "k"\nvalues = [5, 10]\n')
    assert reproduce(folder, "figure-k") == 0
    output = capsys.readouterr().out
    assert output.count("256.19 ± 1.39") == 2
    assert "235.67" not in output
