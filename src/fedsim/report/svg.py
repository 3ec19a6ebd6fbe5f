"""SVG building blocks: scales, ticks, axes and shapes.

Colours and fonts come from the page's style sheet by class name, so that one drawing serves light, dark and print.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from fedsim.types import Floats, Integers

WIDTH, HEIGHT = 410, 268
LEFT, RIGHT, TOP, BOTTOM = 66, 394, 12, 220  # the plot area
MAX_HOVER_COLUMNS = 160  # narrower columns cannot be hit with a pointer
TALL = 1.3  # from which height on a drawing has more room on paper, relative to HEIGHT
MIN_SPAN = 1e-300  # below it a tenth of the span loses precision
SHADES = 5
XY = tuple[float, float]


@dataclass(frozen=True)
class LinearScale:
    """A linear map from values to positions on the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def x_scale(low: float, high: float) -> LinearScale:
    """Return the scale from the left to the right end of the plot."""
    return LinearScale(low, high, LEFT, RIGHT)


def y_scale(low: float, high: float, top: float = TOP) -> LinearScale:
    """Return the scale from the bottom to the top of the plot."""
    return LinearScale(low, high, BOTTOM, top)


def tick_step(low: float, high: float, about: int = 5) -> float:
    """Return a round distance between ticks: 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def tick_values(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values between the two ends.

    >>> tick_values(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = tick_step(low, high, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_round_tick(number, step) for number in range(first, last + 1)]


def nice_range(low: float, high: float, about: int = 5) -> tuple[float, float]:
    """Round the range outwards to whole ticks; the result is never empty.

    >>> nice_range(0.03, 0.97)
    (0.0, 1.0)
    >>> nice_range(3.0, 3.0)
    (2.5, 3.5)
    """
    size = max(abs(low), abs(high))
    if high - low <= max(1e-12 * size, MIN_SPAN):
        # A margin of 0.5 would vanish beside a very large value and dwarf a very small one.
        margin = 0.5 if size <= MIN_SPAN or 1 <= size < 1e6 else size / 2
        return low - margin, high + margin
    step = tick_step(low, high, about)
    return _round_tick(math.floor(low / step + 1e-9), step), _round_tick(math.ceil(high / step - 1e-9), step)


def _round_tick(number: int, step: float) -> float:
    """Remove the rounding error of the product, to a thousandth of a step."""
    return round(number * step, 3 - math.floor(math.log10(step)))


def tick_label(value: float, step: float) -> str:
    """Format a tick with as many decimals as the step needs.

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


def tick_labels(low: float, high: float, about: int = 5) -> dict[float, str]:
    """Return the ticks of an axis with their labels."""
    step = tick_step(low, high, about)
    return {value: tick_label(value, step) for value in tick_values(low, high, about)}


def element(name: str, content: str | Markup = "", /, **attributes: str | float) -> Markup:
    """Return one element with everything escaped; ``class_`` becomes ``class`` and ``text_anchor`` ``text-anchor``.

    >>> element("text", "a < b", class_="label", x=1)
    Markup('<text class="label" x="1">a &lt; b</text>')
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{escape(content)}</{name}>")  # noqa: S704 - every part is escaped above


def join(parts: Iterable[Markup]) -> Markup:
    """Concatenate elements."""
    return Markup("").join(parts)


def text(content: str, x: float, y: float, class_: str = "tick", anchor: str = "start") -> Markup:
    """Return a line of text."""
    return element("text", content, class_=class_, x=x, y=y, text_anchor=anchor)


def path(points: Sequence[XY], *, closed: bool = False, **attributes: str | float) -> Markup:
    """Return a line through the points."""
    steps = "L".join(f"{x:g},{y:g}" for x, y in points)
    return element("path", d=f"M{steps}{'Z' if closed else ''}", **attributes)


def tooltip(content: str) -> Markup:
    """Return the element that browsers show when the pointer rests on its parent."""
    return element("title", content)


def bottom_axis(x: LinearScale, title: str, labels: Mapping[float, str] | None = None) -> Markup:
    """Return the horizontal axis; ``labels`` replaces the round numbers."""
    labels = tick_labels(x.low, x.high) if labels is None else labels
    parts = [path([(LEFT, BOTTOM), (RIGHT, BOTTOM)], class_="axis")]
    parts += [path([(x(value), BOTTOM), (x(value), BOTTOM + 4)], class_="axis") for value in labels]
    parts += [text(label, x(value), BOTTOM + 17, anchor="middle") for value, label in labels.items()]
    return join([*parts, text(title, (LEFT + RIGHT) / 2, HEIGHT - 12, "axis-title", "middle")])


def left_axis(y: LinearScale, title: str, about: int = 5) -> Markup:
    """Return the grid lines with their values, and the title along the side."""
    parts = []
    for value, label in tick_labels(y.low, y.high, about).items():
        parts.append(path([(LEFT, y(value)), (RIGHT, y(value))], class_="grid"))
        parts.append(text(label, LEFT - 7, y(value) + 4, anchor="end"))
    return join([*parts, side_title(title, (y.start + y.end) / 2)])


def side_title(title: str, middle: float) -> Markup:
    """Return a title that runs upwards along the left side."""
    turned = f"rotate(-90 10 {middle:g})"
    return element("text", title, class_="axis-title", x=10, y=middle, text_anchor="middle", transform=turned)


def bar(left: float, right: float, top: float, bottom: float, words: str, class_: str = "bar") -> Markup:
    """Return a bar with a tooltip; a bar of no width is drawn as a hairline."""
    width, height = round(max(0.5, right - left), 2), round(bottom - top, 2)
    return element("rect", tooltip(words), class_=class_, x=left, y=top, width=width, height=height, rx=1)


def dot(x: float, y: float, r: float, words: str = "", class_: str = "bar") -> Markup:
    """Return a dot, with a tooltip where there are words."""
    return element("circle", tooltip(words) if words else "", class_=class_, cx=x, cy=y, r=r)


def vertical_marker(x: float, words: str, top: float = TOP) -> Markup:
    """Return a dashed line across the plot with its label on the side that has more room."""
    shift, anchor = (-6, "end") if x > (LEFT + RIGHT) / 2 else (6, "start")
    return path([(x, top), (x, BOTTOM)], class_="marker") + text(words, x + shift, top + 11, "figure", anchor)


def hover_columns(x: LinearScale, words: Sequence[str], top: float) -> Markup:
    """Return invisible columns with tooltips for the steps 1, 2, ...; none where they would be too narrow."""
    width = (RIGHT - LEFT) / max(1, len(words) - 1)
    if len(words) > MAX_HOVER_COLUMNS:
        return Markup("")
    size = {"y": top, "width": round(width, 2), "height": BOTTOM - top}
    return join(
        element("rect", tooltip(text), class_="hover", x=round(max(LEFT, x(step) - width / 2), 2), **size)
        for step, text in enumerate(words, start=1)
    )


def shade_classes(values: Floats | Integers) -> tuple[Integers, Floats]:
    """Return the shade of every value (0 is the palest), and the quantiles at which the shades 1 to 4 start."""
    bounds = np.quantile(values, np.arange(1, SHADES) / SHADES)
    return np.searchsorted(bounds, values, side="right"), bounds


def heat_cell(corner: XY, width: float, height: float, shade: int, words: str) -> Markup:
    """Return one cell of a heat map, its upper left corner at ``corner``."""
    size = {"x": round(corner[0], 2), "y": round(corner[1], 2), "width": round(width, 2), "height": round(height, 2)}
    return element("rect", tooltip(words), class_=f"cell shade{shade}", **size)


def shade_legend(starts: Sequence[str], top: float) -> Markup:
    """Return the legend of a heat map: the value at which each shade starts."""
    left = LEFT - 46
    step = (RIGHT - left) / len(starts)
    parts = []
    for shade, start in enumerate(starts):
        place = left + step * shade
        parts.append(element("rect", class_=f"shade{shade}", x=place, y=top, width=step - 4, height=8))
        parts.append(text(f"≥ {start}", place, top + 22))
    return join(parts)


def image(title: str, description: str, parts: Iterable[Markup], height: float = HEIGHT) -> Markup:
    """Return the picture with its text alternative."""
    content = join([element("title", title), element("desc", description), *parts])
    tall = {"class_": "tall"} if height > TALL * HEIGHT else {}
    return element("svg", content, **tall, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=title)
