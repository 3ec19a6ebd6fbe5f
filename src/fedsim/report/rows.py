"""Names of any length, each with a value on a line of its own: lying bars from zero, or dots with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedsim.report.figure import Figure
from fedsim.report.svg import RIGHT, TOP, Scale, drawing, element, join, path, step_for, tick_label, ticks, tip, widened
from fedsim.report.words import measure

STEP, START, INSET = 40, 16, 5  # names stand a little off the line at the left
TICKS = 4
LETTER, STRONG_LETTER, FIGURE_LETTER = 6.8, 7.5, 8.0  # about the widths, on a phone
GAP = 8.0
Ends = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """A value with its words; ``interval`` around it, single ``points`` behind it, ``strong`` where it stands out."""

    name: str
    value: float
    words: str = ""
    interval: Ends | None = None
    points: tuple[float, ...] = ()
    strong: bool = False

    @property
    def all_values(self) -> list[float]:
        """Everything that the axis must reach."""
        return [self.value, *(self.interval or ()), *self.points]

    @property
    def said(self) -> str:
        """The value in words."""
        return self.words or measure(self.value)


@dataclass(frozen=True)
class Labels:
    """What a figure of rows says: title, caption, the axis, and the heads of its table."""

    title: str
    caption: str
    axis: str
    head: tuple[str, str]


def bars_figure(rows: Sequence[Row], labels: Labels) -> Figure:
    """One lying bar per row, from zero."""
    low, high = widened(min(0.0, *(row.value for row in rows)), max(0.0, *(row.value for row in rows)), TICKS)
    x = Scale(low, high, START, RIGHT)
    return _figure(rows, labels, x, [_bar(row, x, _top(place)) for place, row in enumerate(rows)])


def dot_rows_figure(rows: Sequence[Row], labels: Labels, reaching: Sequence[float] = ()) -> Figure:
    """One dot per row with its interval and its single points; the axis shows the values ``reaching`` as well."""
    values = [*reaching, *(value for row in rows for value in row.all_values)]
    x = Scale(*widened(min(values), max(values), TICKS), START, RIGHT)
    return _figure(rows, labels, x, [_dot(row, x, _top(place)) for place, row in enumerate(rows)])


def _figure(rows: Sequence[Row], labels: Labels, x: Scale, drawn: list[Markup]) -> Figure:
    bottom, step = TOP + STEP * len(rows) + 4, step_for(x.low, x.high, TICKS)
    shown = ticks(x.low, x.high, TICKS)
    grid = [path([(x(value), TOP), (x(value), bottom)], class_="grid") for value in shown]
    zero = [path([(x(0), TOP), (x(0), bottom)], class_="axis")] if x.low <= 0.0 <= x.high else []
    texts = [
        element(
            "text", tick_label(value, step), class_="tick", x=x(value), y=bottom + 15, text_anchor=_anchor(value, x)
        )
        for value in shown
    ]
    title = element(
        "text", labels.axis, class_="axis-title", x=(START + RIGHT) / 2, y=bottom + 34, text_anchor="middle"
    )
    said = "; ".join(f"{row.name} {row.said}" for row in rows)
    picture = drawing(labels.title, said, join([*grid, *zero, *drawn, *texts, title]), bottom + 44)
    return Figure(labels.title, labels.caption, picture, labels.head, tuple((row.name, row.said) for row in rows))


def _anchor(value: float, x: Scale) -> str:
    """Labels at the ends stay inside the drawing."""
    if x(value) <= x.start + 1:
        return "start"
    return "end" if x(value) >= x.end - 1 else "middle"


def _top(place: int) -> float:
    return TOP + STEP * place


def _names(row: Row, top: float) -> list[Markup]:
    left = RIGHT - START - INSET - GAP - FIGURE_LETTER * len(row.said)
    room = max(8, int(left / (STRONG_LETTER if row.strong else LETTER)))
    short = row.name if len(row.name) <= room else f"{row.name[: room - 1]}…"
    return [
        element("text", short, class_="name strong" if row.strong else "name", x=START + INSET, y=top + 14),
        element("text", row.said, class_="figure", x=RIGHT, y=top + 14, text_anchor="end"),
    ]


def _bar(row: Row, x: Scale, top: float) -> Markup:
    left, right = sorted((x(0), x(row.value)))
    bar = element(
        "rect",
        tip(f"{row.name}: {row.said}"),
        class_="bar strong" if row.strong else "bar",
        x=left,
        y=top + 20,
        width=round(max(1.0, right - left), 2),
        height=12,
        rx=2,
    )
    return join([*_names(row, top), bar])


def _dot(row: Row, x: Scale, top: float) -> Markup:
    middle = top + 26
    parts = [*_names(row, top), path([(x.start, middle), (x.end, middle)], class_="grid")]
    if row.interval:
        ends = [(x(value), middle) for value in row.interval]
        parts.append(path(ends, class_="line"))
        parts += [path([(end, middle - 4), (end, middle + 4)], class_="line") for end, _ in ends]
    parts += [
        element("circle", tip(measure(value)), class_="point", cx=x(value), cy=middle, r=2.6) for value in row.points
    ]
    kind = "bar strong" if row.strong else "bar"
    parts.append(element("circle", tip(f"{row.name}: {row.said}"), class_=kind, cx=x(row.value), cy=middle, r=5))
    return join(parts)
