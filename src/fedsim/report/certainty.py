"""Whether a classifier is as sure as it is right, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from fedsim.party.run_record import CONFIDENCE, PREDICTED, TRUTH
from fedsim.report.words import measure, percent

LARGE = 0.1  # of a gap between what a model says and how often it is right
DEVIATIONS = 2.0  # beyond which a gap is no chance


def certainty_words(test: pl.DataFrame, log_loss: float | None) -> Iterator[str]:
    """Warnings; none where its probabilities are of use. ``log_loss`` is that of these test records."""
    test = test.filter(pl.col(CONFIDENCE).is_finite())
    if not len(test):
        return
    says, right = float(test[CONFIDENCE].to_numpy().mean()), float((test[TRUTH] == test[PREDICTED]).to_numpy().mean())
    chance = DEVIATIONS * math.sqrt(right * (1.0 - right) / len(test))
    if says - right > max(LARGE, chance):
        yield (
            f"The model is too sure of itself: on average it says {percent(says)}, and is right in {percent(right)} of "
            "the test records. Do not take its probabilities for chances; fewer epochs may help."
        )
    blind = shares_log_loss(test[TRUTH])
    if log_loss is not None and log_loss > blind:
        yield (
            f"Its log loss, {measure(log_loss)}, is worse than the {measure(blind)} of one who always names the shares "
            "of the classes: its probabilities say less than nothing, whatever its classes say."
        )


def shares_log_loss(truth: pl.Series) -> float:
    """The log loss of naming for every record how common each class is among them.

    >>> round(shares_log_loss(pl.Series(["a", "b"] * 50)), 3)
    0.693
    """
    shares = truth.value_counts()["count"].to_numpy() / len(truth)
    return float(-(shares * np.log(shares)).sum())
