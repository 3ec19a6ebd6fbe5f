"""The datasets by name: what of them is in a folder, and how each is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedsim.data.datasets.boone import ABOUT as BOONE
from fedsim.data.datasets.boone import read as read_boone
from fedsim.data.datasets.city_dataset import ABOUT as CITY
from fedsim.data.datasets.city_dataset import city_dataset
from fedsim.data.datasets.company import ABOUT as COMPANY
from fedsim.data.datasets.company import read as read_company
from fedsim.data.datasets.dataset import About, Dataset, File
from fedsim.data.datasets.frog import ABOUT as FROG
from fedsim.data.datasets.frog import read as read_frog
from fedsim.data.datasets.game import ABOUT as GAME
from fedsim.data.datasets.game import read as read_game
from fedsim.data.datasets.hdb import ABOUT as HDB
from fedsim.data.datasets.hdb import read as read_hdb
from fedsim.data.datasets.house import ABOUT as HOUSE
from fedsim.data.datasets.house import read as read_house
from fedsim.data.datasets.known_city import Knobs, known_city
from fedsim.data.datasets.known_firms import ABOUT as FIRMS
from fedsim.data.datasets.known_firms import known_firms
from fedsim.data.datasets.single_table import Whole
from fedsim.data.datasets.sklearn_table import ABOUT as SKLEARN
from fedsim.data.datasets.sklearn_table import ABOUT_RANDOM, generate, generate_random
from fedsim.data.datasets.taxi import ABOUT as TAXI
from fedsim.data.datasets.taxi import read as read_taxi
from fedsim.data.datasets.vgsales import ABOUT as VGSALES
from fedsim.data.datasets.vgsales import read as read_vgsales
from fedsim.errors import FileError, SettingError, nearest_word

Paths = Mapping[str, Path]


class Source(Protocol):
    """Where a dataset comes from."""

    @property
    def about(self) -> About: ...

    def load(self, paths: Paths, rng: np.random.Generator, noise: float) -> Dataset: ...


@dataclass(frozen=True)
class Tables:
    """A table per party; their identifiers are as noisy as they are."""

    about: About
    read: Callable[[Paths, np.random.Generator], Dataset]

    def load(self, paths: Paths, rng: np.random.Generator, noise: float) -> Dataset:
        if noise:
            raise SettingError(f"noise={noise}: the identifiers of {self.about.name} are real; leave noise out")
        return self.read(paths, rng)


@dataclass(frozen=True)
class OneTable:
    """A table that is cut into two parties."""

    about: About
    read: Callable[[Paths], Whole]
    cut: Callable[[Whole, np.random.Generator, float], Dataset] = Whole.paper_cut

    def load(self, paths: Paths, rng: np.random.Generator, noise: float) -> Dataset:
        return self.cut(self.read(paths), rng, noise)


@dataclass(frozen=True)
class Drawn:
    """A generated dataset whose truth is known."""

    about: About
    draw: Callable[[np.random.Generator, float], Dataset]

    def load(self, paths: Paths, rng: np.random.Generator, noise: float) -> Dataset:
        return self.draw(rng, noise)


def _city(rng: np.random.Generator, noise: float) -> Dataset:
    return city_dataset(known_city(rng, Knobs(noise=noise)))


def _firms(rng: np.random.Generator, noise: float) -> Dataset:
    if noise:
        raise SettingError(f"noise={noise}: the names of firms are misspelled as they are; leave noise out")
    return known_firms(rng).dataset()


SOURCES: dict[str, Source] = {
    source.about.name: source
    for source in (
        Drawn(CITY, _city),
        Drawn(FIRMS, _firms),
        OneTable(SKLEARN, lambda _: generate()),
        OneTable(
            ABOUT_RANDOM,
            lambda _: generate_random(),
            Whole.cut_at_random_identifiers,
        ),
        OneTable(FROG, read_frog),
        OneTable(BOONE, read_boone),
        Tables(HOUSE, read_house),
        Tables(TAXI, read_taxi),
        Tables(HDB, read_hdb),
        Tables(GAME, read_game),
        Tables(COMPANY, read_company),
        Tables(VGSALES, read_vgsales),
    )
}


@dataclass(frozen=True)
class Found:
    """What of a dataset is in a folder: paths by the files' names, and the files that are not there."""

    about: About
    paths: Paths
    missing: tuple[File, ...]

    @property
    def complete(self) -> bool:
        """Whether it can be loaded."""
        return not any(file.needed for file in self.missing)


def found(folder: Path | str) -> list[Found]:
    """For every dataset what is there; generated ones always are.

    >>> [found.about.name for found in found("/nowhere") if found.complete]
    ['city', 'firms', 'sklearn', 'sklearn-random']
    """
    return [_found(source.about, Path(folder)) for source in SOURCES.values()]


def load(
    name: str, folder: Path | str | None = None, *, rng: np.random.Generator | None = None, noise: float = 0.0
) -> Dataset:
    """The dataset of that name from a folder laid out as ``docs/datasets.md`` says; generated ones need none.

    ``rng`` draws what is drawn: noise, samples of files larger than the paper's tables, generated records; without it
    they are the same every time. ``noise`` is added to the identifiers of generated and of cut tables (in metres for
    the city, in the columns' unit for the others).
    """
    source, rng = _source(name), rng or np.random.default_rng(0)
    return source.load(_paths(source.about, folder), rng, noise)


def whole_table(name: str, folder: Path | str | None = None) -> Whole:
    """The table of a dataset that is one table, before it is cut into parties."""
    source = _source(name)
    if not isinstance(source, OneTable):
        known = ", ".join(name for name, source in SOURCES.items() if isinstance(source, OneTable))
        raise SettingError(f"{name} is not one table; those that are: {known}")
    return source.read(_paths(source.about, folder))


def _source(name: str) -> Source:
    if name not in SOURCES:
        near = nearest_word(name, SOURCES)
        hint = f"did you mean '{near}'? " if near else ""
        raise SettingError(f"dataset '{name}' is unknown; {hint}the datasets are {', '.join(SOURCES)}")
    return SOURCES[name]


def _paths(about: About, folder: Path | str | None) -> Paths:
    if about.generated:
        return {}
    if folder is None:
        raise SettingError(f"{about.name} is read from files; name the folder they are in")
    here = _found(about, Path(folder))
    for file in here.missing:
        if file.needed:
            raise FileError(
                f"{about.name} needs {file.paths[0]} in {folder}, and it is not there; get it from {file.source}"
            )
    return here.paths


def _found(about: About, folder: Path) -> Found:
    paths = {}
    for file in about.files:
        there = [folder / path for path in file.paths if (folder / path).is_file()]
        if there:
            paths[file.name] = there[0]
    return Found(about, paths, tuple(file for file in about.files if file.name not in paths))
