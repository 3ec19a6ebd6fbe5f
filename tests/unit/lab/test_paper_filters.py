"""Filters of the paper's sizes."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import SettingError
from fedsim.linkage.encoding import IdentifierColumn
from fedsim_lab.paper_filters import paper_bits, paper_numeric_filter, paper_string_filter


def test_the_papers_sizes_for_house_come_out():
    assert paper_bits(1.49385, 0.01, epsilon=0.03, delta=0.03) == 1_164_061
    assert paper_bits(2.02188, 0.01, epsilon=0.03, delta=0.03) == 1_575_520
    assert paper_numeric_filter(0, 1.49385, 0.01, epsilon=0.03, delta=0.03).bits == 1_164_064
    assert paper_numeric_filter(0, 2.02188, 0.01, epsilon=0.03, delta=0.03).bits == 1_575_520


def test_the_papers_size_keeps_its_promise_about_the_number_of_ones():
    code = paper_numeric_filter(0, 1, 0.1, epsilon=0.1, delta=0.1)
    expected = code.bits * 0.2 / 1.2
    ones = [np.diff(code.ranks(IdentifierColumn([0, 0.3, 1]), bytes([key] * 32))) for key in range(100)]
    assert np.mean(np.array(ones) <= 0.9 * expected) < 0.1


@pytest.mark.parametrize(
    "change", [{"epsilon": 1}, {"epsilon": 1e-200}, {"delta": 0}, {"delta": 5e-324}, {"threshold": 60}, {"low": "0"}]
)
def test_the_papers_size_is_refused_where_it_promises_nothing(change):
    with pytest.raises(SettingError):
        paper_numeric_filter(**{"low": 0, "high": 100, "threshold": 5, "epsilon": 0.1, "delta": 0.1, **change})


def test_the_size_of_the_papers_code_comes_out():
    # 2 x 1 x 10 x 18.5 / ((ceil(4 x 1 x 10 x .05) + 1) x .1) = 1233.3
    assert paper_string_filter(edit_distance=1, hashes=10, collision=0.05, delta=0.1, mean_grams=18.5, q=4).bits == 1240
    # 2 x 10 x 50 x 20 / ((20 + 1) x .01) = 95,238.1
    assert paper_string_filter(edit_distance=10, hashes=50, collision=0.01, delta=0.01, mean_grams=20).bits == 95_240


@pytest.mark.parametrize("change", [{"hashes": 0}, {"delta": 0}, {"collision": 2}, {"mean_grams": float("inf")}])
def test_the_size_of_the_papers_code_is_refused_where_it_means_nothing(change):
    settings = {"edit_distance": 1, "hashes": 10, "collision": 0.05, "delta": 0.1, "mean_grams": 18.5}
    with pytest.raises(SettingError) as caught:
        paper_string_filter(**{**settings, **change})
    assert caught.value.name == next(iter(change))
