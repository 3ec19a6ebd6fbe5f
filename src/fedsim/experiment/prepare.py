"""From an experiment file and its tables to arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.features import Preparation, Rules, fit_preparation
from fedsim.data.readers import read_table
from fedsim.data.splits import equal_records, group_split, random_split
from fedsim.data.typed import typed
from fedsim.experiment.arrays import Arrays, Parts
from fedsim.experiment.outline import Outline, TableOutline, check_word
from fedsim.linkage import fit_scale, link, similarities
from fedsim.types import Links, Split

TRANSFORMS: dict[str, Callable[[Any], Any]] = {"": lambda values: values, "log10": np.log10}


@dataclass(frozen=True, eq=False)
class Tables:
    """Both parties' records, read."""

    primary: pl.DataFrame
    secondary: pl.DataFrame
    labels: NDArray[Any]


def prepare(outline: Outline, data: Path, seeds: int) -> Iterator[Arrays]:
    """Arrays for every split and seed; links are found once."""
    tables = _read(outline, data)
    links = _link(outline, tables)
    groups = equal_records(tables.primary.select(outline.primary.identifiers))
    for kind in outline.splits:
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            split = group_split(groups, rng) if kind == "group" else random_split(len(groups), rng)
            lists = _Lists.of(links, groups, split)
            yield _arrays(outline, tables, lists, split, {"name": outline.name, "split": kind, "seed": seed})


def save_arrays(outline: Outline, data: Path, seeds: int, folder: Path) -> None:
    """Write the arrays of every split and seed into a folder, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for arrays in prepare(outline, data, seeds):
        about = arrays.about
        arrays.save(folder / f"{about['name']}-{about['split']}-{about['seed']}.npz")


def _read(outline: Outline, data: Path) -> Tables:
    check_word(outline.primary.transform, TRANSFORMS, "transform")
    primary, secondary = (
        typed(read_table(data / part.file, None), part.missing) for part in (outline.primary, outline.secondary)
    )
    labels = TRANSFORMS[outline.primary.transform](primary[outline.primary.label].cast(pl.Float64).to_numpy())
    return Tables(primary, secondary, labels)


def _link(outline: Outline, tables: Tables) -> Links:
    sides = [
        table.select(part.identifiers)
        for table, part in ((tables.primary, outline.primary), (tables.secondary, outline.secondary))
    ]
    if outline.link.casefold:
        sides = [side.select(pl.all().cast(pl.String).str.to_lowercase()) for side in sides]
    return link(*sides, metric=outline.link.metric, k=outline.link.k)


@dataclass(frozen=True, eq=False)
class _Lists:
    """Partner lists of distinct identifiers; the scale comes from the training records alone."""

    list_of: NDArray[Any]
    partner: NDArray[Any]
    similarity: NDArray[Any]
    used: NDArray[Any]

    @classmethod
    def of(cls, links: Links, groups: NDArray[Any], split: Split) -> _Lists:
        _, first, list_of = np.unique(groups, return_index=True, return_inverse=True)
        similarity = similarities(links.distance[first], fit_scale(links.distance[split.train]))
        used = np.unique(links.partner[split.train])
        return cls(list_of.astype(np.int32), links.partner[first].astype(np.int32), similarity.astype(np.float32), used)


def _arrays(outline: Outline, tables: Tables, lists: _Lists, split: Split, about: dict[str, Any]) -> Arrays:
    return Arrays(
        primary=_features(tables.primary, outline.primary, "primary", split.train),
        secondary=_features(tables.secondary, outline.secondary, "secondary", lists.used),
        place=_place(tables.primary.select(outline.primary.identifiers), split),
        list_of=lists.list_of,
        partner=lists.partner,
        similarity=lists.similarity,
        labels=tables.labels,
        split=split,
        about={**about, "unit": outline.unit, "task": outline.task},
    )


def _features(table: pl.DataFrame, part: TableOutline, party: str, rows: NDArray[Any]) -> Parts:
    chosen = part.features or [
        name for name in table.columns if name not in {*part.identifiers, *part.drop, part.label}
    ]
    frame = table.select(chosen)
    preparation: Preparation = fit_preparation(frame, party=party, rows=rows, rules=Rules(kinds=part.kinds))
    prepared = preparation.apply(frame)
    return {
        "numbers": prepared.numbers,
        "codes": prepared.codes.astype(np.int32),
        "cardinalities": np.array(prepared.cardinalities, np.int64),
        "spread": np.array(prepared.spread, np.int64),
    }


def _place(identifiers: pl.DataFrame, split: Split) -> NDArray[Any]:
    """The primary's own identifiers as features, where they are numbers."""
    if not all(dtype.is_numeric() for dtype in identifiers.dtypes):
        return np.zeros((len(identifiers), 0), np.float32)
    return fit_preparation(identifiers, party="primary", rows=split.train).apply(identifiers).numbers
