"""The work behind ``fedsim demo``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim.cli.brute_force import nearest_names, nearest_places
from fedsim.cli.telling import lines_of
from fedsim.data.synthetic import Firms, city, firms
from fedsim.errors import FedSimError, FileError
from fedsim.linkage import diagnose, link, save_links
from fedsim.linkage.whole_file import whole_file
from fedsim.report.links_page import write_links_page
from fedsim.report.summary import summarise
from fedsim.report.words import count, duration, percent
from fedsim.types import Floats, Integers, Links

SAMPLE = 200
Say = Callable[[str], None]
Oracle = Callable[[Any, Any, int], tuple[Integers, Floats]]


@dataclass(frozen=True, eq=False)
class Scene:
    """One linkage of the demo: identifiers, metric, K, and the slow answer to hold it against."""

    name: str
    title: str
    primary: Any
    secondary: Any
    metric: str
    k: int
    oracle: Oracle
    positions: Floats | None


def show(folder: Path, seed: int, say: Say) -> None:
    """Make the tables, link them, check a sample, write links and pages, and say where."""
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    town, registers = city(rng), firms(rng)
    _make(folder)
    tables = {
        "flats": town.flats,
        "rentals": town.rentals,
        "firms-ours": registers.ours,
        "firms-theirs": registers.theirs,
    }
    for name, table in tables.items():
        with whole_file(folder / f"{name}.csv") as part:
            table.write_csv(part)
    say(f"Generated tables in {folder}: " + ", ".join(f"{name}.csv ({count(len(t))})" for name, t in tables.items()))
    _play(_by_place(town.flats, town.rentals), folder, rng, say)
    names = _play(_by_name(registers), folder, rng, say)
    say(_truth_words(names, registers.truth))
    say(
        f"\nDone in {duration(time.perf_counter() - started)}. Open {folder / 'links.html'} and {folder / 'names.html'}"
    )
    say("Next, on your own tables or on these:")
    say(
        f"  fedsim link --primary {folder / 'flats.csv'} --secondary {folder / 'rentals.csv'} --on lat,lon "
        f"--metric great-circle --k 50 --out {folder / 'mine.parquet'} --report {folder / 'mine.html'}"
    )


def _by_place(flats: pl.DataFrame, rentals: pl.DataFrame) -> Scene:
    here, there = (table.select("lat", "lon").to_numpy() for table in (flats, rentals))
    return Scene("links", "Flats and rentals by place", here, there, "great-circle", 50, nearest_places, here)


def _by_name(registers: Firms) -> Scene:
    ours, theirs = (table["name"].str.to_lowercase().to_list() for table in (registers.ours, registers.theirs))
    return Scene("names", "Firms of two registers by name", ours, theirs, "levenshtein", 20, nearest_names, None)


def _play(scene: Scene, folder: Path, rng: np.random.Generator, say: Say) -> Links:
    say(f"\n{scene.title}")
    # The first search of a kind compiles its kernel; what is timed is the search.
    link(scene.primary[:SAMPLE], scene.secondary, metric=scene.metric, k=scene.k)
    started = time.perf_counter()
    links = link(scene.primary, scene.secondary, metric=scene.metric, k=scene.k)
    seconds = time.perf_counter() - started
    diagnostics = diagnose(links)
    for name, value in lines_of(summarise(links, diagnostics, seconds)):
        say(f"  {name:<11}{value}")
    say(f"  {'check':<11}{_checked(scene, links, rng)}")
    page = folder / f"{scene.name}.html"
    save_links(links, folder / f"{scene.name}.parquet")
    write_links_page(links, diagnostics, page, title=scene.title, positions=scene.positions, seconds=seconds)
    say(f"  {'written':<11}{folder / scene.name}.parquet, {page}")
    return links


def _checked(scene: Scene, links: Links, rng: np.random.Generator) -> str:
    """Hold a random sample against all pairs, computed the slow way."""
    rows = rng.choice(len(links), SAMPLE, replace=False)
    partner, distance = scene.oracle([scene.primary[row] for row in rows], scene.secondary, scene.k)
    if not (np.array_equal(links.partner[rows], partner) and np.allclose(links.distance[rows], distance, rtol=1e-9)):
        raise FedSimError(f"{scene.title}: the links differ from brute force; this is a defect of FedSim, report it")
    return f"checked against brute force: {SAMPLE} records equal"


def _truth_words(links: Links, truth: Integers) -> str:
    known = truth >= 0
    found = links.partner[known] == truth[known, None]
    first, listed = percent(float(found[:, 0].mean())), percent(float(found.any(axis=1).mean()))
    return f"  {'truth':<11}of {count(int(known.sum()))} shared firms {first} are nearest, {listed} among the {links.k}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {folder} cannot be made ({error.strerror}); choose another with --out") from error
