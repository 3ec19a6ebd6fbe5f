"""The preset ``protected``: its settings, the job's hash, and what the owner sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config.disclosure import NOISE_REUSE_NOTE, privacy_guarantees, summarise_settings
from fedsim.config.job import (
    PRESET_EPSILON_PER_KM,
    CutTerms,
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


@pytest.mark.parametrize(
    ("features", "code"),
    [
        ("average_of = 5", "neighbours-need-places"),
        ("exchange_of = 5", "neighbours-need-places"),
        ("average_of = 5, exchange_of = 5", "average-and-exchange"),
    ],
)
def test_neighbours_need_places_and_either_average_or_exchange(tmp_path, features, code):
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, f"\n[protection]\nfeatures = {{ {features} }}\n")
    assert {fault.code for fault in caught.value.faults} == {code}


def test_features_without_any_mechanism_are_refused(tmp_path):
    with pytest.raises(SettingError) as caught:
        job_of(tmp_path, "\n[protection]\nfeatures = {}\n")
    assert {fault.code for fault in caught.value.faults} == {"no-effect"}


def test_the_hash_is_that_of_the_settings_written_out_by_hand(tmp_path):
    job = without_noise(tmp_path, PRESET)
    again = Job.from_dict(job.to_dict())
    assert again.hash == job.hash != job_of(tmp_path).hash
    assert "preset" not in again.to_dict()["protection"]


def test_explicit_settings_take_precedence(tmp_path):
    blur = 'tau = 0.01\nblur = { latitude = "lat", longitude = "lon", epsilon_per_km = 20 }'
    job = job_of(tmp_path, PRESET + "gradients = { clip = 0.1, noise = 2.0 }\n", **{"tau = 0.01": blur})
    assert not job.protection.sealed
    assert job.protection.gradients == CutTerms(clip=0.1, noise=2.0)
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


@pytest.mark.parametrize("fold", ["", ', { kind = "xor-fold" }'])
def test_the_guarantee_for_flipped_bits_counts_the_bits_at_that_step(tmp_path, fold):
    flips = '{ kind = "balance" }, { kind = "bit-flip", epsilon = 3.0 }' + fold
    job = job_of(tmp_path, **{'{ kind = "balance" }': flips})
    [sentence] = [sentence for sentence in privacy_guarantees(job) if "e^12288" in sentence]
    assert "e^3" in sentence
    assert "4,096 bits" in sentence


def test_the_note_on_reused_noise_is_shown_only_where_noise_is_drawn_once(tmp_path):
    assert NOISE_REUSE_NOTE in privacy_guarantees(without_noise(tmp_path, PRESET))
    cut = "\n[protection]\ngradients = { clip = 1.0, noise = 2.0 }\n"
    assert NOISE_REUSE_NOTE not in privacy_guarantees(without_noise(tmp_path, cut))


def test_the_guarantee_for_a_label_counts_all_rows_that_it_affects(tmp_path):
    cut = "\n[protection]\ngradients = { clip = 1.0, noise = 2.0 }\n"
    [sentence] = [each for each in privacy_guarantees(without_noise(tmp_path, cut)) if "50 rows of rentals" in each]
    assert "7.07 * sqrt(T)-GDP" in sentence


def test_hidden_rows_have_a_guarantee(tmp_path):
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("k = 50\n", "k = 50\nhide_rows = true\n")
    path = tmp_path / "job.toml"
    path.write_text(f"{text}\n[protection]\nactivations = {{ clip = 1.0, noise = 2.0 }}\n", encoding="utf-8")
    assert any("same row" in sentence for sentence in privacy_guarantees(read_job(path)))


def test_an_unknown_preset_is_refused(tmp_path):
    with pytest.raises(SettingError, match="protected") as caught:
        job_of(tmp_path, PRESET.replace("protected", "protect"))
    assert caught.value.code == "unknown-choice"
