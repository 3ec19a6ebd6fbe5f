"""Axes end on ticks."""

from __future__ import annotations

import pytest

from fedsim.report.svg import nice_range, tick_values


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 0.9), (1e-7, 3e-7), (0, 123456), (5, 5), (0, 0)])
def test_an_axis_ends_on_ticks_that_cover_the_data(low: float, high: float) -> None:
    start, end = nice_range(low, high)
    assert start <= low <= high <= end
    assert start < end
    assert 2 <= len(tick_values(start, end)) <= 11
