"""The datasets by name: which of their files are in a folder, and how to load them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fedsim.data.synthetic import CitySettings, generate_city
from fedsim.errors import FileError, SettingError, nearest_word
from fedsim_lab.datasets import company, films, game, generated, hdb, house, single_table, taxi, vgsales
from fedsim_lab.datasets.dataset import Dataset, DatasetFile, DatasetInfo
from fedsim_lab.datasets.single_table import SingleTable

FilePaths = Mapping[str, Path]


class DatasetSource(Protocol):
    """Loads a dataset."""

    @property
    def about(self) -> DatasetInfo: ...

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset: ...


@dataclass(frozen=True)
class PartyTablesSource:
    """One table per party, with real identifiers."""

    about: DatasetInfo
    read: Callable[[FilePaths, np.random.Generator], Dataset]

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset:
        if noise:
            message = f"noise={noise}: the identifiers of {self.about.name} are real; omit noise"
            raise SettingError(message, code="noise-not-allowed")
        return self.read(paths, rng)


@dataclass(frozen=True)
class SingleTableSource:
    """One table that is split into two parties."""

    about: DatasetInfo
    read: Callable[[FilePaths], SingleTable]
    cut: Callable[[SingleTable, np.random.Generator, float], Dataset] = SingleTable.paper_cut

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset:
        return self.cut(self.read(paths), rng, noise)


@dataclass(frozen=True)
class GeneratedSource:
    """A generated dataset whose ground truth is known."""

    about: DatasetInfo
    draw: Callable[[np.random.Generator, float], Dataset]

    def load(self, paths: FilePaths, rng: np.random.Generator, noise: float) -> Dataset:
        return self.draw(rng, noise)


def _load_city(rng: np.random.Generator, noise: float) -> Dataset:
    return generated.city_dataset(generate_city(rng, CitySettings(noise=noise)))


def _load_firms(rng: np.random.Generator, noise: float) -> Dataset:
    if noise:
        message = f"noise={noise}: the names of firms are misspelled already; omit noise"
        raise SettingError(message, code="noise-not-allowed")
    return generated.generate_firms(rng).dataset()


SOURCES: dict[str, DatasetSource] = {
    source.about.name: source
    for source in (
        GeneratedSource(generated.CITY_INFO, _load_city),
        GeneratedSource(generated.FIRMS_INFO, _load_firms),
        SingleTableSource(single_table.SKLEARN, lambda _: single_table.generate_sklearn()),
        SingleTableSource(
            single_table.SKLEARN_WITH_RANDOM_IDENTIFIERS,
            lambda _: single_table.generate_sklearn_random(),
            SingleTable.cut_at_random_identifiers,
        ),
        SingleTableSource(single_table.FROG, single_table.read_frog),
        SingleTableSource(single_table.BOONE, single_table.read_boone),
        PartyTablesSource(house.HOUSE_INFO, house.read_house),
        PartyTablesSource(taxi.TAXI_INFO, taxi.read_taxi),
        PartyTablesSource(hdb.HDB_INFO, hdb.read_hdb),
        PartyTablesSource(game.GAME_INFO, game.read_game),
        PartyTablesSource(company.COMPANY_INFO, company.read_company),
        PartyTablesSource(vgsales.VGSALES, vgsales.read_vgsales),
        PartyTablesSource(films.FILMS, films.read_films),
    )
}


@dataclass(frozen=True)
class AvailableDataset:
    """The files of a dataset in a folder: paths by name, and the files that are missing."""

    about: DatasetInfo
    paths: FilePaths
    missing: tuple[DatasetFile, ...]

    @property
    def complete(self) -> bool:
        """Return whether the dataset can be loaded."""
        return not any(file.needed for file in self.missing)


def find_datasets(folder: Path | str | None) -> list[AvailableDataset]:
    """Return which files of every dataset are in a folder; generated datasets need none.

    >>> [dataset.about.name for dataset in find_datasets(None) if dataset.complete]
    ['city', 'firms', 'sklearn', 'sklearn-random']
    """
    return [_find_files(source.about, folder) for source in SOURCES.values()]


def load_dataset(
    name: str, folder: Path | str | None = None, *, rng: np.random.Generator | None = None, noise: float = 0.0
) -> Dataset:
    """Load a dataset by its name.

    Parameters
    ----------
    name
        A name that :func:`find_datasets` lists.
    folder
        Folder with the structure described in ``docs/datasets.md``; generated datasets need none.
    rng
        Source of noise, generated records, and samples of files larger than the paper's tables. Default: a fixed seed.
    noise
        Noise added to the identifiers of generated and split tables: in metres for the city, otherwise in the unit of
        the columns.
    """
    source, rng = _find_source(name), rng or np.random.default_rng(0)
    return source.load(_required_paths(source.about, folder), rng, noise)


def load_single_table(name: str, folder: Path | str | None = None) -> SingleTable:
    """Load the table of a single-table dataset, before it is split into parties."""
    source = _find_source(name)
    if not isinstance(source, SingleTableSource):
        known = ", ".join(name for name, source in SOURCES.items() if isinstance(source, SingleTableSource))
        raise SettingError(f"{name} is not a single table; use one of {known}", code="not-a-single-table")
    return source.read(_required_paths(source.about, folder))


def _find_source(name: str) -> DatasetSource:
    if name not in SOURCES:
        near = nearest_word(name, SOURCES)
        hint = f"did you mean '{near}'? " if near else ""
        message = f"unknown dataset '{name}'; {hint}the datasets are {', '.join(SOURCES)}"
        raise SettingError(message, code="unknown-dataset", nearest=near)
    return SOURCES[name]


def _required_paths(about: DatasetInfo, folder: Path | str | None) -> FilePaths:
    if about.generated:
        return {}
    if folder is None:
        message = f"dataset {about.name} is read from files; name their folder with --data or FEDSIM_DATA"
        raise SettingError(message, code="data-folder-required", dataset=about.name)
    here = _find_files(about, folder)
    for file in here.missing:
        if file.needed:
            message = f"{about.name} requires {file.paths[0]} in {folder}, but it is missing; get it from {file.source}"
            raise FileError(message, code="dataset-file-missing", dataset=about.name)
    return here.paths


def _find_files(about: DatasetInfo, folder: Path | str | None) -> AvailableDataset:
    paths = {}
    if folder is not None:
        for file in about.files:
            existing = [Path(folder, path) for path in file.paths if Path(folder, path).is_file()]
            if existing:
                paths[file.name] = existing[0]
    return AvailableDataset(about, paths, tuple(file for file in about.files if file.name not in paths))
