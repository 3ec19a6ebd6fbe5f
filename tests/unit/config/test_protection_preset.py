"""The preset ``protected``: what it stands for, that the job's hash knows, and that the owner reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config.disclosure import summarise_settings
from fedsim.config.job import (
    PRESET_EPSILON_PER_KM,
    PRESET_FEATURES,
    PRESET_GRADIENTS,
    PRESET_SIGMA,
    PRESET_TAU,
    CutTerms,
    FeatureTerms,
    Job,
    read_job,
)
from fedsim.config.privacy_guarantees import privacy_guarantees
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


def test_the_preset_stands_for_concrete_settings_of_every_list_and_both_ways_over_the_cut(tmp_path):
    job = without_noise(tmp_path, PRESET)
    rentals, schools = job.secondaries["rentals"], job.secondaries["schools"]
    assert job.protection.features == FeatureTerms(**PRESET_FEATURES)
    assert job.protection.gradients == CutTerms(**PRESET_GRADIENTS)
    assert (rentals.tau, rentals.blur.epsilon_per_km) == (PRESET_TAU, PRESET_EPSILON_PER_KM)
    assert (schools.tau, schools.sigma, schools.blur) == (None, PRESET_SIGMA, None)  # compared by dice, and no place


def test_the_hash_is_that_of_the_settings_written_out_by_hand(tmp_path):
    job = without_noise(tmp_path, PRESET)
    again = Job.from_dict(job.described())
    assert again.hash == job.hash != job_of(tmp_path).hash
    assert "preset" not in again.described()["protection"]


def test_what_the_job_says_itself_counts_instead(tmp_path):
    own = "gradients = { clip = 0.1, noise = 2.0 }\n"
    job = job_of(tmp_path, PRESET + own)
    assert job.protection.gradients == CutTerms(clip=0.1, noise=2.0)
    assert job.protection.features == FeatureTerms(**PRESET_FEATURES)
    assert job.secondaries["rentals"].tau == 0.01
    assert job.secondaries["schools"].sigma == 0.4


def test_the_owner_reads_every_setting_and_what_it_promises(tmp_path):
    job = without_noise(tmp_path, PRESET)
    text = "\n".join(f"{name} {value}" for name, value in summarise_settings(job))
    assert f"of secondaries with noise of {PRESET_FEATURES['noise']:g} deviations" in text
    assert f"places blurred with epsilon {PRESET_EPSILON_PER_KM:g} per km" in text
    assert "preset protected" in text
    told = privacy_guarantees(job)
    assert any(sentence.startswith("rentals: Whatever is computed from a blurred place") for sentence in told)
    assert any(sentence.startswith("gradients: Given the weights") for sentence in told)


def test_a_job_without_noise_promises_nothing(tmp_path):
    assert privacy_guarantees(without_noise(tmp_path, "")) == ["nothing: this job lays noise on nothing"]


@pytest.mark.parametrize("fold", ["", ', { kind = "xor-fold" }'])
def test_flipped_bits_are_promised_with_their_epsilon_and_as_many_as_there_are_at_that_step(tmp_path, fold):
    flips = '{ kind = "balance" }, { kind = "bit-flip", epsilon = 3.0 }' + fold
    job = job_of(tmp_path, **{'{ kind = "balance" }': flips})
    [sentence] = [told for told in privacy_guarantees(job) if "odds on any bit" in told]
    assert "by at most e^3, and between two records whose filters differ in 4,096 bits" in sentence
    assert "before the flips by at most e^12288" in sentence


def test_noise_that_is_drawn_once_is_drawn_again_by_another_job(tmp_path):
    told = privacy_guarantees(without_noise(tmp_path, PRESET))
    assert any("another job, even with one setting changed" in sentence for sentence in told)
    cut = "\n[protection]\ngradients = { clip = 1.0, noise = 2.0 }\n"
    assert not any("drawn once" in sentence for sentence in privacy_guarantees(without_noise(tmp_path, cut)))


def test_one_label_is_promised_less_than_one_row(tmp_path):
    told = privacy_guarantees(without_noise(tmp_path, "\n[protection]\ngradients = { clip = 1.0, noise = 2.0 }\n"))
    [sentence] = [each for each in told if "rows of rentals" in each]
    assert "One label touches up to 50 rows of rentals in each step" in sentence
    assert "7.07 * sqrt(T)-GDP" in sentence


def test_hidden_rows_are_promised_between_places_alone(tmp_path):
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace("k = 50\n", "k = 50\nhide_rows = true\n")
    path = tmp_path / "job.toml"
    path.write_text(f"{text}\n[protection]\nactivations = {{ clip = 1.0, noise = 2.0 }}\n", encoding="utf-8")
    [sentence] = [told for told in privacy_guarantees(read_job(path)) if "same row" in told]
    assert "records at different places" in sentence
    assert "averages out over the steps" in sentence


def test_another_word_is_no_preset(tmp_path):
    with pytest.raises(SettingError, match="did you mean 'protected'"):
        job_of(tmp_path, PRESET.replace("protected", "protect"))
