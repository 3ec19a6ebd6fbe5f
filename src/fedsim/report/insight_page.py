"""One page about what a trained FedSim's gates learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsim.report.insight import importance_figure, weight_figure
from fedsim.report.page import rendered, write_page
from fedsim.training.explain import Importance, WeightCurve

LEAD = "How much a partner counts for being similar, and which partners the predictions come from."


def insight_page(curves: Sequence[WeightCurve], importances: Sequence[Importance], *, title: str) -> str:
    """One HTML text with both pictures of every secondary; it needs nothing else."""
    figures = [weight_figure(curve) for curve in curves] + [importance_figure(part) for part in importances]
    return rendered("insight_page.html", title=title, lead=LEAD, figures=figures)


def write_insight_page(
    curves: Sequence[WeightCurve], importances: Sequence[Importance], path: Path | str, *, title: str = "Gates"
) -> None:
    """Replace ``path`` by the page of :func:`insight_page`."""
    write_page(insight_page(curves, importances, title=title), path)
