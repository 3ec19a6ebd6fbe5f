"""Settings are tried within their bounds, ranked by validation, and remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.cli import main
from fedsim.contribution.tuning import Grid, TuningTrial
from fedsim.training.config import modern_preset
from fedsim_lab.study_runner import StudyContext
from fedsim_lab.sweep import GRIDS, SweepSubject, dataset_tuner, grid_settings, sweep_dataset


@pytest.fixture(autouse=True)
def _one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train one network instead of eight, in this process."""
    monkeypatch.setitem(modern_preset.__kwdefaults__, "members", 1)


FIRMS = SweepSubject("firms", epochs=1, records=120)


def sweep_in(folder: Path, grid: Grid) -> list[TuningTrial]:
    return sweep_dataset(dataset_tuner(FIRMS, grid, StudyContext(Path(), folder, 1, lambda _: None)), grid)


def sweep(folder: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["lab", "sweep", "firms", "--epochs", "1", "--records", "120", "--out", str(folder / "out"), *words])
    return int(end.value.code or 0)


def test_a_grid_is_ranked_by_validation_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    grid = {"k": (2, 4), "learning_rate": (1e-3, 1e-2)}
    first = sweep_in(tmp_path, grid)
    errors = [tried.validation["rmse"] for tried in first]
    assert errors == sorted(errors)
    lines = (tmp_path / "results.jsonl").read_text()
    assert [tried.setting for tried in sweep_in(tmp_path, grid)] == [tried.setting for tried in first]
    assert (tmp_path / "results.jsonl").read_text() == lines


def test_the_papers_grid_is_all_that_the_paper_names() -> None:
    assert len(grid_settings(GRIDS["paper"])) == 2 * 4 * 2 * 3 * 2


def test_width_and_weight_decay_reach_the_networks() -> None:
    config = FIRMS.rung({"width": 7, "decay": 0.5}).config(seed=0)
    assert config.local.hidden == (7,)
    assert config.optimiser.decay == 0.5  # type: ignore[attr-defined]


def test_batch_split_and_secondaries_can_be_chosen(tmp_path: Path) -> None:
    chosen = ("--try", "batch_size=16,32", "--split", "group", "--secondaries", "register", "--workers", "2", "--quiet")
    assert sweep(tmp_path, *chosen) == 0
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert all('"split": "group"' in line for line in lines)
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--try", "k=,"), "'k=,' is not a list of values"),
        (("--try", "k=0"), "k=0, but the secondary"),
        (("--try", "k=3,9999999"), "k=9999999, but the secondary"),
        (("--try", "rate=1"), "'rate' is called 'learning_rate' now"),
        (("--try", "colour=1"), "'colour' is not a setting"),
        (("--split", "odd"), "split 'odd' is unknown"),
        (("--try", "width=0"), "width=0"),
        (("--try", "decay=-1"), "decay=-1.0; choose a weight decay"),
        (("--secondaries", "nobody"), "has no secondary 'nobody'"),
        (("--data", "nowhere"), "--data nowhere is not a folder"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_trained(
    tmp_path: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(tmp_path, *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_file_cannot_be_the_folder_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("")
    assert sweep(tmp_path) == 2
    assert "the folder" in capsys.readouterr().err
