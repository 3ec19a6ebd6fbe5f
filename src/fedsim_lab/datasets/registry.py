"""The datasets by name: which files are present in a folder, and how each dataset is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedsim.data.synthetic_city import CitySettings, generate_city
from fedsim.errors import FileError, SettingError, nearest_word
from fedsim_lab.datasets.boone import BOONE, read_boone
from fedsim_lab.datasets.company import COMPANY_INFO as COMPANY
from fedsim_lab.datasets.company import read_company
from fedsim_lab.datasets.dataset import Dataset, DatasetFile, DatasetInfo
from fedsim_lab.datasets.frog import FROG, read_frog
from fedsim_lab.datasets.game import GAME_INFO as GAME
from fedsim_lab.datasets.game import read_game
from fedsim_lab.datasets.generated import CITY_INFO as CITY
from fedsim_lab.datasets.generated import FIRMS_INFO as FIRMS
from fedsim_lab.datasets.generated import city_dataset, generate_firms
from fedsim_lab.datasets.hdb import HDB_INFO as HDB
from fedsim_lab.datasets.hdb import read_hdb
from fedsim_lab.datasets.house import HOUSE_INFO as HOUSE
from fedsim_lab.datasets.house import read_house
from fedsim_lab.datasets.single_table import SingleTable
from fedsim_lab.datasets.sklearn_table import (
    SKLEARN,
    SKLEARN_WITH_RANDOM_IDENTIFIERS,
    generate_sklearn,
    generate_sklearn_random,
)
from fedsim_lab.datasets.taxi import TAXI_INFO as TAXI
from fedsim_lab.datasets.taxi import read_taxi
from fedsim_lab.datasets.vgsales import VGSALES, read_vgsales

FilePaths = Mapping[str, Path]


class DatasetSource(Protocol):
    """Where a dataset comes from."""

    @property
    def about(self) -> DatasetInfo: ...

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset: ...


@dataclass(frozen=True)
class PartyTablesSource:
    """A table per party; their identifiers are as noisy as they are."""

    about: DatasetInfo
    read: Callable[[FilePaths, np.random.Generator], Dataset]

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset:
        if noise:
            raise SettingError(f"noise={noise}: the identifiers of {self.about.name} are real; leave noise out")
        return self.read(paths, rng)


@dataclass(frozen=True)
class SingleTableSource:
    """A table that is cut into two parties."""

    about: DatasetInfo
    read: Callable[[FilePaths], SingleTable]
    cut: Callable[[SingleTable, np.random.Generator, float], Dataset] = SingleTable.paper_cut

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset:
        return self.cut(self.read(paths), rng, noise)


@dataclass(frozen=True)
class GeneratedSource:
    """A generated dataset whose truth is known."""

    about: DatasetInfo
    draw: Callable[[np.random.Generator, float], Dataset]

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset:
        return self.draw(rng, noise)


def _load_city(rng: np.random.Generator, noise: float) -> Dataset:
    return city_dataset(generate_city(rng, CitySettings(noise=noise)))


def _load_firms(rng: np.random.Generator, noise: float) -> Dataset:
    if noise:
        raise SettingError(f"noise={noise}: the names of firms are misspelled as they are; leave noise out")
    return generate_firms(rng).dataset()


SOURCES: dict[str, DatasetSource] = {
    source.about.name: source
    for source in (
        GeneratedSource(CITY, _load_city),
        GeneratedSource(FIRMS, _load_firms),
        SingleTableSource(SKLEARN, lambda _: generate_sklearn()),
        SingleTableSource(
            SKLEARN_WITH_RANDOM_IDENTIFIERS,
            lambda _: generate_sklearn_random(),
            SingleTable.cut_at_random_identifiers,
        ),
        SingleTableSource(FROG, read_frog),
        SingleTableSource(BOONE, read_boone),
        PartyTablesSource(HOUSE, read_house),
        PartyTablesSource(TAXI, read_taxi),
        PartyTablesSource(HDB, read_hdb),
        PartyTablesSource(GAME, read_game),
        PartyTablesSource(COMPANY, read_company),
        PartyTablesSource(VGSALES, read_vgsales),
    )
}


@dataclass(frozen=True)
class AvailableDataset:
    """What of a dataset is in a folder: paths by the files' names, and the files that are not there."""

    about: DatasetInfo
    paths: FilePaths
    missing: tuple[DatasetFile, ...]

    @property
    def complete(self) -> bool:
        """Whether it can be loaded."""
        return not any(file.needed for file in self.missing)


def find_datasets(folder: Path | str) -> list[AvailableDataset]:
    """For every dataset what is there; generated ones always are.

    >>> [find_datasets.about.name for find_datasets in find_datasets("/nowhere") if find_datasets.complete]
    ['city', 'firms', 'sklearn', 'sklearn-random']
    """
    return [_find_files(source.about, Path(folder)) for source in SOURCES.values()]


def load_dataset(
    name: str, folder: Path | str | None = None, *, rng: np.random.Generator | None = None, noise: float = 0.0
) -> Dataset:
    """The dataset of that name from a folder laid out as ``docs/datasets.md`` says; generated ones need none.

    ``rng`` draws what is drawn: noise, samples of files larger than the paper's tables, generated records; without it
    they are the same every time. ``noise`` is added to the identifiers of generated and of cut tables (in metres for
    the city, in the columns' unit for the others).
    """
    source, rng = _find_source(name), rng or np.random.default_rng(0)
    return source.load(_required_paths(source.about, folder), rng, noise)


def load_single_table(name: str, folder: Path | str | None = None) -> SingleTable:
    """The table of a dataset that is one table, before it is cut into parties."""
    source = _find_source(name)
    if not isinstance(source, SingleTableSource):
        known = ", ".join(name for name, source in SOURCES.items() if isinstance(source, SingleTableSource))
        raise SettingError(f"{name} is not one table; those that are: {known}")
    return source.read(_required_paths(source.about, folder))


def _find_source(name: str) -> DatasetSource:
    if name not in SOURCES:
        near = nearest_word(name, SOURCES)
        hint = f"did you mean '{near}'? " if near else ""
        raise SettingError(f"dataset '{name}' is unknown; {hint}the datasets are {', '.join(SOURCES)}")
    return SOURCES[name]


def _required_paths(about: DatasetInfo, folder: Path | str | None) -> FilePaths:
    if about.generated:
        return {}
    if folder is None:
        raise SettingError(f"{about.name} is read from files; name the folder they are in")
    here = _find_files(about, Path(folder))
    for file in here.missing:
        if file.needed:
            raise FileError(
                f"{about.name} needs {file.paths[0]} in {folder}, and it is not there; get it from {file.source}"
            )
    return here.paths


def _find_files(about: DatasetInfo, folder: Path) -> AvailableDataset:
    paths = {}
    for file in about.files:
        there = [folder / path for path in file.paths if (folder / path).is_file()]
        if there:
            paths[file.name] = there[0]
    return AvailableDataset(about, paths, tuple(file for file in about.files if file.name not in paths))
