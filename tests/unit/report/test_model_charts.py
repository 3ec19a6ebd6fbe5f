"""The page about the gates shows what they learnt and nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from chart_fixtures import cell_records, drawn
from fedsim.report.formatting import format_percent
from fedsim.report.model_charts import (
    calibration_figure,
    calibration_warnings,
    confusion_table,
    density_figure,
    group_figures,
    importance_figure,
    judge_weights,
    plot_gates,
    weight_figure,
)
from fedsim.runs.record import GroupError
from fedsim.training import Config, PrimaryData, SecondaryData, train
from fedsim.training.explain import MergeImportance, WeightCurve, merge_importance, weight_curves
from fedsim.types import Floats, Links, Split


def test_a_trained_model_shows_its_weight_curve_and_its_heat_map(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    partner, similarity = rng.integers(0, 30, (60, 12)), rng.normal(size=(60, 12))
    features = rng.normal(size=(60, 4))
    split = Split(np.arange(40), np.arange(40, 50), np.arange(50, 60))
    secondary = SecondaryData(rng.normal(size=(30, 2)), partner, similarity, name="rentals")
    model = train(PrimaryData(features, features[:, 0]), [secondary], split, Config(epochs=1, device="cpu")).model
    importances = merge_importance(model, features, [Links(partner, similarity)])
    plot_gates(weight_curves(model), importances).save(tmp_path / "gates.html")
    page = (tmp_path / "gates.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "Weight by similarity: rentals" in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_heat_map_puts_the_most_similar_partner_first() -> None:
    values = np.zeros((10, 2))
    values[-1] = 5.0  # row 0 is the least similar
    figure = importance_figure(MergeImportance("schools", values))
    assert figure.rows[0] == ("1", "100.0 %")


def test_names_that_look_like_markup_stay_inert() -> None:
    curve = WeightCurve("</script><b>left", np.linspace(-3, 3, 5), np.linspace(0, 1, 5))
    figure = weight_figure(curve)
    assert "<b>" not in str(figure.picture)
    HTMLParser().feed(str(figure.picture))


CURVE = np.linspace(-3.0, 3.0, 61)
PAIRS = np.random.default_rng(2).normal(size=1000)


@pytest.mark.parametrize(
    ("weights", "verdict_text"),
    [
        (0.5 + CURVE / 10, "rises with similarity for 100 % of the pairs"),
        (0.5 - CURVE / 10, "falls with similarity for 100 % of the pairs"),
        (1 - (CURVE + 0.6) ** 2 / 20, "it is largest at similarity -0.6"),
        (0.5 + CURVE / 1000, "is flat"),
    ],
)
def test_the_caption_says_how_the_weight_changes_over_the_pairs(weights: Floats, verdict_text: str) -> None:
    assert verdict_text in weight_figure(WeightCurve("a", CURVE, weights), PAIRS).caption


def test_the_verdict_is_about_the_pairs_and_not_about_the_ends_of_the_curve() -> None:
    curve = WeightCurve("a", CURVE, np.where(CURVE < 2.0, 0.8 - CURVE / 10, CURVE))  # rises where no pair is
    shares = {at: judge_weights(curve, PAIRS + at) for at in (-1.0, 0.0)}
    for at, verdict in shares.items():
        below = np.mean(PAIRS + at < 1.9)
        assert f"falls with similarity for {format_percent(float(below))} of the pairs" in verdict


def test_a_flat_curve_is_drawn() -> None:
    assert "<path" in str(weight_figure(WeightCurve("a", np.linspace(-3, 3, 5), np.full(5, 0.5))).picture)


def judged(truth: list[str], predicted: list[str]) -> pl.DataFrame:
    confidence = np.linspace(0.5, 1.0, len(truth))
    return pl.DataFrame({"truth": truth, "predicted": predicted, "confidence": confidence})


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


def test_classes_are_counted_where_truth_and_prediction_meet() -> None:
    table = confusion_table(judged(["a"] * 4 + ["b"] * 4, ["a"] * 3 + ["b"] * 5))
    assert table is not None
    assert table.rows == (("a", "3", "fewer than 3"), ("b", "0", "4"))
    assert "87.5 % of 8 test records" in table.note
    assert confusion_table(judged(["a"], ["a"])) is None
    many = [str(number) for number in range(40)] * 3
    crowded = confusion_table(judged(many, many))
    assert crowded is not None
    assert [len(row) for row in crowded.rows] == [1 + 12] * 12


def test_calibration_compares_confidence_with_accuracy() -> None:
    figure = drawn(calibration_figure(judged(["a"] * 20, ["b"] * 10 + ["a"] * 10)))
    assert [row[1] for row in figure.rows][::4] == ["0 % of 4 correct", "100 % of 4 correct"]
    assert calibration_figure(judged(["a"] * 2, ["a"] * 2)) is None


def test_groups_are_drawn_for_the_columns_that_differ_most() -> None:
    groups = [
        GroupError(f"c{column}", f"g{part}", 20, 1.0 + column * part, 0.0) for column in range(6) for part in (0, 1)
    ]
    alone = GroupError("alone", "all", 20, 99.0, 0.0)
    found = group_figures([*groups, alone], numbers=True)
    assert [figure.title for figure in found] == [f"Error by c{column}" for column in (5, 4, 3, 2)]


def test_only_a_group_that_certainly_differs_is_named() -> None:
    apart = [GroupError("town", name, 50, error, 0.0, error - 1, error + 1) for name, error in (("a", 3.0), ("b", 9.0))]
    alike = [GroupError("town", name, 50, error, 0.0, error - 4, error + 4) for name, error in (("a", 3.0), ("b", 9.0))]
    unknown = [GroupError("town", name, 50, error, 0.0) for name, error in (("a", 3.0), ("b", 9.0))]
    certain, chance, old = (group_figures(groups, numbers=True)[0].caption for groups in (apart, alike, unknown))
    assert "where town is b" in certain
    assert "may be chance" in chance
    assert "may be chance" in old
