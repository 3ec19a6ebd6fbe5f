"""Experiment files (TOML): their settings, and the tables they name as a dataset."""

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

# What an experiment file says


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
    """The experiment of a TOML file."""
    words = read_experiment_toml(path)
    sections = {
        "primary": parse_section(TableConfig, words.get("primary", {}), "primary"),
        "secondary": parse_section(TableConfig, words.get("secondary", {}), "secondary"),
        "link": parse_section(LinkConfig, words.get("link", {}), "link"),
        "rungs": [parse_rung(rung) for rung in words.get("rungs", [])],
    }
    outline = parse_section(ExperimentConfig, {**words, **sections}, "file")
    check_choice(outline.task, TASKS, "task")
    for split in outline.splits:
        check_choice(split, SPLITS, "split")
    return outline


def read_experiment_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says, in plain words."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"{path} cannot be read as an experiment: {error}") from error


def parse_rung(words: dict[str, Any]) -> Rung:
    """A rung as a file describes it; its key follows from its name where none is given."""
    name = words.get("name", "")
    return parse_section(Rung, {"key": re.sub(r"\W+", "-", name.lower()).strip("-"), **words}, "rungs")


def check_choice(word: str, known: Collection[str], setting: str) -> None:
    """Refuse a word that stands for nothing."""
    if word not in known:
        raise SettingError(f"{setting} '{word}' is unknown; choose {' or '.join(known)}")


def parse_section(kind: type[SectionType], words: dict[str, Any], name: str) -> SectionType:
    """A part of a file as the value it describes."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(words) - known)
    if unknown:
        raise SettingError(f"[{name}] has no setting '{unknown[0]}'; it has {', '.join(sorted(known))}")
    try:
        return kind(**words)
    except TypeError:
        raise SettingError(f"[{name}] lacks a setting; it has {', '.join(sorted(known))}") from None


# The user's own files, as an experiment file names them, as a dataset


def read_experiment_dataset(outline: ExperimentConfig, folder: Path) -> dataset.Dataset:
    """Read both tables of an experiment file from a folder."""
    primary, secondary = (_read_party_table(part, folder) for part in (outline.primary, outline.secondary))
    check_choice(outline.primary.transform, [str(word) for word in dataset.LabelTransform], "transform")
    if outline.task == dataset.DatasetTask.REGRESSION:
        numbers = primary.frame.with_columns(pl.col(outline.primary.label).cast(pl.Float64))
        primary = dataset.PartyTable(numbers, primary.features)
    link = dataset.LinkSpec(
        tuple(outline.primary.identifiers),
        tuple(outline.secondary.identifiers),
        outline.link.metric,
        outline.link.k,
        outline.link.casefold,
    )
    task, counts = dataset.DatasetTask(outline.task), (len(primary), len(secondary))
    return dataset.Dataset(
        about=dataset.DatasetInfo(outline.name, outline.name, task, "", outline.unit, counts),
        primary=primary,
        label=outline.primary.label,
        secondaries=(dataset.SecondaryTable("secondary", secondary, link),),
        transform=dataset.LabelTransform(outline.primary.transform),
    )


def _read_party_table(part: TableConfig, folder: Path) -> dataset.PartyTable:
    frame = infer_numbers(read_table(folder / part.file, None), part.missing)
    beside = {*part.identifiers, *part.drop, part.label}
    return dataset.PartyTable(frame, tuple(part.features or [name for name in frame.columns if name not in beside]))
