"""The page of one linkage, and the summary that the page, terminal and JSON output share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.linkage import Diagnostics
from fedsim.report.charts import band_figure
from fedsim.report.distribution_charts import comparison_figure, grid_map_figure, histogram_figure, reuse_figure
from fedsim.report.formatting import (
    METRIC_UNITS,
    format_count,
    format_distance,
    format_duration,
    format_number,
    format_percent,
    pluralise,
)
from fedsim.report.page import Figure, render_template, write_page
from fedsim.types import Floats, Links

# What a linkage came to, in a dozen figures; page, terminal and JSON all show these


BASELINE_NAMES = {"top1sim": "Top1Sim", "exact": "Exact", "avgsim": "AvgSim"}


@dataclass(frozen=True)
class LinkSummary:
    """Distances are in the metric's own unit; shares are of one; ``None`` where the value is not known."""

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


def summarise_links(links: Links, diagnostics: Diagnostics, seconds: float | None = None) -> LinkSummary:
    """The figures of one linkage."""
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


# One page about one linkage: is it any good, and what would it bring?


def write_links_page(
    links: Links,
    diagnostics: Diagnostics,
    path: Path | str,
    *,
    title: str = "Linkage",
    positions: Floats | None = None,
    seconds: float | None = None,
) -> None:
    """Replace ``path`` by the page of :func:`links_page`."""
    write_page(links_page(links, diagnostics, title=title, positions=positions, seconds=seconds), path)


def links_page(
    links: Links,
    diagnostics: Diagnostics,
    *,
    title: str = "Linkage",
    positions: Floats | None = None,
    seconds: float | None = None,
) -> str:
    """One HTML text that needs nothing else: no script, no font, no network.

    ``positions`` (one latitude and longitude per primary record) adds a map of cells; without it the page holds
    counts, quantiles and no place at all.
    """
    summary = summarise_links(links, diagnostics, seconds)
    figures = _figures(links, diagnostics, summary)
    if positions is not None:
        figures += _map(positions, diagnostics, summary)
    return render_template(
        "links_page.html", title=title, summary=summary, lead=_lead(summary), tiles=_tiles(summary), figures=figures
    )


def _figures(links: Links, diagnostics: Diagnostics, summary: LinkSummary) -> list[Figure]:
    axis = f"{links.metric} distance" + (f", {METRIC_UNITS[links.metric]}" if links.metric in METRIC_UNITS else "")
    drawn = [
        band_figure(
            diagnostics.similarity_by_rank,
            title="Similarity by rank",
            caption="What the network sees. A steep fall means that few partners matter; a flat band, that more "
            "may help.",
            axis="similarity, scaled",
        ),
        band_figure(
            diagnostics.distance_by_rank,
            title="Distance by rank",
            caption="What the search measured, in the unit of the metric.",
            axis=axis,
        ),
        histogram_figure(
            links.distance[:, 0],
            title="Distance to the nearest partner",
            caption="Records far to the right have no good partner, however long the list.",
            axis=axis,
        ),
        histogram_figure(
            diagnostics.kth_distance,
            title=f"Distance to the last partner (rank {links.k:,})",
            caption="How far the search had to go to fill the list; where it is long, a smaller K may do.",
            axis=axis,
        ),
        reuse_figure(
            diagnostics.hubness,
            title="How often a candidate is used",
            caption=_reuse_caption(summary),
        ),
    ]
    known = {name: value for name, value in summary.improvement.items() if math.isfinite(value)}
    return [*drawn, _improvement(known)] if known else drawn


def _improvement(known: dict[str, float]) -> Figure:
    return comparison_figure(
        known,
        title="What the whole list may bring (Δ)",
        caption="Estimated before any training: how much similarity each simpler method loses or overrates. The "
        "larger, the more there is to gain by learning from the whole list.",
        axis="Δ per record",
    )


def _map(positions: Floats, diagnostics: Diagnostics, summary: LinkSummary) -> list[Figure]:
    unit = f" ({METRIC_UNITS[summary.metric]})" if summary.metric in METRIC_UNITS else ""
    figure = grid_map_figure(
        positions,
        diagnostics.kth_distance,
        title="Where partners are far",
        caption=f"The primary's records in cells, shaded by the median distance to partner {summary.k:,}{unit}.",
    )
    return [] if figure is None else [figure]


def _reuse_caption(summary: LinkSummary) -> str:
    even = summary.records * summary.k / summary.candidates
    return (
        f"Used evenly, each would stand in {format_number(even)} lists; the busiest stands in "
        f"{format_count(summary.busiest_use)}. A few very busy candidates, or many never used, blur the links."
    )


def _lead(summary: LinkSummary) -> str:
    chosen = "the most similar one" if summary.k == 1 else f"the {format_count(summary.k)} most similar"
    return f"{pluralise(summary.records, 'record')}, each with {chosen} of {pluralise(summary.candidates, 'candidate')}, by"


def _tiles(summary: LinkSummary) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a word more."""
    used = summary.candidates_used / summary.candidates
    tiles = [
        (format_count(summary.records), "records linked", f"{pluralise(summary.k, 'partner')} each"),
        (format_count(summary.candidates), "candidates", f"{format_percent(used)} of them used"),
        (format_distance(summary.nearest_median, summary.metric), "to the nearest", "median distance"),
        (
            format_distance(summary.kth_median, summary.metric),
            f"to partner {format_count(summary.k)}",
            "median distance",
        ),
    ]
    if summary.boundary_tie_share is not None:
        tiles.append((format_percent(summary.boundary_tie_share), "tied at the end", "lists cut between equals"))
    tiles.append((format_number(summary.sigma) if summary.sigma else "none", "noise σ", "on the similarities"))
    if summary.seconds is not None:
        tiles.append((format_duration(summary.seconds), "search time", _search_rate(summary)))
    return tiles


def _search_rate(summary: LinkSummary) -> str:
    pairs = summary.records * summary.candidates / max(summary.seconds or 0.0, 1e-9)
    return f"{format_number(pairs / 1e6)} M pairs/s"
