"""How many records or candidates fall where: histograms and bars.

A bin of fewer than ``FEWEST`` records is left out: a page is passed on, and one record's value must not be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from fedsim.report.figure import Figure
from fedsim.report.places import FEWEST
from fedsim.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Scale,
    across,
    bottom_axis,
    drawing,
    element,
    join,
    left_axis,
    path,
    step_for,
    tick_label,
    ticks,
    tip,
    upward,
    widened,
)
from fedsim.report.words import count, many, measure, percent
from fedsim.types import Floats, Integers

MOST_BINS = 40
MOST_WHOLE = 2.0**51  # beyond it halves are no longer numbers
MANY = 500
FAR = 1.5
HEADROOM = 1.12
FEW = 0.2  # of the records, that lie in bins too small to be shown
LETTER, GAP = 7.1, 6  # of a label on an axis


def histogram_figure(values: Floats, *, title: str, caption: str, axis: str) -> Figure:
    """Records per bin, with the median marked; small bins and a far tail are left out and counted in the caption."""
    finite = values[np.isfinite(values)]
    counts, edges = _binned(finite)
    most, about = _room(HEADROOM * counts.max())
    x, y = across(edges[0], edges[-1]), upward(0.0, most)
    bins = [(low, high, int(n)) for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True)]
    bars = [
        _bar(x(low) + 0.5, x(high) - 0.5, y(n), f"{measure(low)} to {measure(high)}: {many(n, 'record')}")
        for low, high, n in bins
    ]
    shown, step = ticks(edges[0], edges[-1]), step_for(edges[0], edges[-1])
    parts = [left_axis(y, "records", about), *bars]
    said = "There are too few records to be shown."
    if len(finite) >= FEWEST:
        median = float(np.median(finite))
        said = f"Half of the records lie below {measure(median)}."
        parts += [_marker(x(median), f"median {measure(median)}")] if edges[0] <= median <= edges[-1] else []
    parts.append(bottom_axis(x, shown, [tick_label(value, step) for value in shown], axis))
    left = len(values) - int(counts.sum())
    tail = f" Not drawn: {many(left, 'record')} far off or in bins of fewer than {FEWEST}." if left else ""
    return Figure(
        title,
        caption + tail,
        drawing(title, said + tail, join(parts)),
        ("from", "to", "records"),
        tuple((measure(low), measure(high), count(n)) for low, high, n in bins if n),
    )


def _binned(values: Floats) -> tuple[Integers, Floats]:
    """Records per bin, small bins emptied and cut off at both ends; bins widen until few records are left out."""
    if len(values) < FEWEST:
        return np.zeros(1, dtype=np.int64), np.array([0.0, 1.0])
    edges = bin_edges(values)
    while True:
        counts = np.histogram(values, edges)[0]
        kept = np.where(counts >= FEWEST, counts, 0)
        if len(kept) == 1 or kept.sum() >= (1.0 - FEW) * len(values):
            break
        even = edges if len(kept) % 2 == 0 else np.append(edges, 2 * edges[-1] - edges[-2])
        edges = even[::2]
    full = np.flatnonzero(kept)
    first, last = (int(full[0]), int(full[-1]) + 1) if len(full) else (0, 1)
    return kept[first:last], edges[first : last + 1]


def bin_edges(values: Floats) -> Floats:
    """Round edges around the values; a far tail is left out, whole numbers get a bin each.

    >>> bin_edges(np.array([2.0, 3.0, 3.0, 4.0])).tolist()
    [1.5, 2.5, 3.5, 4.5]
    """
    low, high = float(values.min()), float(values.max())
    usual = float(np.quantile(values, 0.99))
    high = usual if usual > low and high - low > FAR * (usual - low) else high
    if high - low <= MOST_BINS and high < MOST_WHOLE and (values == values.round()).all():
        return np.arange(np.floor(low), np.ceil(high) + 2, dtype=np.float64) - 0.5
    low, high = widened(low, high)
    step = step_for(low, high) / (10 if len(values) >= MANY else 5)
    return low + step * np.arange(np.ceil((high - low) / step - 1e-9) + 1, dtype=np.float64)


def reuse_figure(used: Integers, *, title: str, caption: str) -> Figure:
    """Candidates by how many records chose them; the steps double, so that few busy ones stay visible."""
    bounds = doubling(int(used.max()))
    names = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in bounds]
    counts = [int(((used >= low) & (used <= high)).sum()) for low, high in bounds]
    most, about = _room(max(counts))
    x, y = across(-0.5, len(bounds) - 0.5), upward(0.0, most)
    bars = [
        _bar(x(place - 0.42), x(place + 0.42), y(number), f"{name} records: {many(number, 'candidate')}")
        for place, (name, number) in enumerate(zip(names, counts, strict=True))
    ]
    shown = _apart(names, x)
    labels = bottom_axis(x, shown, [names[place] for place in shown], "records that list the candidate")
    described = f"{count(counts[0])} of {count(len(used))} candidates are used by no record."
    return Figure(
        title,
        caption,
        drawing(title, described, join([left_axis(y, "candidates", about), *bars, labels])),
        ("records", "candidates", "share"),
        tuple((name, count(number), percent(number / len(used))) for name, number in zip(names, counts, strict=True)),
    )


def _apart(names: Sequence[str], x: Scale) -> list[int]:
    """Every place, or every second or third one: as many as leave their labels apart."""
    for step in range(1, len(names)):
        shown = list(range(0, len(names), step))
        needed = [LETTER * (len(names[a]) + len(names[b])) / 2 + GAP for a, b in pairwise(shown)]
        if all(x(b) - x(a) >= room for (a, b), room in zip(pairwise(shown), needed, strict=True)):
            return shown
    return [0]


def doubling(most: int) -> list[tuple[int, int]]:
    """0, 1, then ranges twice as wide each time, until the largest is inside.

    >>> doubling(9)
    [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)]
    """
    bounds = [(0, 0)]
    while bounds[-1][1] < most:
        start = bounds[-1][1] + 1
        bounds.append((start, 2 * start - 1))
    return bounds


def compare_figure(values: Mapping[str, float], *, title: str, caption: str, axis: str) -> Figure:
    """One lying bar per name, from zero."""
    low, high = widened(min(0.0, *values.values()), max(0.0, *values.values()), about=4)
    x = Scale(low, high, LEFT + 16, RIGHT - 34)
    step, bottom = 46, TOP + 46 * len(values)
    parts = [path([(x(value), TOP), (x(value), bottom)], class_="grid") for value in ticks(low, high, 4)]
    for place, (name, value) in enumerate(values.items()):
        parts.append(_lying_bar(name, value, x, TOP + step * place + step / 2))
    parts.append(path([(x(0), TOP), (x(0), bottom)], class_="axis"))
    parts.append(_low_axis(x, ticks(low, high, 4), bottom, axis))
    described = ", ".join(f"{name} {measure(value)}" for name, value in values.items())
    rows = tuple((name, measure(value)) for name, value in values.items())
    return Figure(title, caption, drawing(title, described, join(parts), bottom + 48), ("compared with", axis), rows)


def _room(most: float) -> tuple[float, int]:
    """The upper end of an axis of counts and how many ticks it takes without splitting a whole."""
    about = max(1, min(5, int(most)))
    return widened(0.0, max(1.0, most), about)[1], about


def _lying_bar(name: str, value: float, x: Scale, middle: float) -> Markup:
    left, right = sorted((x(0), x(value)))
    bar = element(
        "rect",
        tip(f"{name}: {measure(value)}"),
        class_="bar",
        x=left,
        y=middle - 11,
        width=round(max(1.0, right - left), 2),
        height=22,
        rx=2,
    )
    label = element("text", name, class_="name", x=x.start - 8, y=middle + 4, text_anchor="end")
    figure = element("text", measure(value), class_="figure", x=right + 6, y=middle + 4)
    return join([bar, label, figure])


def _low_axis(x: Scale, values: Sequence[float], bottom: float, title: str) -> Markup:
    step = step_for(x.low, x.high, 4)
    texts = [
        element("text", tick_label(value, step), class_="tick", x=x(value), y=bottom + 17, text_anchor="middle")
        for value in values
    ]
    name = element("text", title, class_="axis-title", x=(x.start + x.end) / 2, y=bottom + 38, text_anchor="middle")
    return join([*texts, name])


def _bar(left: float, right: float, top: float, words: str) -> Markup:
    width, height = round(max(0.5, right - left), 2), round(BOTTOM - top, 2)
    return element("rect", tip(words), class_="bar", x=left, y=top, width=width, height=height)


def _marker(place: float, words: str) -> Markup:
    right = place > (LEFT + RIGHT) / 2
    line = path([(place, TOP), (place, BOTTOM)], class_="marker")
    anchor, shift = ("end", -6) if right else ("start", 6)
    return line + element("text", words, class_="figure", x=place + shift, y=TOP + 11, text_anchor=anchor)
