"""Experiment files (TOML): their settings, and the dataset made of the tables they name."""

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from fedsim.contribution.rungs import Rung
from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.errors import FileError, SettingError
from fedsim_lab.datasets import dataset

# Settings of an experiment file


SectionType = TypeVar("SectionType")
TASKS = ("regression", "classification")
SPLITS = ("random", "group")


@dataclass(frozen=True)
class TableConfig:
    """One party's file, its identifiers and features; without ``features`` all other columns are features."""

    file: str
    identifiers: list[str]
    features: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    label: str = ""
    transform: str = ""


@dataclass(frozen=True)
class LinkConfig:
    """How records find their partners."""

    metric: str
    k: int
    casefold: bool = False


@dataclass(frozen=True)
class ExperimentConfig:
    """An experiment on the user's own files: tables, links, splits and rungs."""

    name: str
    unit: str
    task: str
    splits: list[str]
    primary: TableConfig
    secondary: TableConfig
    link: LinkConfig
    rungs: list[Rung]


def read_experiment_config(path: Path) -> ExperimentConfig:
    """Read an experiment from a TOML file."""
    settings = read_experiment_toml(path)
    sections = {
        "primary": parse_section(TableConfig, settings.get("primary", {}), "primary"),
        "secondary": parse_section(TableConfig, settings.get("secondary", {}), "secondary"),
        "link": parse_section(LinkConfig, settings.get("link", {}), "link"),
        "rungs": [parse_rung(rung) for rung in settings.get("rungs", [])],
    }
    config = parse_section(ExperimentConfig, {**settings, **sections}, "file")
    check_choice(config.task, TASKS, "task")
    for split in config.splits:
        check_choice(split, SPLITS, "split")
    return config


def read_experiment_toml(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file as a dictionary."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"{path} cannot be read as an experiment: {error}") from error


def parse_rung(settings: dict[str, Any]) -> Rung:
    """Parse the settings of a rung; by default, its key is derived from its name."""
    name = settings.get("name", "")
    return parse_section(Rung, {"key": re.sub(r"\W+", "-", name.lower()).strip("-"), **settings}, "rungs")


def check_choice(value: str, known: Collection[str], setting: str) -> None:
    """Raise SettingError if a value is not one of the known ones."""
    if value not in known:
        raise SettingError(f"{setting} '{value}' is unknown; choose {' or '.join(known)}", code=f"unknown-{setting}")


def parse_section(kind: type[SectionType], settings: dict[str, Any], name: str) -> SectionType:
    """Parse the settings of one section into an object of its class."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(settings) - known)
    if unknown:
        message = f"[{name}] has no setting '{unknown[0]}'; choose from {', '.join(sorted(known))}"
        raise SettingError(message, code="unknown-setting", where=name, name=unknown[0])
    try:
        return kind(**settings)
    except TypeError:
        message = f"[{name}] lacks a required setting; its settings are {', '.join(sorted(known))}"
        raise SettingError(message, code="missing-setting", where=name) from None


# The tables that an experiment file names, as a dataset


def read_experiment_dataset(config: ExperimentConfig, folder: Path) -> dataset.Dataset:
    """Read both tables of an experiment file from a folder."""
    primary, secondary = (_read_party_table(part, folder) for part in (config.primary, config.secondary))
    check_choice(config.primary.transform, [str(word) for word in dataset.LabelTransform], "transform")
    if config.task == dataset.DatasetTask.REGRESSION:
        numbers = primary.frame.with_columns(pl.col(config.primary.label).cast(pl.Float64))
        primary = dataset.PartyTable(numbers, primary.features)
    link = dataset.LinkSpec(
        tuple(config.primary.identifiers),
        tuple(config.secondary.identifiers),
        config.link.metric,
        config.link.k,
        config.link.casefold,
    )
    task, counts = dataset.DatasetTask(config.task), (len(primary), len(secondary))
    return dataset.Dataset(
        about=dataset.DatasetInfo(config.name, config.name, task, "", config.unit, counts),
        primary=primary,
        label=config.primary.label,
        secondaries=(dataset.SecondaryTable("secondary", secondary, link),),
        transform=dataset.LabelTransform(config.primary.transform),
    )


def _read_party_table(part: TableConfig, folder: Path) -> dataset.PartyTable:
    frame = infer_numbers(read_table(folder / part.file, None), part.missing)
    beside = {*part.identifiers, *part.drop, part.label}
    return dataset.PartyTable(frame, tuple(part.features or [name for name in frame.columns if name not in beside]))
