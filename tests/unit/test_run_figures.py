"""The charts of a run's report draw whatever comes, and put things where they belong."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from fedsim.party.run_record import GroupError
from fedsim.report.figure import Figure
from fedsim.report.lines import Axes, lines_figure
from fedsim.report.predictions import calibration_figure, confusion_figure, density_figure, group_figures
from fedsim.report.rows import Labels, Row, bars_figure, dot_rows_figure

LABELS = Labels("title", "caption", "axis", ("name", "value"))
WORDS = {"title": "title", "caption": "caption"}
SIZES = [0.0, 1e-300, 1e-5, 1.0, 12345.0, 1e17, -3.5]


def shapes(figure: Figure, kind: str) -> list[ElementTree.Element]:
    assert not re.search(r"\b(nan|inf)\b", figure.picture)
    drawn = ElementTree.fromstring(figure.picture)  # noqa: S314 - our own drawing
    return [shape for shape in drawn.iter() if kind in (shape.get("class") or "").split()]


def judged(truth: list[str], predicted: list[str]) -> pl.DataFrame:
    confidence = np.linspace(0.5, 1.0, len(truth))
    return pl.DataFrame({"truth": truth, "predicted": predicted, "confidence": confidence})


@pytest.mark.parametrize("low", SIZES)
@pytest.mark.parametrize("high", SIZES)
def test_values_of_any_size_are_drawn(low: float, high: float) -> None:
    rows = [Row("a", low, interval=(min(low, high), max(low, high)), points=(low, high)), Row("b", high)]
    assert len(shapes(bars_figure(rows, LABELS), "bar")) == 2
    assert len(shapes(dot_rows_figure(rows, LABELS, reaching=(0.0,)), "point")) == 2
    assert len(shapes(lines_figure({"one": [low, high], "two": [high, low]}, Axes("x", "y"), **WORDS), "line")) == 4
    assert shapes(density_figure(np.array([low, high]), np.array([high, low]), unit="m"), "cell")


def test_bars_start_at_zero_and_point_to_their_side() -> None:
    left, right = shapes(bars_figure([Row("loss", -2.0), Row("gain", 4.0)], LABELS), "bar")
    zero = float(right.get("x") or 0)
    assert float(left.get("x") or 0) + float(left.get("width") or 0) == pytest.approx(zero, abs=0.02)
    assert float(right.get("width") or 0) == pytest.approx(2 * float(left.get("width") or 0), abs=0.05)


def test_a_long_name_leaves_room_for_its_value() -> None:
    figure = bars_figure([Row("n" * 200, 1.0, "a value")], LABELS)
    (name,) = shapes(figure, "name")
    assert len(name.text or "") < 60
    assert figure.rows == (("n" * 200, "a value"),)


def test_one_epoch_is_a_dot_and_many_are_a_line_with_a_tip_each() -> None:
    axes = Axes("epoch", "loss", (1, "best"))
    assert len(shapes(lines_figure({"training": [0.5]}, axes, **WORDS), "dot")) == 1
    assert len(shapes(lines_figure({"training": [0.5] * 100}, axes, **WORDS), "hover")) == 100
    assert not shapes(lines_figure({"training": [0.5] * 1000}, axes, **WORDS), "hover")


def test_every_test_record_is_in_a_cell_unless_it_is_far_off() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=2000)
    cells = shapes(density_figure(truth, truth, unit=""), "cell")
    told = [int((cell.findtext("title") or "").rpartition(": ")[2].split()[0].replace(",", "")) for cell in cells]
    assert sum(told) == 2000
    far = density_figure(np.append(truth, 1e6), np.append(truth, 0.0), unit="")
    assert "far ones are not drawn" in far.caption


def test_classes_are_counted_where_truth_and_prediction_meet() -> None:
    figure = confusion_figure(judged(["a", "a", "b", "b"], ["a", "b", "b", "b"]))
    assert figure.rows == (("a", "1", "1"), ("b", "0", "2"))
    assert "75 % of 4 test records" in figure.caption
    assert len(shapes(confusion_figure(judged(["a"], ["a"])), "cell")) == 1
    many = [str(number) for number in range(40)]
    assert len(shapes(confusion_figure(judged(many, many)), "cell")) == 12 * 12


def test_how_sure_is_held_against_how_often_right() -> None:
    figure = calibration_figure(judged(["a"] * 10, ["b"] * 5 + ["a"] * 5))
    assert figure is not None
    assert [row[1].split(" of ")[0] for row in figure.rows] == [
        "right 0 %",
        "right 0 %",
        "right 50 %",
        "right 100 %",
        "right 100 %",
    ]
    assert calibration_figure(judged([], [])) is None


def test_groups_are_drawn_for_the_columns_that_differ_most() -> None:
    groups = [
        GroupError(f"c{column}", f"g{part}", 20, 1.0 + column * part, 0.0) for column in range(6) for part in (0, 1)
    ]
    alone = GroupError("alone", "all", 20, 99.0, 0.0)
    drawn = group_figures([*groups, alone], numbers=True)
    assert [figure.title for figure in drawn] == [f"Errors by c{column}" for column in (5, 4, 3, 2)]
