"""Noise on what crosses the cut: whose it is, how much, and when it is the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedsim.protocol.cut_layer import CutNoise, step_occasion, weights_occasion
from fedsim.splitnn.layers import clip_rows

ROWS = np.arange(3000, dtype=np.int32)
NOISE = CutNoise(clip=2.0, noise=0.5, secret=bytes(range(32)))


def drawn(noise: CutNoise = NOISE, rows: np.ndarray = ROWS, occasion: str = "step 1") -> np.ndarray:
    return noise.add_noise(torch.zeros(len(rows), 40), rows, occasion).numpy()


def test_the_noise_is_gaussian_of_the_promised_deviation():
    assert kstest(drawn().ravel() / (2.0 * 0.5), "norm").pvalue > 1e-3


def test_a_row_asked_for_again_on_the_same_occasion_has_the_same_noise_whoever_stands_beside_it():
    some = np.array([7, 2500, 3], dtype=np.int32)
    assert np.array_equal(drawn(rows=some), drawn()[some])


@pytest.mark.parametrize("other", [{"occasion": "step 2"}, {"noise": CutNoise(clip=2.0, noise=0.5, secret=bytes(32))}])
def test_another_occasion_or_another_secret_has_other_noise(other):
    correlation = np.corrcoef(drawn().ravel(), drawn(**other).ravel())[0, 1]
    assert abs(correlation) < 0.02


def test_rows_and_columns_are_independent():
    table = drawn()
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.02


def test_rows_are_clipped_before_the_noise():
    long = torch.full((5, 40), 100.0)
    still = CutNoise(clip=2.0, noise=0.0, secret=bytes(32))
    assert still.clip_and_add_noise(long, ROWS[:5], "step 1").norm(dim=1).tolist() == pytest.approx([2.0] * 5)


def test_clipping_lets_gradients_through_and_leaves_short_rows_alone():
    rows = torch.tensor([[3.0, 4.0], [0.1, 0.2]], requires_grad=True)
    clip_rows(rows, 1.0).sum().backward()
    assert torch.isfinite(rows.grad).all()
    assert rows.grad[1].tolist() == [1.0, 1.0]
    assert clip_rows(torch.zeros(1, 2), 1.0).tolist() == [[0.0, 0.0]]


def test_other_weights_are_another_occasion():
    weights = {"a": torch.zeros(3), "b": torch.ones(2)}
    assert weights_occasion(weights) == weights_occasion(dict(reversed(weights.items())))
    assert weights_occasion(weights) != weights_occasion({**weights, "a": torch.full((3,), 1e-9)})
    assert step_occasion("activations", 3) != step_occasion("gradients", 3)


def test_no_secret_is_shown():
    assert repr(NOISE) == "CutNoise(clip=2.0, noise=0.5)"
