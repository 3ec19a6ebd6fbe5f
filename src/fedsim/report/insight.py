"""What the gates learnt: the weight of a similarity, and which outputs of which partners the merge gate listens to.

Paper, appendix "Visualization". Letters: K partners, R outputs per pair.
"""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from fedsim.report.bands import rank_ticks
from fedsim.report.figure import Figure
from fedsim.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    across,
    bottom_axis,
    drawing,
    element,
    join,
    left_axis,
    path,
    shade_scale,
    step_for,
    tick_label,
    ticks,
    tip,
    upward,
    widened,
)
from fedsim.report.words import measure
from fedsim.training.explain import Importance, WeightCurve
from fedsim.types import Floats

SHADES = 5
FLAT = 0.01  # of the line's size: too little to be called a slope


def weight_figure(curve: WeightCurve) -> Figure:
    """The learnt weight over the scaled similarity."""
    x = across(float(curve.similarity[0]), float(curve.similarity[-1]))
    y = upward(*widened(min(0.0, float(curve.weight.min())), float(curve.weight.max())))
    shown = ticks(x.low, x.high, about=6)
    labels = [tick_label(value, step_for(x.low, x.high, about=6)) for value in shown]
    line = path([(x(s), y(w)) for s, w in zip(curve.similarity, curve.weight, strict=True)], class_="line")
    picture = drawing(
        f"Weight of a similarity, {curve.party}",
        f"The weight goes from {measure(float(curve.weight[0]))} to {measure(float(curve.weight[-1]))}.",
        join([left_axis(y, "weight"), line, bottom_axis(x, shown, labels, "similarity, scaled")]),
    )
    chosen = np.linspace(0, len(curve.weight) - 1, 7).astype(int)
    return Figure(
        f"What a similarity is worth: {curve.party}",
        f"The weight gate multiplies a partner's outputs by this. {_course(curve)}",
        picture,
        ("similarity", "weight"),
        tuple((measure(float(curve.similarity[at])), measure(float(curve.weight[at]))) for at in chosen),
    )


def _course(curve: WeightCurve) -> str:
    """What the line does, in words."""
    steps, reach = np.diff(curve.weight), float(np.ptp(curve.weight))
    if reach <= FLAT * max(float(np.abs(curve.weight).max()), np.finfo(float).tiny):
        return "The line is flat: similarity makes no difference."
    beside = " Below zero, outputs are turned round." if float(curve.weight.min()) < 0 else ""
    up, down = float(steps[steps > 0].sum()), float(-steps[steps < 0].sum())
    if down <= FLAT * up:
        return f"The line rises: the more similar a partner, the larger its weight.{beside}"
    if up <= FLAT * down:
        return f"The line falls: the more similar a partner, the smaller its weight.{beside}"
    top = float(curve.similarity[int(curve.weight.argmax())])
    return f"The line goes up and down; the weight is largest at similarity {measure(top)}.{beside}"


def importance_figure(importance: Importance) -> Figure:
    """A heat map: one row per output of a pair, one column per rank of the partner, the most similar at the left."""
    values = importance.values[::-1]  # (K, R), most similar first
    title = f"Where the prediction comes from: {importance.party}"
    near = values[: max(1, len(values) // 10)].sum() / max(values.sum(), np.finfo(float).tiny)
    described = f"The nearest tenth of the partners makes up {100 * near:.0f} % of all contributions."
    bounds = _bounds(values)
    starts = [f"{float(start):.2g}" for start in (values.min(), *bounds)]
    parts = [_heat(values, bounds), _ranks(len(values)), _outputs(values.shape[1]), shade_scale(starts, HEIGHT)]
    picture = drawing(title, described, join(parts), HEIGHT + 30)
    return Figure(
        title,
        f"Integrated gradients of the merge gate, averaged over records: the scale is below. {described}",
        picture,
        ("rank", "share of all contributions"),
        tuple(
            (f"{rank:,}", f"{100 * values[rank - 1].sum() / max(values.sum(), np.finfo(float).tiny):.1f} %")
            for rank in rank_ticks(len(values))
        ),
    )


def _bounds(values: Floats) -> Floats:
    return np.quantile(values, np.arange(1, SHADES) / SHADES)


def _heat(values: Floats, bounds: Floats) -> Markup:
    width, height = (RIGHT - LEFT) / len(values), (BOTTOM - TOP) / values.shape[1]
    shade = np.digitize(values, bounds)
    return join(
        element(
            "rect",
            tip(f"rank {rank + 1}, output {output + 1}: {measure(float(values[rank, output]))}"),
            class_=f"cell shade{shade[rank, output]}",
            x=round(LEFT + width * rank, 2),
            y=round(TOP + height * output, 2),
            width=round(width + 0.2, 2),
            height=round(height + 0.2, 2),
        )
        for rank in range(len(values))
        for output in range(values.shape[1])
    )


def _ranks(ranks: int) -> Markup:
    shown = rank_ticks(ranks)
    labels = [f"{rank:,}" for rank in shown]
    return bottom_axis(across(0.5, ranks + 0.5), shown, labels, "rank of the partner (1 = most similar)")


def _outputs(outputs: int) -> Markup:
    middle = (TOP + BOTTOM) / 2
    return element(
        "text",
        f"{outputs} outputs of a pair",
        class_="axis-title",
        x=10,
        y=middle,
        text_anchor="middle",
        transform=f"rotate(-90 10 {middle:g})",
    )
