"""The charts of a run's report draw whatever comes, and put things where they belong."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from fedsim.report.charts import (
    AxisLabels,
    ChartLabels,
    ChartRow,
    LineSeries,
    histogram_figure,
    lines_figure,
    reuse_figure,
    rows_figure,
)
from fedsim.report.model_charts import (
    calibration_figure,
    calibration_warnings,
    confusion_figure,
    density_figure,
    group_figures,
    importance_figure,
)
from fedsim.report.page import Figure
from fedsim.runs.record import GroupError
from fedsim.training.explain import MergeImportance

LABELS = ChartLabels("title", "caption", "axis", ("name", "value"))
WORDS = {"title": "title", "caption": "caption"}
SIZES = [0.0, 1e-300, 1e-5, 1.0, 12345.0, 1e17, -3.5]


def shapes(figure: Figure, kind: str) -> list[ElementTree.Element]:
    assert not re.search(r"\b(nan|inf)\b", figure.picture)
    drawn = ElementTree.fromstring(figure.picture)  # noqa: S314 - our own drawing
    return [shape for shape in drawn.iter() if kind in (shape.get("class") or "").split()]


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def cell_records(figure: Figure) -> list[int]:
    """Records of every cell."""
    words = [cell.findtext("title") or "" for cell in shapes(figure, "cell")]
    return [int(warning.rpartition(": ")[2].split()[0].replace(",", "")) for warning in words]


def judged(truth: list[str], predicted: list[str]) -> pl.DataFrame:
    confidence = np.linspace(0.5, 1.0, len(truth))
    return pl.DataFrame({"truth": truth, "predicted": predicted, "confidence": confidence})


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


def test_every_cell_of_the_classes_has_its_number_where_nobody_points_at_it() -> None:
    figure = drawn(confusion_figure(judged(["a"] * 1200 + ["b"] * 9, ["a"] * 1198 + ["b"] * 11)))
    assert [text.text for text in shapes(figure, "figure")] == ["1,198", "<3", "0", "9"]
    many = [str(number) for number in range(12)]
    crowded = drawn(confusion_figure(judged(many * 1200, many * 1200)))
    assert {text.text for text in shapes(crowded, "figure")} == {"1k", "0"}


def test_a_heat_map_has_a_scale() -> None:
    figure = importance_figure(MergeImportance("rentals", np.arange(10.0).reshape(5, 2)))
    texts = re.findall(r">≥ ([^<]+)<", figure.picture)
    assert texts == ["0", "1.8", "3.6", "5.4", "7.2"]


def sure(confidence: float, right: int) -> pl.DataFrame:
    truth, found = ["a", "b"] * 50, (["a", "b"] * 50)[:right] + ["c"] * (100 - right)
    return pl.DataFrame({"truth": truth, "predicted": found, "confidence": [confidence] * 100})


def test_an_overconfident_model_gets_a_warning() -> None:
    (warning,) = calibration_warnings(sure(0.99, 84), 0.6)
    assert "99 %" in warning
    assert "84 %" in warning
    (warning,) = calibration_warnings(sure(0.85, 84), 0.7)
    assert "0.7 is worse than 0.693" in warning
    assert not [*calibration_warnings(sure(0.85, 84), 0.6), *calibration_warnings(sure(0.99, 84)[:0], 0.6)]


def test_most_test_records_are_in_a_cell_and_none_is_alone_there() -> None:
    rng = np.random.default_rng(0)
    for records in (3, 5, 40, 2000):
        truth = rng.normal(size=records)
        figure = drawn(density_figure(truth, truth + rng.normal(size=records) / 10, unit=""))
        assert min(cell_records(figure)) >= 3
        left = records - sum(cell_records(figure))
        assert left <= 0.21 * records
        assert (f"Not drawn: {left} record" in figure.caption) == (left > 0)
    far = drawn(density_figure(np.append(truth, 1e6), np.append(truth, 0.0), unit=""))
    assert "far away" in far.caption
    assert density_figure(truth[:2], truth[:2], unit="") is None


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


def test_classes_are_counted_where_truth_and_prediction_meet() -> None:
    figure = drawn(confusion_figure(judged(["a"] * 4 + ["b"] * 4, ["a"] * 3 + ["b"] * 5)))
    assert figure.rows == (("a", "3", "fewer than 3"), ("b", "0", "4"))
    assert "87.5 % of 8 test records" in figure.caption
    assert confusion_figure(judged(["a"], ["a"])) is None
    many = [str(number) for number in range(40)] * 3
    assert len(shapes(drawn(confusion_figure(judged(many, many))), "cell")) == 12 * 12


def test_calibration_compares_confidence_with_accuracy() -> None:
    figure = drawn(calibration_figure(judged(["a"] * 20, ["b"] * 10 + ["a"] * 10)))
    assert [row[1] for row in figure.rows][::4] == ["0 % of 4 correct", "100 % of 4 correct"]
    assert calibration_figure(judged(["a"] * 2, ["a"] * 2)) is None


def test_candidates_are_counted_in_ranges_that_double() -> None:
    figure = reuse_figure(np.array([0, 1, 1, 5]), title="t", caption="c")
    assert figure.rows == (
        ("in no list", "1 (25 %)"),
        ("in 1 list", "2 (50 %)"),
        ("in 2 to 3 lists", "0 (0 %)"),
        ("in 4 to 7 lists", "1 (25 %)"),
    )


def test_groups_are_drawn_for_the_columns_that_differ_most() -> None:
    groups = [
        GroupError(f"c{column}", f"g{part}", 20, 1.0 + column * part, 0.0) for column in range(6) for part in (0, 1)
    ]
    alone = GroupError("alone", "all", 20, 99.0, 0.0)
    found = group_figures([*groups, alone], numbers=True)
    assert [figure.title for figure in found] == [f"Error by c{column}" for column in (5, 4, 3, 2)]
