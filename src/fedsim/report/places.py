"""Where on the map the partners are near and where they are far, as a grid.

A cell with fewer than ``FEWEST`` records is left out: a page is passed on, and one record's place must not be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsim.report.figure import Figure
from fedsim.report.svg import RIGHT, WIDTH, drawing, element, join, shade_scale, tip
from fedsim.report.words import count, many, measure
from fedsim.types import Floats, Integers

MOST_CELLS = 44  # along a side
FEWEST = 3
SHADES = 5
TALLEST = 300.0


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells that are drawn: column and row, how many records, and the median distance there."""

    column: Integers
    row: Integers
    records: Integers
    distance: Floats
    columns: int
    rows: int


def places_figure(
    positions: Floats, distance: Floats, *, title: str, caption: str, shaded: str = "median distance"
) -> Figure | None:
    """``positions`` holds latitude and longitude (or up and right); ``None`` where no cell may be drawn.

    ``shaded`` says what ``distance`` is, where it is anything else.
    """
    grid = gridded(positions, distance)
    if not len(grid.records):
        return None
    classes = np.searchsorted(_bounds(grid.distance), grid.distance, side="right")
    side = min((RIGHT - 14) / grid.columns, TALLEST / grid.rows)
    left = (WIDTH - side * grid.columns) / 2
    cells = [
        element(
            "rect",
            tip(f"{count(int(records))} records, median {measure(float(middle))}"),
            class_=f"cell shade{shade}",
            x=round(left + side * column, 2),
            y=round(6 + side * (grid.rows - 1 - row), 2),
            width=round(side + 0.2, 2),
            height=round(side + 0.2, 2),
        )
        for column, row, records, middle, shade in zip(
            grid.column, grid.row, grid.records, grid.distance, classes, strict=True
        )
    ]
    bottom = 6 + side * grid.rows
    rows = _rows(grid, classes)
    described = f"{count(len(grid.records))} cells hold {count(int(grid.records.sum()))} records."
    scale = shade_scale([words.split(" to ")[0] for words, *_ in rows], bottom + 14)
    picture = drawing(title, described, join([*cells, scale]), bottom + 44)
    left_out = len(positions) - int(grid.records.sum())
    note = f" Left out: {many(left_out, 'record')} in cells of fewer than {FEWEST}." if left_out else ""
    return Figure(title, caption + note, picture, (shaded, "cells", "records"), rows)


def gridded(positions: Floats, distance: Floats) -> Grid:
    """Records collected into square cells; east-west is shortened as on the globe where degrees allow it."""
    up, right = positions[:, 0], positions[:, 1] * _shortening(positions)
    side = _side(len(positions))
    size = max(float(np.ptp(up)), float(np.ptp(right)), 1e-9) / side
    row = ((up - up.min()) / size).astype(np.int64).clip(0, side - 1)
    column = ((right - right.min()) / size).astype(np.int64).clip(0, side - 1)
    cell, member, records = np.unique(row * side + column, return_inverse=True, return_counts=True)
    order = np.lexsort((distance, member))
    # Within a cell the distances are sorted, so the middle one is the (lower) median.
    middle = np.cumsum(records) - records + (records - 1) // 2
    width, height = int(column.max()) + 1, int(row.max()) + 1
    kept = records >= FEWEST
    return Grid((cell % side)[kept], (cell // side)[kept], records[kept], distance[order][middle][kept], width, height)


def _side(records: int) -> int:
    """Cells along a side: few where records are few, so that most cells hold enough of them."""
    return int(np.clip(math.sqrt(records / (2 * FEWEST)), 2, MOST_CELLS))


def _shortening(positions: Floats) -> float:
    degrees = bool(np.abs(positions[:, 0]).max() <= 90 and np.abs(positions[:, 1]).max() <= 180)
    return math.cos(math.radians(float(positions[:, 0].mean()))) if degrees else 1.0


def _bounds(distance: Floats) -> Floats:
    return np.quantile(distance, np.arange(1, SHADES) / SHADES)


def _rows(grid: Grid, classes: Integers) -> tuple[tuple[str, ...], ...]:
    bounds = [float(grid.distance.min()), *_bounds(grid.distance), float(grid.distance.max())]
    return tuple(
        (
            f"{measure(bounds[shade])} to {measure(bounds[shade + 1])}",
            count(int((classes == shade).sum())),
            count(int(grid.records[classes == shade].sum())),
        )
        for shade in range(SHADES)
    )
