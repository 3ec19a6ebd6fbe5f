"""A comparison is made under the protections of its job, and what is trained under others is not taken for it."""

from __future__ import annotations

import numpy as np

from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import with_settings
from fedsim.hyperparameters import TrainingSettings
from job_fixtures import lay_out, read_all

SOLO, FEDSIM = (
    next(rung for rung in with_settings(TrainingSettings(epochs=1, batch_size=64)) if rung.key == key)
    for key in ("solo", "fedsim")
)
FEATURES = "\n[protection.features]\nnoise = 4.0\n"


def case(folder, protection=""):
    folder.mkdir()
    lay_out(folder, flats=120)
    (folder / "job.toml").write_text((folder / "job.toml").read_text() + protection)
    job, files = read_all(folder)
    (found,) = JobCases.read(job, [files["city"], files["rentals"]], folder / "compare").cases(1, ["random"])
    return found


def test_noise_on_features_is_on_those_that_are_compared_and_drawn_once(tmp_path):
    plain, noisy = case(tmp_path / "plain"), case(tmp_path / "noisy", FEATURES)
    (before,), (after,) = plain.secondaries, noisy.secondaries
    assert np.std(after.features.numbers - before.features.numbers) > 1.0
    job, files = read_all(tmp_path / "noisy")
    folder = tmp_path / "noisy" / "compare"
    (again,) = JobCases.read(job, [files["city"], files["rentals"]], folder).cases(1, ["random"])
    np.testing.assert_array_equal(again.secondaries[0].features.numbers, after.features.numbers)


def test_trainings_under_another_protection_are_known_by_another_name(tmp_path):
    plain = case(tmp_path / "plain")
    noisy = case(tmp_path / "noisy", FEATURES)
    assert plain.own_digest == noisy.own_digest
    assert SOLO.result_key(plain) == SOLO.result_key(noisy)
    assert "noise" not in FEDSIM.result_key(plain)["data"]
    assert "noise" in FEDSIM.result_key(noisy)["data"]
