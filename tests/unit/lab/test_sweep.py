"""Settings are tried within their bounds, ranked by validation, and remembered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim.contribution.tuning import Tuner, TuningGrid, TuningSetting
from fedsim.errors import FileError
from fedsim.training.config import modern_preset
from fedsim_lab.study_runner import StudyContext
from fedsim_lab.sweep import GRIDS, SweepSubject, dataset_tuner


@pytest.fixture(autouse=True)
def _one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train one network instead of eight, in this process."""
    monkeypatch.setitem(modern_preset.__kwdefaults__, "members", 1)


FIRMS = SweepSubject("firms", epochs=1, records=120)


def sweep_in(folder: Path, subject: SweepSubject = FIRMS) -> Tuner:
    return dataset_tuner(subject, StudyContext(Path(), folder, 1, lambda _: None))


def sweep(folder: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["lab", "sweep", "firms", "--epochs", "1", "--records", "120", "--out", str(folder / "out"), *words])
    return int(end.value.code or 0)


def test_a_grid_is_ranked_by_validation_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    grid = TuningGrid(k=(2, 4), rate=(1e-3, 1e-2))
    first = sweep_in(tmp_path).grid(grid)
    errors = [tried.validation["rmse"] for tried in first]
    assert errors == sorted(errors)
    lines = (tmp_path / "results.jsonl").read_text()
    assert [tried.setting for tried in sweep_in(tmp_path).grid(grid)] == [tried.setting for tried in first]
    assert (tmp_path / "results.jsonl").read_text() == lines


def test_a_search_stays_within_the_grid_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    grid = TuningGrid(k=(2, 4), rate=(1e-3, 1e-2))
    sweep_in(tmp_path).search(grid, 2, tmp_path / "search.log")
    found = sweep_in(tmp_path).search(grid, 3, tmp_path / "search.log")
    assert all(tried.setting.k in (2, 4) and 1e-3 <= tried.setting.rate <= 1e-2 for tried in found)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


def test_a_search_with_other_values_begins_anew_in_the_same_folder(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    for ks, subject in (((2, 4), FIRMS), ((3,), FIRMS), ((3,), replace(FIRMS, records=100))):
        (found,) = sweep_in(tmp_path, subject).search(TuningGrid(k=ks), 1, tmp_path / "search.log")
        assert found.setting.k in ks
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("junk", ["nonsense\n", "{}\n", "3\n"])
def test_a_damaged_memory_of_a_search_is_named(tmp_path: Path, junk: str) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "search.log").write_text(junk)
    with pytest.raises(FileError, match=r"search\.log holds a line that is not Optuna's"):
        sweep_in(tmp_path).search(TuningGrid(k=(2,)), 1, tmp_path / "search.log")


def test_the_papers_grid_is_all_that_the_paper_names() -> None:
    assert len(GRIDS["paper"].settings()) == 2 * 4 * 2 * 3 * 2


def test_width_and_weight_decay_reach_the_networks() -> None:
    config = FIRMS.rung(TuningSetting(hidden=7, decay=0.5)).config(seed=0)
    assert config.local.hidden == (7,)
    assert config.optimiser.decay == 0.5  # type: ignore[attr-defined]


def test_batch_split_and_secondaries_can_be_chosen(tmp_path: Path) -> None:
    chosen = ("--batch", "16,32", "--split", "group", "--secondaries", "register", "--workers", "2", "--quiet")
    assert sweep(tmp_path, *chosen) == 0
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert all('"split": "group"' in line for line in lines)
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--k", ","), "--k ',' names no value"),
        (("--k", "0"), "k=0, but the secondary"),
        (("--k", "3,9999999"), "k=9999999, but the secondary"),
        (("--split", "odd"), "split 'odd' is unknown"),
        (("--width", "0"), "width=0"),
        (("--decay", "-1"), "decay=-1.0; choose a weight decay"),
        (("--secondaries", "nobody"), "has no secondary 'nobody'"),
        (("--data", "nowhere"), "--data nowhere is not a folder"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_trained(
    tmp_path: Path, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(tmp_path, *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_file_cannot_be_the_folder_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("")
    assert sweep(tmp_path) == 2
    assert "the folder" in capsys.readouterr().err
