"""How several quantities of the same records are distributed: an outline each over common bins.

A bin of fewer than ``FEWEST`` records is drawn empty: a page is passed on, and nobody may find a record in it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from fedsim.report.bars import bin_edges
from fedsim.report.figure import Figure
from fedsim.report.lines import KINDS, PLOT_TOP, legend
from fedsim.report.places import FEWEST
from fedsim.report.svg import (
    LEFT,
    RIGHT,
    Scale,
    across,
    bottom_axis,
    drawing,
    hover_columns,
    join,
    left_axis,
    path,
    step_for,
    tick_label,
    ticks,
    upward,
    widened,
)
from fedsim.report.words import count, measure
from fedsim.types import Floats, Integers


def outlines_figure(quantities: Mapping[str, Floats], *, title: str, caption: str, axis: str) -> Figure:
    """At most three quantities, one value per record each."""
    edges = bin_edges(np.concatenate(list(quantities.values())))
    counts = {name: _counted(values, edges) for name, values in quantities.items()}
    most = max(1.0, *(float(counted.max()) for counted in counts.values()))
    x, y = across(edges[0], edges[-1]), upward(*widened(0.0, most), top=PLOT_TOP)
    shown, step = ticks(x.low, x.high), step_for(x.low, x.high)
    outlines = [
        path(_outline(edges, counted, x, y), class_=f"line {kind}")
        for counted, kind in zip(counts.values(), KINDS, strict=False)
    ]
    columns = hover_columns(Scale(0.5, len(edges) - 0.5, LEFT, RIGHT), _tips(edges, counts), PLOT_TOP)
    labels = bottom_axis(x, shown, [tick_label(value, step) for value in shown], axis)
    parts = [left_axis(y, "records"), *outlines, labels, columns, legend(counts)]
    medians = {name: float(np.median(values)) for name, values in quantities.items()}
    said = "; ".join(f"{name}: half of the records lie below {measure(middle)}" for name, middle in medians.items())
    rows = tuple(
        (name, *(measure(float(part)) for part in np.quantile(values, [0.05, 0.5, 0.95])))
        for name, values in quantities.items()
    )
    return Figure(title, caption, drawing(title, f"{said}.", join(parts)), ("", "5 %", "median", "95 %"), rows)


def _counted(values: Floats, edges: Floats) -> Integers:
    counts = np.histogram(values, edges)[0]
    return np.where(counts >= FEWEST, counts, 0)


def _outline(edges: Floats, counts: Integers, x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Up, along and down every bin, from the ground to the ground, between the first bin and the last that hold any."""
    full = np.flatnonzero(counts)
    first, last = (int(full[0]), int(full[-1]) + 1) if len(full) else (0, 1)
    along = np.repeat(edges[first : last + 1], 2)
    up = np.concatenate([[0], np.repeat(counts[first:last], 2), [0]])
    return [(x(place), y(value)) for place, value in zip(along, up, strict=True)]


def _tips(edges: Floats, counts: Mapping[str, Integers]) -> Sequence[str]:
    return [
        f"{measure(low)} to {measure(high)}: "
        + ", ".join(f"{name} {count(int(counted[place]))}" for name, counted in counts.items())
        for place, (low, high) in enumerate(pairwise(edges))
    ]
