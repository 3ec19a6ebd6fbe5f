"""The preset ``protected``: what it stands for, that the job's hash knows, and that the owner reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.errors import SettingError
from fedsim.party.job import Job, read_job
from fedsim.party.leaving import settings_of
from fedsim.party.promises import promises
from fedsim.party.protection import EPSILON_PER_KM, FEATURES, GRADIENTS, SIGMA, TAU, CutTerms, FeatureTerms

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
    assert job.protection.features == FeatureTerms(**FEATURES)
    assert job.protection.gradients == CutTerms(**GRADIENTS)
    assert (rentals.tau, rentals.blur.epsilon_per_km) == (TAU, EPSILON_PER_KM)
    assert (schools.tau, schools.sigma, schools.blur) == (None, SIGMA, None)  # compared by dice, and no place


def test_the_hash_is_that_of_the_settings_written_out_by_hand(tmp_path):
    job = without_noise(tmp_path, PRESET)
    again = Job.from_dict(job.described())
    assert again.hash == job.hash != job_of(tmp_path).hash
    assert "preset" not in again.described()["protection"]


def test_what_the_job_says_itself_counts_instead(tmp_path):
    own = "gradients = { clip = 0.1, noise = 2.0 }\n"
    job = job_of(tmp_path, PRESET + own)
    assert job.protection.gradients == CutTerms(clip=0.1, noise=2.0)
    assert job.protection.features == FeatureTerms(**FEATURES)
    assert job.secondaries["rentals"].tau == 0.01
    assert job.secondaries["schools"].sigma == 0.4


def test_the_owner_reads_every_setting_and_what_it_promises(tmp_path):
    job = without_noise(tmp_path, PRESET)
    text = "\n".join(f"{name} {value}" for name, value in settings_of(job))
    assert f"of secondaries with noise of {FEATURES['noise']:g} deviations" in text
    assert f"places blurred with epsilon {EPSILON_PER_KM:g} per km" in text
    assert "preset protected" in text
    told = promises(job)
    assert any(sentence.startswith("rentals: Whatever is computed from a blurred place") for sentence in told)
    assert any(sentence.startswith("gradients: Given the weights") for sentence in told)


def test_a_job_without_noise_promises_nothing(tmp_path):
    assert promises(without_noise(tmp_path, "")) == ["nothing: this job lays noise on nothing"]


def test_flipped_bits_are_promised_with_their_epsilon(tmp_path):
    flips = '{ kind = "balance" }, { kind = "bit-flip", epsilon = 3.0 }'
    job = job_of(tmp_path, **{'{ kind = "balance" }': flips})
    [sentence] = [told for told in promises(job) if "odds on any bit" in told]
    assert "by at most e^3, and between two records that differ in 4096 bits by at most e^12288" in sentence


def test_another_word_is_no_preset(tmp_path):
    with pytest.raises(SettingError, match="did you mean 'protected'"):
        job_of(tmp_path, PRESET.replace("protected", "protect"))
