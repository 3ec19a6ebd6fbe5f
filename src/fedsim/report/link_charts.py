"""The charts of one linkage, for a notebook or a page, and the summary that they, terminal and JSON share."""

import math
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np

from fedsim.linkage import Diagnostics, diagnose
from fedsim.report import charts, formatting, page
from fedsim.report.formatting import format_number, pluralise
from fedsim.types import Floats, LinkageResult

BASELINE_NAMES = {"top1sim": "Top1Sim", "exact": "Exact", "avgsim": "AvgSim"}


@dataclass(frozen=True)
class LinkSummary:
    """The figures of one linkage; distances are in the unit of the metric, None means not known."""

    records: int
    candidates: int
    k: int
    metric: str
    plan: str
    sigma: float
    seconds: float | None
    nearest_median: float
    kth_median: float
    boundary_tie_share: float | None
    candidates_used: int
    busiest_use: int
    improvement: dict[str, float]
    warnings: tuple[str, ...]


def summarise_links(links: LinkageResult, diagnostics: Diagnostics, seconds: float | None = None) -> LinkSummary:
    """Summarise a linkage and its diagnostics."""
    return LinkSummary(
        records=len(links),
        candidates=links.n_candidates,
        k=links.k,
        metric=links.metric,
        plan=links.plan,
        sigma=links.sigma,
        seconds=seconds,
        nearest_median=float(np.median(links.distance[:, 0])),
        kth_median=float(np.median(diagnostics.kth_distance)),
        boundary_tie_share=diagnostics.boundary_tie_share,
        candidates_used=int((diagnostics.hubness > 0).sum()),
        busiest_use=int(diagnostics.hubness.max()),
        improvement={BASELINE_NAMES.get(name, name): float(value) for name, value in diagnostics.improvement.items()},
        warnings=tuple(diagnostics.warnings),
    )


def plot_links(links: LinkageResult, positions: Any = None) -> page.FigureGroup:
    """Return the charts of a linkage; ``positions`` (latitude and longitude by primary record) adds a map of cells.

    Without a map they hold counts and quantiles only.
    """
    diagnostics = diagnose(links)
    summary = summarise_links(links, diagnostics)
    figures = _figures(links, diagnostics, summary)
    figures += [] if positions is None else _map_figures(links, diagnostics, np.asarray(positions, dtype=np.float64))
    chosen = "the most similar one" if summary.k == 1 else f"the {summary.k:,} most similar"
    lead = f"{pluralise(summary.records, 'record')}, each linked to {chosen} of "
    lead += f"{pluralise(summary.candidates, 'candidate')}; metric: {summary.metric}. Search: {summary.plan}."
    return page.FigureGroup(repr(links), tuple(figures), lead, summary.warnings)


def _map_figures(links: LinkageResult, diagnostics: Diagnostics, positions: Floats) -> list[page.Figure]:
    unit = formatting.metric_unit(links.metric)
    rank = f"{links.k:,} ({unit})" if unit else f"{links.k:,}"
    caption = f"The primary's records in cells, shaded by the median distance to partner record {rank}."
    figure = charts.grid_map_figure(positions, diagnostics.kth_distance, title="Distance on the map", caption=caption)
    return [] if figure is None else [figure]


def _figures(links: LinkageResult, diagnostics: Diagnostics, summary: LinkSummary) -> list[page.Figure]:
    unit = formatting.metric_unit(links.metric)
    axis = f"{links.metric} distance, {unit}" if unit else f"{links.metric} distance"
    even = summary.records * summary.k / summary.candidates
    figures = [
        charts.band_figure(
            diagnostics.similarity_by_rank,
            title="Similarity by rank",
            caption="The network's input. A steep fall means that few partner records matter; a flat band "
            "means that a larger K may help.",
            axis="similarity, scaled",
        ),
        charts.histogram_figure(
            links.distance[:, 0],
            title="Distance to the nearest partner record",
            caption="Records far to the right have no good partner record, however large K is.",
            axis=axis,
        ),
        charts.reuse_figure(
            diagnostics.hubness,
            title="Reuse of candidates",
            caption=f"If all candidates were used equally, each would be in {format_number(even)} lists; "
            f"the most used one is in {summary.busiest_use:,}. Links are less informative where a few candidates are "
            "in very many lists.",
        ),
    ]
    known = {name: value for name, value in summary.improvement.items() if math.isfinite(value)}
    if known:
        caption = "An estimate before training: how much similarity each simpler method loses or overestimates. "
        caption += "The larger the value, the more the whole list can add."
        title, head = "Expected gain of the whole list (Δ)", ("compared with", "Δ")
        labels, rows = charts.ChartLabels(title, caption, "Δ per record", head), starmap(charts.ChartRow, known.items())
        figures.append(charts.rows_figure(list(rows), labels, bars=True))
    return figures
