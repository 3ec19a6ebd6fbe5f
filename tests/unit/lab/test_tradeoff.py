"""The trade-off between the gain of attacks and the quality of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit_fixtures import FAST, read_party_files
from error_fixtures import raises
from fedsim.config.job import read_job
from fedsim.errors import SettingError
from fedsim_lab import tradeoff
from fedsim_lab.tradeoff import TradeoffPoint, sweep_mechanism, tradeoff_page
from job_fixtures import lay_out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lay_out(tmp_path)
    return tmp_path


def test_noise_on_features_lowers_the_gain_of_inversion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tradeoff, "NOISE_LEVELS", (16.0,))
    job, files, seen = read_job(folder / "job.toml"), read_party_files(folder, "city", "rentals"), []
    plain, noisy = sweep_mechanism(job, files, FAST, "features", seen.append)
    assert seen == ["no features", "noise 16"] == [plain.setting, noisy.setting]
    assert noisy.gain < plain.gain / 2
    assert {plain.attack, noisy.attack} <= {"feature inversion", "joint inversion"}


def test_an_unknown_mechanism_is_refused(folder: Path) -> None:
    job = read_job(folder / "job.toml")
    with raises(SettingError, "unknown-sweep"):
        sweep_mechanism(job, read_party_files(folder, "city", "rentals"), FAST, "sealed", print)


def test_the_page_lists_every_setting_with_its_best_attack() -> None:
    points = [
        TradeoffPoint("no blur", 0, 0.9, "link graph", "rmse", 40.0),
        TradeoffPoint("epsilon 1", 0, 0.1, "grid", "rmse", 55.0),
    ]
    page = tradeoff_page(points, title="flats: blur")
    for point in points:
        assert page.count(point.setting) >= 2
        assert point.attack in page
