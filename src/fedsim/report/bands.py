"""How a quantity changes with the rank of the partner: median, middle half and middle nine tenths of the records."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from fedsim.report.figure import Figure
from fedsim.report.svg import (
    LEFT,
    Scale,
    across,
    bottom_axis,
    drawing,
    element,
    hover_columns,
    join,
    left_axis,
    path,
    step_for,
    upward,
    widened,
)
from fedsim.report.words import measure
from fedsim.types import Floats

QUANTILES = ("5 %", "25 %", "median", "75 %", "95 %")
PLOT_TOP = 34


def band_figure(quantiles: Floats, *, title: str, caption: str, axis: str) -> Figure:
    """``quantiles`` has one row per rank and the columns of ``QUANTILES``."""
    ranks = len(quantiles)
    # A single rank has no width to draw a band over, so it is drawn as if it stood twice.
    drawn = quantiles if ranks > 1 else np.repeat(quantiles, 2, axis=0)
    places = np.arange(1.0, ranks + 1) if ranks > 1 else np.array([0.7, 1.3])
    x = across(1, ranks) if ranks > 1 else across(0.5, 1.5)
    y = upward(*widened(float(quantiles.min()), float(quantiles.max())), top=PLOT_TOP)
    shown = rank_ticks(ranks)
    parts = [
        left_axis(y, axis),
        _band(drawn[:, 0], drawn[:, 4], places, (x, y), "band outer"),
        _band(drawn[:, 1], drawn[:, 3], places, (x, y), "band inner"),
        path([(x(place), y(value)) for place, value in zip(places, drawn[:, 2], strict=True)], class_="line"),
        bottom_axis(x, shown, [f"{rank:,}" for rank in shown], "rank of the partner (1 = most similar)"),
        hover_columns(x, _tips(quantiles), PLOT_TOP),
        _legend(),
    ]
    picture = drawing(title, _described(quantiles), join(parts))
    return Figure(title, caption, picture, ("rank", *QUANTILES), _rows(quantiles))


def rank_ticks(ranks: int) -> list[int]:
    """1, the round ranks, and the last one where it does not crowd its neighbour.

    >>> rank_ticks(50), rank_ticks(7), rank_ticks(23)
    ([1, 10, 20, 30, 40, 50], [1, 2, 3, 4, 5, 6, 7], [1, 5, 10, 15, 20, 23])
    """
    step = max(1, math.ceil(step_for(0, ranks, about=7))) if ranks > 1 else 1
    shown = [1, *(rank for rank in range(step, ranks + 1, step) if rank > 1)]
    return [*shown, ranks] if ranks - shown[-1] > 0.5 * step else shown


def _band(low: Floats, high: Floats, places: Floats, scales: tuple[Scale, Scale], kind: str) -> Markup:
    x, y = scales
    upper = [(x(place), y(value)) for place, value in zip(places, high, strict=True)]
    lower = [(x(place), y(value)) for place, value in zip(places, low, strict=True)]
    return path([*upper, *reversed(lower)], closed=True, class_=kind)


def _tips(quantiles: Floats) -> list[str]:
    return [
        f"rank {rank}: median {measure(row[2])}, half between {measure(row[1])} and {measure(row[3])}"
        for rank, row in enumerate(quantiles, start=1)
    ]


def _legend() -> Markup:
    """Where each kind of band is named, above the plot."""
    entries = [("line", "median", LEFT), ("inner", "middle half", LEFT + 80), ("outer", "middle 90 %", LEFT + 194)]
    parts = []
    for kind, word, place in entries:
        swatch = element("rect", class_=f"swatch {kind}", x=place, y=8, width=16, height=10, rx=2)
        parts.append(swatch + element("text", word, class_="tick", x=place + 22, y=17))
    return join(parts)


def _rows(quantiles: Floats) -> tuple[tuple[str, ...], ...]:
    chosen = rank_ticks(len(quantiles))
    return tuple((f"{rank:,}", *(measure(value) for value in quantiles[rank - 1])) for rank in chosen)


def _described(quantiles: Floats) -> str:
    first, last = quantiles[0, 2], quantiles[-1, 2]
    return f"The median goes from {measure(first)} at rank 1 to {measure(last)} at rank {len(quantiles):,}."
