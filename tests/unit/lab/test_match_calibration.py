"""The reliability of the match gate against a truth that is known."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.training.explain import Matches
from fedsim_lab.match_calibration import calibrate_matches, calibration_table


def drawn(n_records=4_000, k=3, seed=0):
    """Probabilities and a truth that is drawn from them."""
    rng = np.random.default_rng(seed)
    whole = rng.dirichlet([0.4] * (k + 1), n_records)
    partner = np.tile(np.arange(k), (n_records, 1))
    place = (whole.cumsum(axis=1) > rng.random((n_records, 1))).argmax(axis=1)
    return Matches("register", partner, whole[:, :k]), np.where(place < k, place, -1)


def test_a_truth_drawn_from_the_probabilities_is_calibrated():
    matches, truth = drawn()
    found = calibrate_matches(matches, truth)
    assert found.error < 0.02
    assert found.matched == pytest.approx(found.listed, abs=0.02)
    assert sum(part.pairs for part in found.bins) == matches.probability.size


def test_a_gate_that_is_too_sure_has_a_large_error():
    matches, truth = drawn()
    sure = np.where(matches.probability == matches.probability.max(axis=1, keepdims=True), 1.0, 0.0)
    assert calibrate_matches(Matches("register", matches.partner, sure), truth).error > 0.1


def test_the_table_has_a_row_per_filled_bin():
    found = calibrate_matches(*drawn())
    assert len(calibration_table(found, "firms").rows) == len(found.bins)
