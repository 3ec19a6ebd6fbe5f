"""The charts of a run's report draw whatever comes, and put things where they belong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chart_fixtures import cell_records, drawn, shapes
from fedsim.report.charts import (
    AxisLabels,
    ChartLabels,
    ChartRow,
    LineSeries,
    bin_edges,
    histogram_figure,
    lines_figure,
    reuse_figure,
    rows_figure,
)
from fedsim.report.model_charts import (
    density_figure,
)

LABELS = ChartLabels("title", "caption", "axis", ("name", "value"))
WORDS = {"title": "title", "caption": "caption"}
SIZES = [0.0, 1e-300, 1e-5, 1.0, 12345.0, 1e17, -3.5]


@pytest.mark.parametrize("low", SIZES)
@pytest.mark.parametrize("high", SIZES)
def test_values_of_any_size_are_drawn(low: float, high: float) -> None:
    rows = [ChartRow("a", low, interval=(min(low, high), max(low, high)), points=(low, high)), ChartRow("b", high)]
    assert len(shapes(rows_figure(rows, LABELS, bars=True), "bar")) == 2
    assert len(shapes(rows_figure(rows, LABELS, include=(0.0,)), "point")) == 2
    lines = [LineSeries("one", [low, high]), LineSeries("two", [high, low])]
    assert len(shapes(lines_figure(lines, AxisLabels("x", "y"), **WORDS), "line")) == 4
    assert shapes(drawn(density_figure(np.array([low, high] * 3), np.array([high, low] * 3), unit="m")), "cell")


def test_bars_start_at_zero_and_point_to_their_side() -> None:
    left, right = shapes(rows_figure([ChartRow("loss", -2.0), ChartRow("gain", 4.0)], LABELS, bars=True), "bar")
    zero = float(right.get("x") or 0)
    assert float(left.get("x") or 0) + float(left.get("width") or 0) == pytest.approx(zero, abs=0.02)
    assert float(right.get("width") or 0) == pytest.approx(2 * float(left.get("width") or 0), abs=0.05)


def test_a_long_name_leaves_room_for_its_value() -> None:
    figure = rows_figure([ChartRow("n" * 200, 1.0, "a value")], LABELS, bars=True)
    (name,) = shapes(figure, "name")
    assert len(name.text or "") < 60
    assert figure.rows == (("n" * 200, "a value"),)


def test_one_epoch_is_a_dot_and_many_are_a_line_with_a_tip_each() -> None:
    axes = AxisLabels("epoch", "loss", (1, "best"))
    assert len(shapes(lines_figure([LineSeries("training", [0.5])], axes, **WORDS), "dot")) == 1
    assert len(shapes(lines_figure([LineSeries("training", [0.5] * 100)], axes, **WORDS), "hover")) == 100
    assert not shapes(lines_figure([LineSeries("training", [0.5] * 1000)], axes, **WORDS), "hover")


def test_a_value_that_is_no_number_leaves_a_gap_in_its_line() -> None:
    line = LineSeries("one", [1.0, 2.0, math.nan, 4.0, 5.0, math.inf, 7.0])
    figure = lines_figure([line], AxisLabels("x", "y"), **WORDS)
    assert (len(shapes(figure, "line")), len(shapes(figure, "dot"))) == (2 + 1, 1)  # the legend has a line too
    assert shapes(lines_figure([LineSeries("one", [math.nan])], AxisLabels("x", "y"), **WORDS), "hover")


def test_what_is_no_number_is_not_drawn() -> None:
    values = np.array([1.0, 2.0, 2.0, 2.0, np.nan, np.inf])
    assert sum(cell_records(drawn(density_figure(values, values, unit="")))) >= 3
    errors = histogram_figure(values, title="t", caption="c", axis="x")
    assert errors.rows == (("1.5", "2.5", "3"),) or "Not drawn" in errors.caption
    assert not shapes(histogram_figure(np.array([7.0]), title="t", caption="c", axis="x"), "marker")


def test_no_bin_holds_one_or_two_records() -> None:
    values = np.append(np.random.default_rng(1).normal(size=200), 3.217)
    figure = histogram_figure(values, title="t", caption="c", axis="x")
    counts = [int(row[2]) for row in figure.rows]
    assert min(counts) >= 3
    assert f"Not drawn: {201 - sum(counts)} record" in figure.caption
    assert float(figure.rows[-1][1]) < 3.2


def test_candidates_are_counted_in_ranges_that_double() -> None:
    figure = reuse_figure(np.array([0, 1, 1, 5]), title="t", caption="c")
    assert figure.rows == (
        ("in no list", "1 (25 %)"),
        ("in 1 list", "2 (50 %)"),
        ("in 2 to 3 lists", "0 (0 %)"),
        ("in 4 to 7 lists", "1 (25 %)"),
    )


def test_whole_numbers_get_a_bin_each_and_a_far_tail_is_cut() -> None:
    assert bin_edges(np.array([0.0, 1.0, 2.0])).tolist() == [-0.5, 0.5, 1.5, 2.5]
    values = np.append(np.random.default_rng(0).random(999), 1000.0)
    assert bin_edges(values)[-1] < 2.0
