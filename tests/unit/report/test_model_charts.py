"""The page about the gates shows what they learnt and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedsim.report.formatting import format_percent
from fedsim.report.model_charts import importance_figure, judge_weights, weight_figure, write_gates_page
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
    write_gates_page(weight_curves(model), importances, tmp_path / "gates.html")
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


@pytest.mark.parametrize(
    ("nearest", "verdict_text"), [(5.0, "counts more than"), (1.0, "as much as"), (0.1, "less than")]
)
def test_the_verdict_adds_what_all_gates_make_of_the_most_similar_records(nearest: float, verdict_text: str) -> None:
    values = np.ones((10, 2))
    values[-1] = nearest
    verdict = judge_weights(WeightCurve("a", CURVE, 0.5 - CURVE / 10), PAIRS, MergeImportance("a", values))
    assert verdict_text in verdict


def test_a_flat_curve_is_drawn() -> None:
    assert "<path" in str(weight_figure(WeightCurve("a", np.linspace(-3, 3, 5), np.full(5, 0.5))).picture)
