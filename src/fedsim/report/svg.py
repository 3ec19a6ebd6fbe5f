"""SVG building blocks: scales, ticks, axes and shapes, styled by the page's style sheet.

Colours and fonts come from the page's style sheet by class name, so one drawing serves light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 410, 268
LEFT, RIGHT, TOP, BOTTOM = 66, 394, 12, 220
MAX_HOVER_COLUMNS = 160  # that a pointer can tell apart
MIN_SPAN = 1e-300  # below it a tenth is no longer a number of full precision
XY = tuple[float, float]


@dataclass(frozen=True)
class LinearScale:
    """A straight map from values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def x_scale(low: float, high: float) -> LinearScale:
    """Values from left to right over the plot."""
    return LinearScale(low, high, LEFT, RIGHT)


def y_scale(low: float, high: float, top: float = TOP) -> LinearScale:
    """Values from the bottom of the plot to its top."""
    return LinearScale(low, high, BOTTOM, top)


def tick_step(low: float, high: float, about: int = 5) -> float:
    """The round distance between ticks: 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def tick_values(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between the two ends.

    >>> tick_values(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = tick_step(low, high, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_round_tick(place, step) for place in range(first, last + 1)]


def nice_range(low: float, high: float, about: int = 5) -> tuple[float, float]:
    """The range rounded outwards to whole ticks, so that an axis ends on a number; never empty.

    >>> nice_range(0.03, 0.97)
    (0.0, 1.0)
    >>> nice_range(3.0, 3.0)
    (2.5, 3.5)
    """
    size = max(abs(low), abs(high))
    if high - low <= max(1e-12 * size, MIN_SPAN):
        # Half of it, where one unit would vanish beside it or dwarf it.
        margin = 0.5 if size <= MIN_SPAN or 1 <= size < 1e6 else size / 2
        return low - margin, high + margin
    step = tick_step(low, high, about)
    return _round_tick(math.floor(low / step + 1e-9), step), _round_tick(math.ceil(high / step - 1e-9), step)


def _round_tick(place: int, step: float) -> float:
    """The tick's value without the dust of the multiplication, to a thousandth of a step."""
    return round(place * step, 3 - math.floor(math.log10(step)))


def tick_label(value: float, step: float) -> str:
    """As many decimals as the step needs, thousands apart.

    >>> [tick_label(*pair) for pair in ((0.5, 0.05), (12000.0, 2000.0), (3e-6, 1e-6), (2e5, 1e4), (2e6, 1e6))]
    ['0.50', '12,000', '3e-06', '200 k', '2 M']
    """
    if value == 0:
        return "0"
    decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
    label = f"{value:,.{decimals}f}"
    if step < 1e-4:
        label = f"{value:.3g}"
    if abs(value) >= 1e5:
        label = f"{value / 1e6:g} M" if abs(value) >= 1e6 else f"{value / 1e3:g} k"
    return label.replace("-", "−", 1) if value < 0 else label


def element(name: str, content: str | Markup = "", /, **attributes: str | float) -> Markup:
    """One element; ``class_`` is written ``class``, an underscore inside a name a hyphen; everything is escaped.

    >>> element("text", "a < b", class_="label", x=1)
    Markup('<text class="label" x="1">a &lt; b</text>')
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{escape(content)}</{name}>")  # noqa: S704 - every part is escaped above


def join_markup(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def svg_path(points: Sequence[XY], *, closed: bool = False, **attributes: str | float) -> Markup:
    """A line through the points."""
    steps = "L".join(f"{x:g},{y:g}" for x, y in points)
    return element("path", d=f"M{steps}{'Z' if closed else ''}", **attributes)


def tooltip(content: str) -> Markup:
    """What a browser shows when the pointer rests on the parent."""
    return element("title", content)


def bottom_axis(scale: LinearScale, values: Sequence[float], labels: Sequence[str], title: str) -> Markup:
    """Tick labels under the plot and what they count."""
    texts = [
        element("text", label, class_="tick", x=scale(value), y=BOTTOM + 17, text_anchor="middle")
        for value, label in zip(values, labels, strict=True)
    ]
    marks = [svg_path([(scale(value), BOTTOM), (scale(value), BOTTOM + 4)], class_="axis") for value in values]
    base = svg_path([(LEFT, BOTTOM), (RIGHT, BOTTOM)], class_="axis")
    name = element("text", title, class_="axis-title", x=(LEFT + RIGHT) / 2, y=HEIGHT - 12, text_anchor="middle")
    return join_markup([base, *marks, *texts, name])


def left_axis(scale: LinearScale, title: str, about: int = 5) -> Markup:
    """Grid lines with their values, and what they count along the side."""
    step = tick_step(scale.low, scale.high, about)
    parts = []
    for value in tick_values(scale.low, scale.high, about):
        parts.append(svg_path([(LEFT, scale(value)), (RIGHT, scale(value))], class_="grid"))
        label = tick_label(value, step)
        parts.append(element("text", label, class_="tick", x=LEFT - 7, y=scale(value) + 4, text_anchor="end"))
    middle = (scale.start + scale.end) / 2
    turned = f"rotate(-90 10 {middle:g})"
    name = element("text", title, class_="axis-title", x=10, y=middle, text_anchor="middle", transform=turned)
    return join_markup([*parts, name])


def hover_columns(scale: LinearScale, words: Sequence[str], top: float) -> Markup:
    """An invisible column at every step, counted from 1, that tells its words; none where they would be too narrow."""
    width = (RIGHT - LEFT) / max(1, len(words) - 1)
    if len(words) > MAX_HOVER_COLUMNS:
        return Markup("")
    return join_markup(
        element(
            "rect",
            tooltip(said),
            class_="hover",
            x=round(max(LEFT, scale(step) - width / 2), 2),
            y=top,
            width=round(width, 2),
            height=BOTTOM - top,
        )
        for step, said in enumerate(words, start=1)
    )


def shade_legend(starts: Sequence[str], top: float) -> Markup:
    """What the shades of cells stand for: where each of them starts, from pale to strong."""
    left = LEFT - 46
    step = (RIGHT - left) / len(starts)
    boxes = [
        element("rect", class_=f"shade{shade}", x=left + step * shade, y=top, width=step - 4, height=8)
        for shade in range(len(starts))
    ]
    words = [
        element("text", f"≥ {start}", class_="tick", x=left + step * shade, y=top + 22)
        for shade, start in enumerate(starts)
    ]
    return join_markup([*boxes, *words])


def svg_image(title: str, description: str, content: Markup, height: float = HEIGHT) -> Markup:
    """The whole picture with its text alternative."""
    words = join_markup([element("title", title), element("desc", description)])
    return element("svg", words + content, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=title)
