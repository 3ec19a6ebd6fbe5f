"""The datasets by name: what of them is in a folder, and how each is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedsim.data.datasets import boone, company, frog, game, hdb, house, known_city, known_firms, sklearn_table, taxi
from fedsim.data.datasets import vgsales as sales
from fedsim.data.datasets.dataset import About, Dataset, File
from fedsim.data.datasets.single_table import Whole
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
    return known_city.known_city(rng, known_city.Knobs(noise=noise)).dataset()


def _firms(rng: np.random.Generator, noise: float) -> Dataset:
    if noise:
        raise SettingError(f"noise={noise}: the names of firms are misspelled as they are; leave noise out")
    return known_firms.known_firms(rng).dataset()


SOURCES: dict[str, Source] = {
    source.about.name: source
    for source in (
        Drawn(known_city.ABOUT, _city),
        Drawn(known_firms.ABOUT, _firms),
        OneTable(sklearn_table.ABOUT, lambda _: sklearn_table.generate()),
        OneTable(
            sklearn_table.ABOUT_RANDOM,
            lambda _: sklearn_table.generate_random(),
            Whole.cut_at_random_identifiers,
        ),
        OneTable(frog.ABOUT, frog.read),
        OneTable(boone.ABOUT, boone.read),
        Tables(house.ABOUT, house.read),
        Tables(taxi.ABOUT, taxi.read),
        Tables(hdb.ABOUT, hdb.read),
        Tables(game.ABOUT, game.read),
        Tables(company.ABOUT, company.read),
        Tables(sales.ABOUT, sales.read),
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
