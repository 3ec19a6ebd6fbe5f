"""The decision threshold between two classes shows recall and precision, and nothing about single records."""

from __future__ import annotations

import polars as pl
import pytest

from fedsim.report.model_charts import threshold_figure


def judged(truth, predicted, confidence):
    return pl.DataFrame({"truth": truth, "predicted": predicted, "confidence": confidence})


def test_the_marked_threshold_has_the_best_balance():
    truth = ["late"] * 4 + ["due"] * 8
    predicted = ["late"] * 3 + ["due"] + ["late"] + ["due"] * 7
    figure = threshold_figure(judged(truth, predicted, [0.9, 0.9, 0.9, 0.7, 0.6, *[0.95] * 7]))
    assert figure is not None
    shares = ["30 %", "41.7 %", "100 %", "80 %"]  # threshold, selected, recall, precision
    places = [figure.caption.index(share) for share in shares]
    assert places == sorted(places)


def test_shares_are_those_of_an_obvious_count():
    truth, chance = ["b"] * 5 + ["a"] * 7, [0.91, 0.81, 0.71, 0.31, 0.21, 0.61, 0.41, 0.31, 0.21, 0.21, 0.11, 0.11]
    predicted = ["b" if one >= 0.5 else "a" for one in chance]
    figure = threshold_figure(judged(truth, predicted, [max(one, 1 - one) for one in chance]))
    assert figure is not None
    at = {row[0]: row[1:] for row in figure.rows}
    assert at["20"] == ("1", "0.5", "0.833")


@pytest.mark.parametrize(
    "test",
    [
        judged(["a", "b", "c"] * 4, ["a"] * 12, [0.6] * 12),
        judged(["a"] * 10 + ["b"] * 2, ["a"] * 12, [0.6] * 12),
        judged(["a"] * 12, ["a"] * 12, [0.6] * 12),
        judged(["a", "b"] * 6, ["a"] * 11 + ["c"], [0.6] * 12),
    ],
    ids=["three classes", "too few of one", "one class", "a class that nobody is"],
)
def test_where_it_would_mislead_or_show_single_records_there_is_none(test):
    assert threshold_figure(test) is None


def test_a_name_of_a_class_is_inert():
    hostile = "</script><b>"
    figure = threshold_figure(judged([hostile] * 4 + ["due"] * 8, ["due"] * 12, [0.6] * 12))
    assert figure is not None
    assert "<b>" not in figure.picture
