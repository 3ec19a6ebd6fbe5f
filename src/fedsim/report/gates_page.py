"""What the gates of a trained FedSim model learnt: charts and a page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fedsim.report.charts import rank_ticks
from fedsim.report.formatting import format_number
from fedsim.report.page import Figure, render_template, write_page
from fedsim.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    bottom_axis,
    element,
    join_markup,
    left_axis,
    nice_range,
    shade_legend,
    svg_image,
    svg_path,
    tick_label,
    tick_step,
    tick_values,
    tooltip,
    x_scale,
    y_scale,
)
from fedsim.training.explain import MergeImportance, WeightCurve
from fedsim.types import Floats

# What the gates learnt: the weight of a similarity, and which outputs of which partners the merge gate listens to
#
# Paper, appendix "Visualization". Letters: K partners, R outputs per pair.


HEATMAP_SHADES = 5
FLAT_SLOPE = 0.01  # of the line's size: too little to be called a slope


def weight_figure(curve: WeightCurve) -> Figure:
    """The learnt weight over the scaled similarity."""
    x = x_scale(float(curve.similarity[0]), float(curve.similarity[-1]))
    y = y_scale(*nice_range(min(0.0, float(curve.weight.min())), float(curve.weight.max())))
    shown = tick_values(x.low, x.high, about=6)
    labels = [tick_label(value, tick_step(x.low, x.high, about=6)) for value in shown]
    line = svg_path([(x(s), y(w)) for s, w in zip(curve.similarity, curve.weight, strict=True)], class_="line")
    picture = svg_image(
        f"Weight of a similarity, {curve.party}",
        f"The weight goes from {format_number(float(curve.weight[0]))} to {format_number(float(curve.weight[-1]))}.",
        join_markup([left_axis(y, "weight"), line, bottom_axis(x, shown, labels, "similarity, scaled")]),
    )
    chosen = np.linspace(0, len(curve.weight) - 1, 7).astype(int)
    return Figure(
        f"What a similarity is worth: {curve.party}",
        f"The weight gate multiplies a partner's outputs by this. {_curve_text(curve)}",
        picture,
        ("similarity", "weight"),
        tuple((format_number(float(curve.similarity[at])), format_number(float(curve.weight[at]))) for at in chosen),
    )


def _curve_text(curve: WeightCurve) -> str:
    """What the line does, in words."""
    steps, reach = np.diff(curve.weight), float(np.ptp(curve.weight))
    if reach <= FLAT_SLOPE * max(float(np.abs(curve.weight).max()), np.finfo(float).tiny):
        return "The line is flat: similarity makes no difference."
    beside = " Below zero, outputs are turned round." if float(curve.weight.min()) < 0 else ""
    up, down = float(steps[steps > 0].sum()), float(-steps[steps < 0].sum())
    if down <= FLAT_SLOPE * up:
        return f"The line rises: the more similar a partner, the larger its weight.{beside}"
    if up <= FLAT_SLOPE * down:
        return f"The line falls: the more similar a partner, the smaller its weight.{beside}"
    top = float(curve.similarity[int(curve.weight.argmax())])
    return f"The line goes up and down; the weight is largest at similarity {format_number(top)}.{beside}"


def importance_figure(importance: MergeImportance) -> Figure:
    """A heat map: one row per output of a pair, one column per rank of the partner, the most similar at the left."""
    values = importance.values[::-1]  # (K, R), most similar first
    title = f"Where the prediction comes from: {importance.party}"
    near = values[: max(1, len(values) // 10)].sum() / max(values.sum(), np.finfo(float).tiny)
    described = f"The nearest tenth of the partners makes up {100 * near:.0f} % of all contributions."
    bounds = _heatmap_bounds(values)
    starts = [f"{float(start):.2g}" for start in (values.min(), *bounds)]
    parts = [
        _heatmap(values, bounds),
        _rank_axis(len(values)),
        _output_axis(values.shape[1]),
        shade_legend(starts, HEIGHT),
    ]
    picture = svg_image(title, described, join_markup(parts), HEIGHT + 30)
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


def _heatmap_bounds(values: Floats) -> Floats:
    return np.quantile(values, np.arange(1, HEATMAP_SHADES) / HEATMAP_SHADES)


def _heatmap(values: Floats, bounds: Floats) -> Markup:
    width, height = (RIGHT - LEFT) / len(values), (BOTTOM - TOP) / values.shape[1]
    shade = np.digitize(values, bounds)
    return join_markup(
        element(
            "rect",
            tooltip(f"rank {rank + 1}, output {output + 1}: {format_number(float(values[rank, output]))}"),
            class_=f"cell shade{shade[rank, output]}",
            x=round(LEFT + width * rank, 2),
            y=round(TOP + height * output, 2),
            width=round(width + 0.2, 2),
            height=round(height + 0.2, 2),
        )
        for rank in range(len(values))
        for output in range(values.shape[1])
    )


def _rank_axis(ranks: int) -> Markup:
    shown = rank_ticks(ranks)
    labels = [f"{rank:,}" for rank in shown]
    return bottom_axis(x_scale(0.5, ranks + 0.5), shown, labels, "rank of the partner (1 = most similar)")


def _output_axis(outputs: int) -> Markup:
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


# One page about what a trained FedSim's gates learnt


GATES_LEAD = "How much a partner counts for being similar, and which partners the predictions come from."


def gates_page(curves: Sequence[WeightCurve], importances: Sequence[MergeImportance], *, title: str) -> str:
    """One HTML text with both pictures of every secondary; it needs nothing else."""
    figures = [weight_figure(curve) for curve in curves] + [importance_figure(part) for part in importances]
    return render_template("insight_page.html", title=title, lead=GATES_LEAD, figures=figures)


def write_gates_page(
    curves: Sequence[WeightCurve], importances: Sequence[MergeImportance], path: Path | str, *, title: str = "Gates"
) -> None:
    """Replace ``path`` by the page of :func:`insight_page`."""
    write_page(gates_page(curves, importances, title=title), path)
