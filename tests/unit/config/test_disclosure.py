"""The preset ``protected``: its settings, the job's hash, and what the owner sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config.disclosure import NOISE_REUSE_NOTE, privacy_guarantees, summarise_settings
from fedsim.config.job import (
    PRESET_EPSILON_PER_KM,
    Job,
    read_job,
)
from fedsim.errors import SettingError

GOLDEN = Path(__file__).parents[2] / "golden"
PRESET = '\n[protection]\npreset = "protected"\n'


def job_of(folder: Path, more: str = "", **changes: str) -> Job:
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "job.toml"
    path.write_text(f"{text}{more}", encoding="utf-8")
    return read_job(path)


def without_noise(folder: Path, more: str) -> Job:
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("tau = 0.01\n", "").replace("sigma = 0.4\n", "")
    path = folder / "job.toml"
    path.write_text(f"{text}{more}", encoding="utf-8")
    return read_job(path)


def test_the_preset_seals_labels_and_blurs_the_places_of_every_list(tmp_path):
    job = without_noise(tmp_path, PRESET)
    rentals, schools = job.secondaries["rentals"], job.secondaries["schools"]
    assert job.protection.sealed
    assert rentals.blur.epsilon_per_km == PRESET_EPSILON_PER_KM
    assert schools.blur is None  # no place


def test_features_without_noise_are_refused(tmp_path):
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, "\n[protection]\nfeatures = {}\n")
    assert {fault.code for fault in caught.value.faults} == {"missing-setting"}


def test_the_hash_is_that_of_the_settings_written_out_by_hand(tmp_path):
    job = without_noise(tmp_path, PRESET)
    again = Job.from_dict(job.to_dict())
    assert again.hash == job.hash != job_of(tmp_path).hash
    assert "preset" not in again.to_dict()["protection"]


def test_explicit_settings_take_precedence(tmp_path):
    blur = 'tau = 0.01\nblur = { latitude = "lat", longitude = "lon", epsilon_per_km = 20 }'
    job = job_of(tmp_path, PRESET, **{"tau = 0.01": blur})
    assert job.secondaries["rentals"].blur.epsilon_per_km == 20


def test_the_owner_sees_the_settings_of_the_preset_and_its_guarantees(tmp_path):
    job = without_noise(tmp_path, PRESET)
    shown = dict(summarise_settings(job))
    assert shown["preset"].startswith("protected")
    assert f"epsilon {PRESET_EPSILON_PER_KM:g} per km" in shown["rentals"]
    subjects = {sentence.partition(":")[0] for sentence in privacy_guarantees(job)}
    assert {"rentals", "labels"} <= subjects


def test_a_job_without_noise_guarantees_nothing(tmp_path):
    [sentence] = privacy_guarantees(without_noise(tmp_path, ""))
    assert sentence.startswith("none")


def test_the_note_on_reused_noise_is_shown_only_where_noise_is_drawn_once(tmp_path):
    assert NOISE_REUSE_NOTE in privacy_guarantees(without_noise(tmp_path, PRESET))
    sealed = '\n[protection]\ngradients = "none"\n'
    assert NOISE_REUSE_NOTE not in privacy_guarantees(without_noise(tmp_path, sealed))


def test_an_unknown_preset_is_refused(tmp_path):
    with pytest.raises(SettingError, match="protected") as caught:
        job_of(tmp_path, PRESET.replace("protected", "protect"))
    assert caught.value.code == "unknown-choice"
