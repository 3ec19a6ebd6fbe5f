"""What a run's report says of the links: how similar partners are, whether K suits, how busy they are, and examples."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase

import numpy as np

from fedsim.linkage.blind_file import load_delivery
from fedsim.party.protection import place_columns
from fedsim.party.run_record import Example, ListSeen, PartnerSeen
from fedsim.report.bands import band_figure
from fedsim.report.bars import reuse_figure
from fedsim.report.figure import Figure
from fedsim.report.outlines import outlines_figure
from fedsim.report.places import FEWEST
from fedsim.report.run import Run
from fedsim.report.section import Section, Table
from fedsim.report.words import many, measure, percent
from fedsim.types import Floats

SEEN = (
    "What the primary saw of the links: similarities as the coordinator sent them, and row numbers that are no real "
    "ones. Distances stay with the coordinator, the k-th distance as well. A similarity is a distance turned round and "
    "scaled: 0 is the average link of the training records, 1 one standard deviation nearer than that."
)
SHARP = 0.4  # of the whole fall, in one step: the links before it stand apart
NO_BREAK = "\u00a0"
RANKS = ("best partner", "second", "third", "fourth", "fifth")


@dataclass(frozen=True)
class Wishes:
    """What an owner may ask for beyond counts: maps of its places, and identifiers of example records, by row."""

    maps: Sequence[Figure] = ()
    names: Mapping[int, str] = field(default_factory=dict, repr=False)


def links_section(run: Run, wishes: Wishes) -> Section:
    """All about the links."""
    figures = [figure for seen in run.record.lists for figure in _list(run, seen)]
    words = (SEEN,) if wishes.maps or not _on_a_map(run) else (SEEN, _how_to_map(run))
    return Section("links", "Links", words, (*figures, *wishes.maps), tuple(_examples(run, wishes.names)))


def _list(run: Run, seen: ListSeen) -> Iterator[Figure]:
    ranks = np.array(seen.similarity_by_rank)
    yield band_figure(
        ranks,
        title=f"Similarity by rank: {seen.secondary}",
        caption="A steep fall means that few partners matter; a flat band, that more may help.",
        axis="similarity, scaled",
    )
    path = run.folder / "lists" / f"{seen.secondary}.safetensors"
    if path.is_file() and seen.records >= FEWEST:
        yield _last_links(load_delivery(path).similarity.astype(np.float64), seen, about_k(ranks))
    if seen.reuse:
        even = seen.records * seen.k / max(1, seen.candidates or 1)
        yield reuse_figure(
            np.repeat(*(np.array(column, dtype=np.int64) for column in zip(*seen.reuse, strict=True))),
            title=f"How often a candidate is used: {seen.secondary}",
            caption=f"Used evenly, each would stand in {measure(even)} lists. A few very busy ones blur the links.",
        )


def _last_links(similarity: Floats, seen: ListSeen, judged: str) -> Figure:
    """The k-th similarity beside the best one and that in the middle."""
    places = sorted({0, (seen.k - 1) // 2, seen.k - 1})
    return outlines_figure(
        {f"rank {place + 1}": similarity[:, place] for place in places},
        title=f"The last of {seen.k} links: {seen.secondary}" if seen.k > 1 else f"The only link: {seen.secondary}",
        caption=judged,
        axis="similarity, scaled",
    )


def about_k(ranks: Floats) -> str:
    """Whether the lists end too early or too late, from the quantiles of the similarity by rank.

    >>> flat, cliff = np.zeros((8, 5)), np.repeat([[1.0], [1.0], [0.0], [0.0]], 5, axis=1)
    >>> flat[:, 3] = 1.0
    >>> about_k(flat)[:54]
    'The last link is about as similar as the best one: the'
    >>> about_k(cliff)[:60]
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
    if len(ranks) > 3 and steps[sharpest] > SHARP * fall:
        return (
            f"Similarity falls most after rank {sharpest + 1}: the links up to there stand apart from the rest, and a "
            f"K of about {sharpest + 1} may do as well as {len(ranks)}."
        )
    return (
        f"Similarity falls evenly to the last link: K = {len(ranks)} is neither plainly too small nor too large; only "
        "training with another K can tell."
    )


def _on_a_map(run: Run) -> bool:
    return any(place_columns(terms.encoding.columns) for terms in run.job.secondaries.values())


def _how_to_map(run: Run) -> str:
    file = shlex.quote(f"{run.record.party}.toml")
    return f"For a map of the primary's places, in cells of several: fedsim report {run.place} --map {file}"


def _examples(run: Run, names: Mapping[int, str]) -> Iterator[Table]:
    rows = dict.fromkeys(example.row for example in run.record.examples)
    letters = dict(zip(rows, ascii_uppercase, strict=False))
    for secondary in dict.fromkeys(example.secondary for example in run.record.examples):
        found = [example for example in run.record.examples if example.secondary == secondary]
        most = max(len(example.partners) for example in found)
        yield Table(
            f"Examples: {secondary}",
            ("record", *(["identifiers"] if names else []), *RANKS[:most]),
            tuple(_example(example, letters[example.row], names) for example in found),
            _about(found, named=bool(names)),
        )


def _about(found: Sequence[Example], *, named: bool) -> str:
    """What the cells hold."""
    gates = any(seen.share is not None for example in found for seen in example.partners)
    cells = "similarity, learnt weight and share of all that partners contribute" if gates else "similarity"
    rows = ", by the row in the primary's own table (counted from 1)" if named else ""
    return (
        f"{many(len(found), 'test record')} from the best linked to the worst linked one{rows}, with the {cells}. "
        f"{'The' if named else 'Their letters and the'} partners' numbers are made up for this page."
    )


def _example(example: Example, letter: str, names: Mapping[int, str]) -> tuple[str, ...]:
    """A record under a letter; who asked for identifiers gets its row as well."""
    told = [f"row {example.row + 1}", names.get(example.row, "")] if names else [f"record {letter}"]
    return *told, *map(_partner, example.partners)


def _partner(seen: PartnerSeen) -> str:
    parts = [f"no. {seen.partner}: {measure(seen.similarity)}"]
    parts += [] if seen.weight is None else [f"weight {measure(seen.weight)}"]
    parts += [] if seen.share is None else [percent(seen.share)]
    return ", ".join(part.replace(" ", NO_BREAK) for part in parts)
