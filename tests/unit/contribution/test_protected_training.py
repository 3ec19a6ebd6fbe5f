"""A comparison is made under the protections of its job, and what is trained under others is not taken for it."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.config.job import CutTerms, Protection
from fedsim.contribution.job_ladder import JobCases, ProtectedTrainer
from fedsim.contribution.ladder import RUNGS, LadderTraining
from fedsim.contribution.rungs import run_training
from job_fixtures import lay_out, read_all

SECRET = bytes(range(32))
SOLO, TREES, FEDSIM = (
    next(rung for rung in LadderTraining(epochs=1, batch=64).rungs(RUNGS) if rung.key == key)
    for key in ("solo", "trees", "fedsim")
)
NOISY = CutTerms(clip=1.0, noise=50.0)
GENTLE = CutTerms(clip=1e3, noise=1e-12)
FEATURES = "\n[protection.features]\nnoise = 4.0\n"


def case(folder, protection=""):
    folder.mkdir()
    lay_out(folder, flats=120)
    (folder / "job.toml").write_text((folder / "job.toml").read_text() + protection)
    job, files = read_all(folder)
    (found,) = JobCases.read(job, [files["city"], files["rentals"]], folder / "compare").cases(1, ["random"])
    return found


def predicted(rung, arrays, **terms):
    return ProtectedTrainer(Protection(**terms), SECRET).train(rung, arrays).predictions


@pytest.mark.parametrize("side", ["activations", "gradients"])
def test_noise_on_what_crosses_changes_what_is_learnt_with_a_partner(tmp_path, side):
    arrays = case(tmp_path / "job")
    plain = run_training(FEDSIM, arrays).predictions
    noisy = predicted(FEDSIM, arrays, **{side: NOISY})
    assert not np.allclose(noisy, plain)
    np.testing.assert_array_equal(noisy, predicted(FEDSIM, arrays, **{side: NOISY}))


def test_terms_that_change_next_to_nothing_leave_the_plain_training(tmp_path):
    arrays = case(tmp_path / "job")
    gentle = predicted(FEDSIM, arrays, activations=GENTLE, gradients=GENTLE)
    np.testing.assert_allclose(gentle, run_training(FEDSIM, arrays).predictions, rtol=1e-3)


@pytest.mark.parametrize("rung", [SOLO, TREES], ids=["solo", "trees"])
def test_whoever_learns_alone_is_not_disturbed(tmp_path, rung):
    arrays = case(tmp_path / "job")
    np.testing.assert_array_equal(predicted(rung, arrays, gradients=NOISY), run_training(rung, arrays).predictions)


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
    noisy = case(tmp_path / "noisy", "\n[protection.gradients]\nclip = 1.0\nnoise = 50.0\n")
    assert plain.own_digest == noisy.own_digest
    assert SOLO.result_key(plain) == SOLO.result_key(noisy)
    assert "noise" not in FEDSIM.result_key(plain)["data"]
    assert "noise" in FEDSIM.result_key(noisy)["data"]
