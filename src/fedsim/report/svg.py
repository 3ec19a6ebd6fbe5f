"""Small pieces of SVG: scales, ticks, axes and shapes.

Colours and fonts come from the page's style sheet by class name, so one drawing serves light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 410, 268
LEFT, RIGHT, TOP, BOTTOM = 66, 394, 12, 220
MOST_COLUMNS = 160  # that a pointer can tell apart
SMALLEST = 1e-300  # below it a tenth is no longer a number of full precision
Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """A straight map from values to places on the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def across(low: float, high: float) -> Scale:
    """Values from left to right over the plot."""
    return Scale(low, high, LEFT, RIGHT)


def upward(low: float, high: float, top: float = TOP) -> Scale:
    """Values from the bottom of the plot to its top."""
    return Scale(low, high, BOTTOM, top)


def step_for(low: float, high: float, about: int = 5) -> float:
    """The round distance between ticks: 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between the two ends.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = step_for(low, high, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_on_tick(place, step) for place in range(first, last + 1)]


def widened(low: float, high: float, about: int = 5) -> tuple[float, float]:
    """The range rounded outwards to whole ticks, so that an axis ends on a number; never empty.

    >>> widened(0.03, 0.97)
    (0.0, 1.0)
    >>> widened(3.0, 3.0)
    (2.5, 3.5)
    """
    size = max(abs(low), abs(high))
    if high - low <= max(1e-12 * size, SMALLEST):
        # Half of it, where one unit would vanish beside it or dwarf it.
        margin = 0.5 if size <= SMALLEST or 1 <= size < 1e6 else size / 2
        return low - margin, high + margin
    step = step_for(low, high, about)
    return _on_tick(math.floor(low / step + 1e-9), step), _on_tick(math.ceil(high / step - 1e-9), step)


def _on_tick(place: int, step: float) -> float:
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


def join(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def path(points: Sequence[Point], *, closed: bool = False, **attributes: str | float) -> Markup:
    """A line through the points."""
    steps = "L".join(f"{x:g},{y:g}" for x, y in points)
    return element("path", d=f"M{steps}{'Z' if closed else ''}", **attributes)


def tip(content: str) -> Markup:
    """What a browser shows when the pointer rests on the parent."""
    return element("title", content)


def bottom_axis(scale: Scale, values: Sequence[float], labels: Sequence[str], title: str) -> Markup:
    """Tick labels under the plot and what they count."""
    texts = [
        element("text", label, class_="tick", x=scale(value), y=BOTTOM + 17, text_anchor="middle")
        for value, label in zip(values, labels, strict=True)
    ]
    marks = [path([(scale(value), BOTTOM), (scale(value), BOTTOM + 4)], class_="axis") for value in values]
    base = path([(LEFT, BOTTOM), (RIGHT, BOTTOM)], class_="axis")
    name = element("text", title, class_="axis-title", x=(LEFT + RIGHT) / 2, y=HEIGHT - 12, text_anchor="middle")
    return join([base, *marks, *texts, name])


def left_axis(scale: Scale, title: str, about: int = 5) -> Markup:
    """Grid lines with their values, and what they count along the side."""
    step = step_for(scale.low, scale.high, about)
    parts = []
    for value in ticks(scale.low, scale.high, about):
        parts.append(path([(LEFT, scale(value)), (RIGHT, scale(value))], class_="grid"))
        label = tick_label(value, step)
        parts.append(element("text", label, class_="tick", x=LEFT - 7, y=scale(value) + 4, text_anchor="end"))
    middle = (scale.start + scale.end) / 2
    turned = f"rotate(-90 10 {middle:g})"
    name = element("text", title, class_="axis-title", x=10, y=middle, text_anchor="middle", transform=turned)
    return join([*parts, name])


def hover_columns(scale: Scale, words: Sequence[str], top: float) -> Markup:
    """An invisible column at every step, counted from 1, that tells its words; none where they would be too narrow."""
    width = (RIGHT - LEFT) / max(1, len(words) - 1)
    if len(words) > MOST_COLUMNS:
        return Markup("")
    return join(
        element(
            "rect",
            tip(said),
            class_="hover",
            x=round(max(LEFT, scale(step) - width / 2), 2),
            y=top,
            width=round(width, 2),
            height=BOTTOM - top,
        )
        for step, said in enumerate(words, start=1)
    )


def shade_scale(starts: Sequence[str], top: float) -> Markup:
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
    return join([*boxes, *words])


def drawing(title: str, description: str, content: Markup, height: float = HEIGHT) -> Markup:
    """The whole picture with its text alternative."""
    words = join([element("title", title), element("desc", description)])
    return element("svg", words + content, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=title)
