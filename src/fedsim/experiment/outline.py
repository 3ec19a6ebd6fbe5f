"""What an experiment file says."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fedsim.errors import FileError, SettingError

Section = TypeVar("Section")
TASKS = ("regression", "classification")
SPLITS = ("random", "group")
PARTNERS = ("real", "placebo")


@dataclass(frozen=True)
class TableOutline:
    """One party's file, its identifiers and features; without ``features`` all other columns are features."""

    file: str
    identifiers: list[str]
    features: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
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
class Rung:
    """One training: which preset and method, on which inputs. ``partner`` is ``real`` or ``placebo``."""

    name: str
    preset: str
    method: str
    partner: str = "real"
    own_identifiers: bool = False
    k: int | None = None
    epochs: int | None = None
    batch: int | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Outline:
    """An experiment: tables, links, splits and rungs."""

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
    try:
        with path.open("rb") as file:
            words = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"{path} cannot be read as an experiment: {error}") from error
    sections = {
        "primary": _section(TableOutline, words.get("primary", {}), "primary"),
        "secondary": _section(TableOutline, words.get("secondary", {}), "secondary"),
        "link": _section(LinkOutline, words.get("link", {}), "link"),
        "rungs": [_section(Rung, rung, "rungs") for rung in words.get("rungs", [])],
    }
    outline = _section(Outline, {**words, **sections}, "file")
    check_word(outline.task, TASKS, "task")
    for split in outline.splits:
        check_word(split, SPLITS, "split")
    for rung in outline.rungs:
        check_word(rung.partner, PARTNERS, "partner")
    return outline


def check_word(word: str, known: Collection[str], setting: str) -> None:
    """Refuse a word that stands for nothing."""
    if word not in known:
        raise SettingError(f"{setting} '{word}' is unknown; choose {' or '.join(known)}")


def _section(kind: type[Section], words: dict[str, Any], name: str) -> Section:
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(words) - known)
    if unknown:
        raise SettingError(f"[{name}] has no setting '{unknown[0]}'; it has {', '.join(sorted(known))}")
    try:
        return kind(**words)
    except TypeError:
        raise SettingError(f"[{name}] lacks a setting; it has {', '.join(sorted(known))}") from None
