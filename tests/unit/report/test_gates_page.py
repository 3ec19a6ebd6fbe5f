"""The page about the gates shows what they learnt and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedsim.report.model_charts import importance_figure, weight_figure, write_gates_page
from fedsim.splitnn.gates import Neighbours
from fedsim.training import Config, PrimaryData, SecondaryData, train
from fedsim.training.explain import MergeImportance, WeightCurve, merge_importance, weight_curves
from fedsim.types import Split


def test_a_trained_model_shows_its_weight_curve_and_its_heat_map(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    partner, similarity = rng.integers(0, 30, (60, 12)), rng.normal(size=(60, 12))
    features = rng.normal(size=(60, 4))
    split = Split(np.arange(40), np.arange(40, 50), np.arange(50, 60))
    secondary = SecondaryData(rng.normal(size=(30, 2)), partner, similarity, name="rentals")
    model = train(PrimaryData(features, features[:, 0]), [secondary], split, Config(epochs=1, device="cpu")).model
    importances = merge_importance(model, features, [Neighbours(partner, similarity)])
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


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([0.1, 0.4, 0.9], "rises:"),
        ([0.9, 0.4, 0.1], "falls:"),
        ([0.1, 0.9, 0.1], "largest at similarity 0."),
        ([0.5, 0.5, 0.5], "is flat"),
        ([0.1, 0.0, -0.4], "Negative weights"),
    ],
)
def test_the_caption_describes_the_curve(weights: list[float], said: str) -> None:
    assert said in weight_figure(WeightCurve("a", np.array([-3.0, 0.0, 3.0]), np.array(weights))).caption


def test_a_flat_curve_is_drawn() -> None:
    assert "<path" in str(weight_figure(WeightCurve("a", np.linspace(-3, 3, 5), np.full(5, 0.5))).picture)
