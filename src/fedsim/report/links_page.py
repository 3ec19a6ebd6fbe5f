"""The page of one linkage, and the summary that the page, terminal and JSON output share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
import polars as pl

from fedsim.linkage import Diagnostics, diagnose
from fedsim.linkage.encoding.quality import QUALITY_HEAD, LinkageQuality
from fedsim.report import charts, formatting, page
from fedsim.report.formatting import format_distance, format_duration, format_number, format_percent, pluralise
from fedsim.types import Floats, LinkageResult

EXAMPLE_PAIRS = 6
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


def links_page(  # noqa: PLR0913 - all but two are options by name
    links: LinkageResult,
    diagnostics: Diagnostics,
    *,
    title: str = "Linkage",
    positions: Floats | None = None,
    seconds: float | None = None,
    encoded: LinkageQuality | None = None,
    examples: Sequence[page.PageTable] = (),
) -> str:
    """Return a self-contained HTML page about a linkage.

    ``positions`` (latitude and longitude of every primary record) adds a map of cells; without it the page holds counts
    and quantiles only. ``encoded`` adds a table of how much of this linkage a job would find. ``examples`` are the
    tables of :func:`example_pairs`, for a page that only the owner of both tables reads.
    """
    summary = summarise_links(links, diagnostics, seconds)
    figures = _figures(links, diagnostics, summary)
    figures += [] if positions is None else _map_figures(links, diagnostics, positions)
    chosen = "the most similar one" if summary.k == 1 else f"the {summary.k:,} most similar"
    candidates = pluralise(summary.candidates, "candidate")
    lead = f"{pluralise(summary.records, 'record')}, each linked to {chosen} of {candidates}; metric:"
    used = summary.candidates_used / summary.candidates
    tiles = [
        (f"{summary.records:,}", "records linked", f"{pluralise(summary.k, 'partner record')} each"),
        (f"{summary.candidates:,}", "candidates", f"{format_percent(used)} used"),
        (format_distance(summary.nearest_median, summary.metric), "to the nearest", "median distance"),
        (format_distance(summary.kth_median, summary.metric), f"to rank {summary.k:,}", "median distance"),
    ]
    if summary.boundary_tie_share is not None:
        tiles.append((format_percent(summary.boundary_tie_share), "ties at rank K", "of the lists end in a tie"))
    tiles.append((format_number(summary.sigma) if summary.sigma else "none", "noise σ", "on the similarities"))
    if summary.seconds is not None:
        pairs = summary.records * summary.candidates / max(summary.seconds, 1e-9)
        tiles.append((format_duration(summary.seconds), "search time", f"{format_number(pairs / 1e6)} M pairs/s"))
    tables = []
    if encoded:
        note = "How much of the plain linkage a job would find with these columns encoded as `fedsim init` proposes."
        tables.append(page.PageTable("Quality of the encoded linkage", QUALITY_HEAD, tuple(encoded.rows()), note))
    content = {
        "examples": examples,
        "summary": summary,
        "lead": lead,
        "tiles": tiles,
        "tables": tables,
        "figures": figures,
    }
    return page.render_template("links_page.html", title=title, **content)


def plot_links(links: LinkageResult, positions: Any = None) -> page.FigureGroup:
    """Return the charts of a linkage for a notebook; ``positions`` adds a map, as on the page."""
    diagnostics = diagnose(links)
    figures = _figures(links, diagnostics, summarise_links(links, diagnostics))
    figures += [] if positions is None else _map_figures(links, diagnostics, np.asarray(positions, dtype=np.float64))
    return page.FigureGroup(repr(links), tuple(figures))


def example_pairs(
    links: LinkageResult, identifiers: tuple[pl.DataFrame, pl.DataFrame], others: tuple[pl.DataFrame, pl.DataFrame]
) -> tuple[page.PageTable, ...]:
    """Return one table per pair, from the best to the worst linked record: it and its most similar partner record.

    ``identifiers`` are the columns of both tables that were compared, under common names; ``others`` are the further
    columns of each. Columns are rows here, so that the two records stand side by side.
    """
    order = np.argsort(links.distance[:, 0], kind="stable")
    places = dict.fromkeys(np.linspace(0, len(order) - 1, EXAMPLE_PAIRS).round().astype(int).tolist())
    tables = []
    for row in order[list(places)].tolist():
        partner, distance = int(links.partner[row, 0]), float(links.distance[row, 0])
        rows: list[tuple[str, ...]] = []
        for frames in (identifiers, others):
            names = dict.fromkeys(name for frame in frames for name in frame.columns)
            cells = [_cells(frame, at) for frame, at in zip(frames, (row, partner), strict=True)]
            rows += [(name, *(record.get(name, "") for record in cells)) for name in names]
        head = ("", f"record, row {row + 1:,}", f"partner, row {partner + 1:,}")
        tables.append(page.PageTable(f"Distance {format_distance(distance, links.metric)}", head, tuple(rows)))
    return tuple(tables)


def _cells(frame: pl.DataFrame, row: int) -> dict[str, str]:
    return {name: "missing" if cell is None else str(cell) for name, cell in frame.row(row, named=True).items()}


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
