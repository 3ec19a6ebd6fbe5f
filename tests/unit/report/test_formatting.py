"""Numbers for people are short, and never rounded to something else than they are."""

from __future__ import annotations

import pytest

from fedsim.registry import METRICS
from fedsim.report.formatting import format_bytes, format_distance, format_duration, format_percent, metric_unit


@pytest.mark.parametrize("share", [1e-12, 1e-4, 0.5, 1 - 1e-4, 1 - 1e-12])
def test_a_share_between_none_and_all_is_neither(share):
    assert format_percent(share) not in (format_percent(0.0), format_percent(1.0))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9994, "999 ms"), (59.94, "59.9 s"), (60.0, "1 min 0 s"), (3600.0, "1 h 0 min")]
)
def test_a_duration_is_in_the_largest_unit_that_fits(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(999, "999 bytes"), (1000, "1.0 kB"), (10**9, "1.0 GB")])
def test_bytes_change_their_unit_at_a_thousand(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize("metric", METRICS.names())
def test_a_distance_has_the_unit_of_its_metric(metric):
    assert format_distance(2.0, metric) == f"2 {metric_unit(metric) or ''}".rstrip()


def test_a_metric_of_another_release_has_no_unit():
    assert metric_unit("of another release") is None
