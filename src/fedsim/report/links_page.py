"""One page about one linkage: is it any good, and what would it bring?"""

from __future__ import annotations

import math
from pathlib import Path

from fedsim.linkage import Diagnostics
from fedsim.report.bands import band_figure
from fedsim.report.bars import compare_figure, histogram_figure, reuse_figure
from fedsim.report.figure import Figure
from fedsim.report.page import rendered, write_page
from fedsim.report.places import places_figure
from fedsim.report.summary import Summary, summarise
from fedsim.report.words import UNITS, count, distance, duration, many, measure, percent
from fedsim.types import Floats, Links


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
    summary = summarise(links, diagnostics, seconds)
    figures = _figures(links, diagnostics, summary)
    if positions is not None:
        figures += _map(positions, diagnostics, summary)
    return rendered(
        "links_page.html", title=title, summary=summary, lead=_lead(summary), tiles=_tiles(summary), figures=figures
    )


def _figures(links: Links, diagnostics: Diagnostics, summary: Summary) -> list[Figure]:
    axis = f"{links.metric} distance" + (f", {UNITS[links.metric]}" if links.metric in UNITS else "")
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
            caption=_reuse_words(summary),
        ),
    ]
    known = {name: value for name, value in summary.improvement.items() if math.isfinite(value)}
    return [*drawn, _improvement(known)] if known else drawn


def _improvement(known: dict[str, float]) -> Figure:
    return compare_figure(
        known,
        title="What the whole list may bring (Δ)",
        caption="Estimated before any training: how much similarity each simpler method loses or overrates. The "
        "larger, the more there is to gain by learning from the whole list.",
        axis="Δ per record",
    )


def _map(positions: Floats, diagnostics: Diagnostics, summary: Summary) -> list[Figure]:
    unit = f" ({UNITS[summary.metric]})" if summary.metric in UNITS else ""
    figure = places_figure(
        positions,
        diagnostics.kth_distance,
        title="Where partners are far",
        caption=f"The primary's records in cells, shaded by the median distance to partner {summary.k:,}{unit}.",
    )
    return [] if figure is None else [figure]


def _reuse_words(summary: Summary) -> str:
    even = summary.records * summary.k / summary.candidates
    return (
        f"Used evenly, each would stand in {measure(even)} lists; the busiest stands in "
        f"{count(summary.busiest_use)}. A few very busy candidates, or many never used, blur the links."
    )


def _lead(summary: Summary) -> str:
    chosen = "the most similar one" if summary.k == 1 else f"the {count(summary.k)} most similar"
    return f"{many(summary.records, 'record')}, each with {chosen} of {many(summary.candidates, 'candidate')}, by"


def _tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a word more."""
    used = summary.candidates_used / summary.candidates
    tiles = [
        (count(summary.records), "records linked", f"{many(summary.k, 'partner')} each"),
        (count(summary.candidates), "candidates", f"{percent(used)} of them used"),
        (distance(summary.nearest_median, summary.metric), "to the nearest", "median distance"),
        (distance(summary.kth_median, summary.metric), f"to partner {count(summary.k)}", "median distance"),
    ]
    if summary.boundary_tie_share is not None:
        tiles.append((percent(summary.boundary_tie_share), "tied at the end", "lists cut between equals"))
    tiles.append((measure(summary.sigma) if summary.sigma else "none", "noise σ", "on the similarities"))
    if summary.seconds is not None:
        tiles.append((duration(summary.seconds), "search time", _rate(summary)))
    return tiles


def _rate(summary: Summary) -> str:
    pairs = summary.records * summary.candidates / max(summary.seconds or 0.0, 1e-9)
    return f"{measure(pairs / 1e6)} M pairs/s"
