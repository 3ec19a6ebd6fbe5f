"""What the gates of a trained FedSim model learned: charts, and a page of their own.

Letters: K partner records, R outputs per pair.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsim.report import svg
from fedsim.report.charts import RANK_AXIS, rank_ticks
from fedsim.report.formatting import format_number, format_percent
from fedsim.report.page import Figure, render_template, write_page
from fedsim.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP
from fedsim.training.explain import MergeImportance, WeightCurve

FLAT_SLOPE = 0.01  # relative to the size of the curve
LEAD = "How much weight a partner record gets for its similarity, and which partner records the predictions depend on."


def weight_figure(curve: WeightCurve) -> Figure:
    """Draw the learned weight over the scaled similarity."""
    x = svg.x_scale(float(curve.similarity[0]), float(curve.similarity[-1]))
    y = svg.y_scale(*svg.nice_range(min(0.0, float(curve.weight.min())), float(curve.weight.max())))
    line = svg.path([(x(s), y(w)) for s, w in zip(curve.similarity, curve.weight, strict=True)], class_="line")
    first, last = (format_number(float(curve.weight[end])) for end in (0, -1))
    title, description = f"Weight by similarity: {curve.party}", f"The weight goes from {first} to {last}."
    parts = [svg.left_axis(y, "weight"), line, svg.bottom_axis(x, "similarity, scaled")]
    caption = f"The weight gate multiplies the outputs of a partner record by this factor. {_curve_text(curve)}"
    rows = tuple(
        (format_number(float(curve.similarity[at])), format_number(float(curve.weight[at])))
        for at in np.linspace(0, len(curve.weight) - 1, 7).astype(int)
    )
    return Figure(title, caption, svg.image(title, description, parts), ("similarity", "weight"), rows)


def _curve_text(curve: WeightCurve) -> str:
    steps, span = np.diff(curve.weight), float(np.ptp(curve.weight))
    if span <= FLAT_SLOPE * max(float(np.abs(curve.weight).max()), np.finfo(float).tiny):
        return "The curve is flat: similarity makes no difference."
    negative = " Negative weights change the sign of the outputs." if float(curve.weight.min()) < 0 else ""
    up, down = float(steps[steps > 0].sum()), float(-steps[steps < 0].sum())
    if down <= FLAT_SLOPE * up:
        return f"The curve rises: more similar records get a larger weight.{negative}"
    if up <= FLAT_SLOPE * down:
        return f"The curve falls: more similar records get a smaller weight.{negative}"
    top = float(curve.similarity[int(curve.weight.argmax())])
    return f"The curve rises and falls; the weight is largest at similarity {format_number(top)}.{negative}"


def importance_figure(importance: MergeImportance) -> Figure:
    """Draw a heat map with one column per rank (the most similar on the left) and one row per output."""
    values = importance.values[::-1]  # (K, R), most similar first
    title = f"Contribution by rank: {importance.party}"
    by_rank = values.sum(axis=1) / max(values.sum(), np.finfo(float).tiny)
    nearest = float(by_rank[: max(1, len(values) // 10)].sum())
    description = f"The most similar tenth of the partner records contributes {format_percent(nearest)}."
    shades, bounds = svg.shade_classes(values)
    width, height = (RIGHT - LEFT) / len(values), (BOTTOM - TOP) / values.shape[1]
    parts = [
        svg.heat_cell(
            (LEFT + width * rank, TOP + height * output),
            width + 0.2,
            height + 0.2,
            int(shades[rank, output]),
            f"rank {rank + 1}, output {output + 1}: {format_number(float(values[rank, output]))}",
        )
        for rank, output in np.ndindex(values.shape)
    ]
    labels: dict[float, str] = {rank: f"{rank:,}" for rank in rank_ticks(len(values))}
    parts.append(svg.bottom_axis(svg.x_scale(0.5, len(values) + 0.5), RANK_AXIS, labels))
    parts.append(svg.side_title(f"{values.shape[1]} outputs of a pair", (TOP + BOTTOM) / 2))
    parts.append(svg.shade_legend([f"{float(start):.2g}" for start in (values.min(), *bounds)], HEIGHT))
    caption = f"Integrated gradients of the merge gate, averaged over records. {description}"
    rows = tuple((f"{rank:,}", f"{100 * by_rank[rank - 1]:.1f} %") for rank in rank_ticks(len(values)))
    head = ("rank", "share of the contribution")
    return Figure(title, caption, svg.image(title, description, parts, HEIGHT + 30), head, rows)


def gates_page(curves: Sequence[WeightCurve], importances: Sequence[MergeImportance], *, title: str = "Gates") -> str:
    """Return a self-contained HTML page with both charts of every secondary."""
    figures = [weight_figure(curve) for curve in curves] + [importance_figure(part) for part in importances]
    return render_template("gates_page.html", title=title, lead=LEAD, figures=figures)


def write_gates_page(
    curves: Sequence[WeightCurve], importances: Sequence[MergeImportance], path: Path | str, *, title: str = "Gates"
) -> None:
    """Write the page of :func:`gates_page` to ``path``."""
    write_page(gates_page(curves, importances, title=title), path)
