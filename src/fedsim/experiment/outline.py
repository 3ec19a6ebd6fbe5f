"""What an experiment file says."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fedsim.errors import FileError, SettingError
from fedsim.experiment.rung import Rung

Section = TypeVar("Section")
TASKS = ("regression", "classification")
SPLITS = ("random", "group")


@dataclass(frozen=True)
class TableOutline:
    """One party's file, its identifiers and features; without ``features`` all other columns are features."""

    file: str
    identifiers: list[str]
    features: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    label: str = ""
    transform: str = ""


@dataclass(frozen=True)
class LinkOutline:
    """How records find their partners."""

    metric: str
    k: int
    casefold: bool = False


@dataclass(frozen=True)
class Outline:
    """An experiment on the user's own files: tables, links, splits and rungs."""

    name: str
    unit: str
    task: str
    splits: list[str]
    primary: TableOutline
    secondary: TableOutline
    link: LinkOutline
    rungs: list[Rung]


def read_outline(path: Path) -> Outline:
    """The experiment of a TOML file."""
    words = read_words(path)
    sections = {
        "primary": section(TableOutline, words.get("primary", {}), "primary"),
        "secondary": section(TableOutline, words.get("secondary", {}), "secondary"),
        "link": section(LinkOutline, words.get("link", {}), "link"),
        "rungs": [rung_from(rung) for rung in words.get("rungs", [])],
    }
    outline = section(Outline, {**words, **sections}, "file")
    check_word(outline.task, TASKS, "task")
    for split in outline.splits:
        check_word(split, SPLITS, "split")
    return outline


def read_words(path: Path) -> dict[str, Any]:
    """What a TOML file says, in plain words."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"{path} cannot be read as an experiment: {error}") from error


def rung_from(words: dict[str, Any]) -> Rung:
    """A rung as a file describes it; its key follows from its name where none is given."""
    name = words.get("name", "")
    return section(Rung, {"key": re.sub(r"\W+", "-", name.lower()).strip("-"), **words}, "rungs")


def check_word(word: str, known: Collection[str], setting: str) -> None:
    """Refuse a word that stands for nothing."""
    if word not in known:
        raise SettingError(f"{setting} '{word}' is unknown; choose {' or '.join(known)}")


def section(kind: type[Section], words: dict[str, Any], name: str) -> Section:
    """A part of a file as the value it describes."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(words) - known)
    if unknown:
        raise SettingError(f"[{name}] has no setting '{unknown[0]}'; it has {', '.join(sorted(known))}")
    try:
        return kind(**words)
    except TypeError:
        raise SettingError(f"[{name}] lacks a setting; it has {', '.join(sorted(known))}") from None
