"""The user's own files, as an experiment file names them, as a dataset."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from fedsim.data.datasets import About, Dataset, Link, Secondary, Table, Task
from fedsim.data.datasets.dataset import Transform
from fedsim.data.readers import read_table
from fedsim.data.typed import typed
from fedsim.experiment.outline import Outline, TableOutline, check_word


def read_dataset(outline: Outline, folder: Path) -> Dataset:
    """Read both tables of an experiment file from a folder."""
    primary, secondary = (_table(part, folder) for part in (outline.primary, outline.secondary))
    check_word(outline.primary.transform, [str(word) for word in Transform], "transform")
    if outline.task == Task.REGRESSION:
        numbers = primary.frame.with_columns(pl.col(outline.primary.label).cast(pl.Float64))
        primary = Table(numbers, primary.features)
    link = Link(
        tuple(outline.primary.identifiers),
        tuple(outline.secondary.identifiers),
        outline.link.metric,
        outline.link.k,
        outline.link.casefold,
    )
    return Dataset(
        about=About(outline.name, outline.name, Task(outline.task), "", outline.unit, (len(primary), len(secondary))),
        primary=primary,
        label=outline.primary.label,
        secondaries=(Secondary("secondary", secondary, link),),
        transform=Transform(outline.primary.transform),
    )


def _table(part: TableOutline, folder: Path) -> Table:
    frame = typed(read_table(folder / part.file, None), part.missing)
    beside = {*part.identifiers, *part.drop, part.label}
    return Table(frame, tuple(part.features or [name for name in frame.columns if name not in beside]))
