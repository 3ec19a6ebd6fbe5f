"""``fedsim lab datasets`` says what is here, what is not and where to get it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim.errors import SettingError
from fedsim_lab.datasets.dataset_registry import load_dataset


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Flats and schools in the authors' form, and a file of another kind under the name of the frogs."""
    for name in ("hdb", "frog"):
        (tmp_path / name).mkdir()
    (tmp_path / "hdb/flats.csv").write_text(
        "floor_area_sqm,resale_price,lat,lon\n44,232,1.36,103.85\n60,300,1.37,103.8\n"
    )
    (tmp_path / "hdb/schools.csv").write_text("school_name,vacancy_rate_0,lat,lon\ntao nan,0.1,1.3,103.9\n")
    (tmp_path / "frog/Frogs_MFCCs.csv").write_text("a,b\n1,2\n")
    return tmp_path


def test_the_list_says_what_is_found_and_where_the_rest_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "frog/Frogs_MFCCs.csv").unlink()
    assert run("lab", "datasets", "--data", str(folder)) == 0
    output = capsys.readouterr().out
    lines = {line.split()[0]: line for line in output.splitlines() if line[:1].isalpha()}
    assert "generated" in lines["city"]
    assert "found" in lines["hdb"]
    assert "Singapore Open Data Licence" in lines["hdb"]
    assert "missing" in lines["boone"]
    assert "boone/MiniBooNE_PID.txt" in output
    assert "UCI Machine Learning Repository" in output
    assert "\x1b" not in output


def test_json_has_the_same_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lab", "datasets", "--data", str(folder), "--json") == 2  # as the frogs are not frogs
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["datasets"]}
    assert listed["hdb"]["state"] == "found"
    assert listed["hdb"]["files"][0]["found"] == str(folder / "hdb/flats.csv")
    assert listed["taxi"]["files"][1]["found"] is None
    assert listed["firms"]["files"] == []


def test_records_are_counted_in_the_files_that_are_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("lab", "datasets", "--data", str(folder))
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()}
    assert lines["hdb"][2:5] == ["2", "+", "1"]  # the paper had 92,095 flats and 165 schools
    assert lines["taxi"][1:3] == ["missing", "-"]


def test_a_faulty_file_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lab", "datasets", "--data", str(folder), "--json") == 2
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["datasets"]}
    assert (listed["hdb"]["records"], listed["hdb"]["complete"]) == ([2, 1], [92_095, 165])
    assert (listed["frog"]["records"], listed["taxi"]["records"]) == (None, None)
    assert listed["frog"]["state"] == "faulty"
    assert "there is no column 'MFCCs_ 1'" in listed["frog"]["fault"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lab", "datasets", "--data", str(tmp_path / "none")) == 0
    assert "does not exist; use --data or FEDSIM_DATA" in capsys.readouterr().out


def test_without_a_data_folder_generated_datasets_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSIM_DATA", raising=False)
    assert run("lab", "datasets", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["folder"] is None
    assert {entry["name"] for entry in listed["datasets"] if entry["state"] == "generated"} >= {"city", "firms"}
    assert not [entry for entry in listed["datasets"] if entry["state"] == "found"]


def test_a_dataset_of_files_requires_a_data_folder() -> None:
    with pytest.raises(SettingError) as caught:
        load_dataset("hdb")
    assert caught.value.code == "data-folder-required"
