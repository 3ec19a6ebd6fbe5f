"""The charts of one linkage, for a notebook or a page, and the summary that they, terminal and JSON share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np
from markupsafe import Markup

from fedsim.linkage import Diagnostics, diagnose
from fedsim.report import charts, formatting, page, svg
from fedsim.report.formatting import format_number, pluralise
from fedsim.types import Floats, Integers, LinkageResult

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
    figure = grid_map_figure(positions, diagnostics.kth_distance, title="Distance on the map", caption=caption)
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


# Maps: records in square cells, shaded by a median.

MAX_MAP_CELLS = 44  # along a side
MAX_MAP_HEIGHT = 300.0
MAP_AXIS = 32  # from the lower edge of a map to its scale bar
MAP_LABEL_WIDTH = 60
METRES_PER_DEGREE = 111_195.0  # of latitude


@dataclass(frozen=True, eq=False)
class MapGrid:
    """The cells that are drawn: column and row, number of records, and the median value of each."""

    column: Integers
    row: Integers
    records: Integers
    value: Floats
    columns: int
    rows: int
    south: float  # latitude of the lower edge
    west: float  # longitude of the left edge, shortened
    size: float  # of a cell, in degrees of latitude
    shortening: float  # of a degree of longitude; 1 where positions are not degrees
    degrees: bool


def grid_map_figure(
    positions: Floats,
    values: Floats,
    *,
    title: str,
    caption: str,
    shaded: str = "median distance",
) -> page.Figure | None:
    """Draw a map of ``positions`` (latitude and longitude, or up and right); None where no cell may be shown."""
    grid = grid_positions(positions, values)
    if not len(grid.records):
        return None
    shades, bounds = svg.shade_classes(grid.value)
    side = min((svg.RIGHT - svg.LEFT) / grid.columns, MAX_MAP_HEIGHT / grid.rows)
    left, bottom = svg.LEFT, 6 + side * grid.rows
    axes = _map_axes(grid, svg.LinearScale(0, grid.columns, left, left + side * grid.columns), bottom)
    drawn_cells = []
    cells = zip(grid.column, grid.row, grid.records, grid.value, shades, strict=True)
    for column, row, n, value, shade in cells:
        words = f"{int(n):,} records, median {format_number(float(value))}"
        corner = (left + side * column, 6 + side * (grid.rows - 1 - row))
        drawn_cells.append(svg.heat_cell(corner, side + 0.2, side + 0.2, int(shade), words))
    ends = [format_number(float(end)) for end in (grid.value.min(), *bounds, grid.value.max())]
    rows = []
    for shade, (low, high) in enumerate(pairwise(ends)):
        here = shades == shade
        rows.append((f"{low} to {high}", f"{int(here.sum()):,}", f"{int(grid.records[here].sum()):,}"))
    n_drawn = int(grid.records.sum())
    description = f"{len(grid.records):,} cells hold {n_drawn:,} records."
    parts = [*axes, *drawn_cells, svg.shade_legend(ends[:-1], bottom + MAP_AXIS + 24)]
    picture = svg.image(title, description, parts, bottom + MAP_AXIS + 54)
    note = charts.hidden_note(len(positions) - n_drawn, "cells", also="")
    return page.Figure(title, caption + note, picture, (shaded, "cells", "records"), tuple(rows))


def _map_axes(grid: MapGrid, x: svg.LinearScale, bottom: float) -> Iterator[Markup]:
    """Yield round latitudes and longitudes along the edges, and a scale bar below."""
    y = svg.LinearScale(0, grid.rows, bottom, 6)
    unit, north = "°" if grid.degrees else "", grid.south + grid.size * grid.rows
    west, east = (edge / grid.shortening for edge in (grid.west, grid.west + grid.size * grid.columns))
    for value, label in svg.tick_labels(grid.south, north, 4).items():
        height = y((value - grid.south) / grid.size)
        yield svg.path([(x.start - 4, height), (x.start, height)], class_="axis")
        yield svg.text(f"{label}{unit}", x.start - 7, height + 4, anchor="end")
    for value, label in svg.tick_labels(west, east, max(1, int((x.end - x.start) / MAP_LABEL_WIDTH))).items():
        place = x((value * grid.shortening - grid.west) / grid.size)
        yield svg.path([(place, bottom), (place, bottom + 4)], class_="axis")
        yield svg.text(f"{label}{unit}", place, bottom + 17, anchor="middle")
    yield svg.path([(x.start, 6), (x.start, bottom), (x.end, bottom)], class_="axis")
    width = grid.size * grid.columns * (METRES_PER_DEGREE if grid.degrees else 1.0)
    length = svg.tick_step(0.0, width, about=6)
    label = f"{format_number(length / 1000)} km" if length >= 1000 else f"{format_number(length)} m"
    end = x(length / width * grid.columns)
    yield svg.path([(x.start, bottom + MAP_AXIS), (end, bottom + MAP_AXIS)], class_="baseline")
    yield svg.text(label if grid.degrees else format_number(length), end + 6, bottom + MAP_AXIS + 4)


def grid_positions(positions: Floats, values: Floats) -> MapGrid:
    """Collect records into square cells; degrees of longitude are shortened as on the globe."""
    degrees = bool(np.abs(positions[:, 0]).max() <= 90 and np.abs(positions[:, 1]).max() <= 180)
    factor = math.cos(math.radians(float(positions[:, 0].mean()))) if degrees else 1.0
    up, right = positions[:, 0], positions[:, 1] * factor
    # Few cells where there are few records, so that most cells hold enough of them.
    side = int(np.clip(math.sqrt(len(positions) / (2 * charts.MIN_RECORDS_SHOWN)), 2, MAX_MAP_CELLS))
    size = max(float(np.ptp(up)), float(np.ptp(right)), 1e-9) / side
    row = ((up - up.min()) / size).astype(np.int64).clip(0, side - 1)
    column = ((right - right.min()) / size).astype(np.int64).clip(0, side - 1)
    cell, member, records = np.unique(row * side + column, return_inverse=True, return_counts=True)
    # Values are sorted within each cell, so the middle one is the (lower) median.
    ordered = values[np.lexsort((values, member))]
    median = ordered[np.cumsum(records) - records + (records - 1) // 2]
    shown = records >= charts.MIN_RECORDS_SHOWN
    width, height = int(column.max()) + 1, int(row.max()) + 1
    cells = (cell % side)[shown], (cell // side)[shown], records[shown], median[shown]
    return MapGrid(*cells, width, height, float(up.min()), float(right.min()), size, factor, degrees)
