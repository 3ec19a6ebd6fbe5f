"""The section of a run report about the links: similarity by rank, choice of K, reuse, examples and maps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase

import numpy as np
import polars as pl

from fedsim.config.job import coordinate_columns
from fedsim.config.party_file import PartyFile, identifier_columns
from fedsim.data.columns import parse_required_numbers
from fedsim.errors import SettingError
from fedsim.linkage.private_linkage import load_private_links
from fedsim.report.charts import band_figure
from fedsim.report.distribution_charts import MIN_RECORDS_SHOWN, grid_map_figure, outlines_figure, reuse_figure
from fedsim.report.formatting import format_number, format_percent, pluralise
from fedsim.report.page import Figure, PageSection, PageTable
from fedsim.report.run_data import FinishedRun, read_primary_table
from fedsim.runs.record import ExamplePartner, ExampleRecord, LinkListSummary
from fedsim.types import Floats

# What a run's report says of the links: how similar partners are, whether K suits, how busy they are, and examples


LINKS_NOTE = (
    "What the primary saw of the links: similarities as the coordinator sent them, and row numbers that are no real "
    "ones. Distances stay with the coordinator, the k-th distance as well. A similarity is a distance turned round and "
    "scaled: 0 is the average link of the training records, 1 one standard deviation nearer than that."
)
SHARP_DROP = 0.4  # of the whole fall, in one step: the links before it stand apart
NO_BREAK_SPACE = "\u00a0"
RANK_NAMES = ("best partner", "second", "third", "fourth", "fifth")


@dataclass(frozen=True)
class ReportOptions:
    """What an owner may ask for beyond counts: maps of its places, and identifiers of example records, by row."""

    maps: Sequence[Figure] = ()
    names: Mapping[int, str] = field(default_factory=dict, repr=False)


def links_section(run: FinishedRun, wishes: ReportOptions) -> PageSection:
    """All about the links."""
    figures = [figure for seen in run.record.lists for figure in _list_figures(run, seen)]
    words = (LINKS_NOTE,) if wishes.maps or not _has_locations(run) else (LINKS_NOTE, _map_hint(run))
    return PageSection("links", "Links", words, (*figures, *wishes.maps), tuple(_example_tables(run, wishes.names)))


def _list_figures(run: FinishedRun, seen: LinkListSummary) -> Iterator[Figure]:
    ranks = np.array(seen.similarity_by_rank)
    yield band_figure(
        ranks,
        title=f"Similarity by rank: {seen.secondary}",
        caption="A steep fall means that few partners matter; a flat band, that more may help.",
        axis="similarity, scaled",
    )
    path = run.folder / "lists" / f"{seen.secondary}.safetensors"
    if path.is_file() and seen.records >= MIN_RECORDS_SHOWN:
        yield _similarity_outlines(load_private_links(path).similarity.astype(np.float64), seen, judge_k(ranks))
    if seen.reuse:
        even = seen.records * seen.k / max(1, seen.candidates or 1)
        yield reuse_figure(
            np.repeat(*(np.array(column, dtype=np.int64) for column in zip(*seen.reuse, strict=True))),
            title=f"How often a candidate is used: {seen.secondary}",
            caption=f"Used evenly, each would stand in {format_number(even)} lists. A few very busy ones blur the links.",
        )


def _similarity_outlines(similarity: Floats, seen: LinkListSummary, judged: str) -> Figure:
    """The k-th similarity beside the best one and that in the middle."""
    places = sorted({0, (seen.k - 1) // 2, seen.k - 1})
    return outlines_figure(
        {f"rank {place + 1}": similarity[:, place] for place in places},
        title=f"The last of {seen.k} links: {seen.secondary}" if seen.k > 1 else f"The only link: {seen.secondary}",
        caption=judged,
        axis="similarity, scaled",
    )


def judge_k(ranks: Floats) -> str:
    """Whether the lists end too early or too late, from the quantiles of the similarity by rank.

    >>> flat, cliff = np.zeros((8, 5)), np.repeat([[1.0], [1.0], [0.0], [0.0]], 5, axis=1)
    >>> flat[:, 3] = 1.0
    >>> judge_k(flat)[:54]
    'The last link is about as similar as the best one: the'
    >>> judge_k(cliff)[:60]
    'Similarity falls most after rank 2: the links up to there st'
    """
    medians, usual = ranks[:, 2], float(np.median(ranks[:, 3] - ranks[:, 1]))
    fall, steps = float(medians[0] - medians[-1]), -np.diff(medians)
    if len(ranks) == 1:
        return "With one link each nobody can tell whether a second would help; try a larger K."
    if fall <= usual:
        return (
            "The last link is about as similar as the best one: the lists end before similarity does, and a larger K "
            "may find more."
        )
    sharpest = int(steps.argmax())
    if len(ranks) > 3 and steps[sharpest] > SHARP_DROP * fall:
        return (
            f"Similarity falls most after rank {sharpest + 1}: the links up to there stand apart from the rest, and a "
            f"K of about {sharpest + 1} may do as well as {len(ranks)}."
        )
    return (
        f"Similarity falls evenly to the last link: K = {len(ranks)} is neither plainly too small nor too large; only "
        "training with another K can tell."
    )


def _has_locations(run: FinishedRun) -> bool:
    return any(coordinate_columns(terms.encoding.columns) for terms in run.job.secondaries.values())


def _map_hint(run: FinishedRun) -> str:
    file = shlex.quote(f"{run.record.party}.toml")
    return f"For a map of the primary's places, in cells of several: fedsim report {run.place} --map {file}"


def _example_tables(run: FinishedRun, names: Mapping[int, str]) -> Iterator[PageTable]:
    rows = dict.fromkeys(example.row for example in run.record.examples)
    letters = dict(zip(rows, ascii_uppercase, strict=False))
    for secondary in dict.fromkeys(example.secondary for example in run.record.examples):
        found = [example for example in run.record.examples if example.secondary == secondary]
        most = max(len(example.partners) for example in found)
        yield PageTable(
            f"Examples: {secondary}",
            ("record", *(["identifiers"] if names else []), *RANK_NAMES[:most]),
            tuple(_example_row(example, letters[example.row], names) for example in found),
            _examples_note(found, named=bool(names)),
        )


def _examples_note(found: Sequence[ExampleRecord], *, named: bool) -> str:
    """What the cells hold."""
    gates = any(seen.share is not None for example in found for seen in example.partners)
    cells = "similarity, learnt weight and share of all that partners contribute" if gates else "similarity"
    rows = ", by the row in the primary's own table (counted from 1)" if named else ""
    return (
        f"{pluralise(len(found), 'test record')} from the best linked to the worst linked one{rows}, with the {cells}. "
        f"{'The' if named else 'Their letters and the'} partners' numbers are made up for this page."
    )


def _example_row(example: ExampleRecord, letter: str, names: Mapping[int, str]) -> tuple[str, ...]:
    """A record under a letter; who asked for identifiers gets its row as well."""
    told = [f"row {example.row + 1}", names.get(example.row, "")] if names else [f"record {letter}"]
    return *told, *map(_partner_cell, example.partners)


def _partner_cell(seen: ExamplePartner) -> str:
    parts = [f"no. {seen.partner}: {format_number(seen.similarity)}"]
    parts += [] if seen.weight is None else [f"weight {format_number(seen.weight)}"]
    parts += [] if seen.share is None else [format_percent(seen.share)]
    return ", ".join(part.replace(" ", NO_BREAK_SPACE) for part in parts)


# The primary's own places, shaded by how good their partners are; drawn only where their owner asks for it


def location_map_figures(run: FinishedRun, own: PartyFile) -> list[Figure]:
    """A map for every secondary that is linked by latitude and longitude."""
    found = list(_location_maps(run, own, read_primary_table(run, own)))
    if not found:
        raise SettingError(
            f"no secondary of job '{run.job.name}' is linked by latitude and longitude, or places are too few to show; "
            "leave the map out"
        )
    return found


def _location_maps(run: FinishedRun, own: PartyFile, frame: pl.DataFrame) -> Iterator[Figure]:
    for name in run.job.secondaries:
        axes = _location_columns(run, own, name)
        if not axes:
            continue
        links = load_private_links(run.folder / "lists" / f"{name}.safetensors")
        figure = grid_map_figure(
            np.column_stack([parse_required_numbers(frame[axis], table=str(own.party)).to_numpy() for axis in axes]),
            links.similarity[:, 0].astype(np.float64),
            title=f"Where the nearest partner is similar: {name}",
            caption="The primary's records in cells, shaded by the median similarity of their best partner.",
            shaded="median similarity",
        )
        if figure is not None:
            yield figure


def _location_columns(run: FinishedRun, own: PartyFile, secondary: str) -> list[str]:
    """The columns of latitude and longitude, where these link."""
    named = identifier_columns(run.job, own, secondary)
    return [named[agreed] for agreed in coordinate_columns(list(named)) or ()]
