"""For two classes: what a threshold on the chance of the rarer one finds, and how much of that is right."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.party.run_record import CONFIDENCE, PREDICTED, TRUTH
from fedsim.report.figure import Figure
from fedsim.report.lines import Axes, lines_figure
from fedsim.report.places import FEWEST
from fedsim.report.words import percent
from fedsim.types import Floats

THRESHOLDS, HALF = range(1, 100), 50  # per cent
TWO = 2


def threshold_figure(test: pl.DataFrame) -> Figure | None:
    """Three shares over the threshold; none where there are not two classes with enough test records of each."""
    test = test.filter(pl.col(CONFIDENCE).is_finite())
    counts = Counter(test[TRUTH].to_list())
    if len(counts) != TWO or min(counts.values()) < FEWEST or not set(test[PREDICTED]) <= set(counts):
        return None
    rarer, sure = min(counts, key=lambda name: (counts[name], name)), test[CONFIDENCE].to_numpy()
    chance = np.where((test[PREDICTED] == rarer).to_numpy(), sure, 1.0 - sure)
    shares = _shares(chance, (test[TRUTH] == rarer).to_numpy())
    best = max(THRESHOLDS, key=lambda percents: (_balance(*shares[percents - 1][:2]), -abs(percents - HALF)))
    found, right, called = shares[best - 1]
    caption = (
        f"Whoever calls a record '{rarer}' when its chance is at least {best} % calls {percent(called)} of the test "
        f"records so, finds {percent(found)} of all that are, and is right in {percent(right)}: the best balance of "
        "both (F1). What a miss and a false alarm cost decides where yours should be."
    )
    lines = dict(zip(("found", "right", "called"), map(list, zip(*shares, strict=True)), strict=True))
    axes = Axes(f"threshold on the chance of '{rarer}', %", "share", (best, f"{best} %"))
    return lines_figure(lines, axes, title="Where to draw the line", caption=caption)


def _shares(chance: Floats, true: NDArray[np.bool_]) -> list[tuple[float, float, float]]:
    """Found, right and called at every threshold; right is no number where too few are called."""
    shares = []
    for threshold in THRESHOLDS:
        called = chance >= threshold / 100
        right = float(true[called].mean()) if called.sum() >= FEWEST else math.nan
        shares.append((float(called[true].mean()), right, float(called.mean())))
    return shares


def _balance(found: float, right: float) -> float:
    """The harmonic mean of both (F1)."""
    return 2 * found * right / (found + right) if found * right > 0 else 0.0
