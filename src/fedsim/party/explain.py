"""What a setting of a job or party file means, from the shipped schemas alone, so that the answer is instant.

A setting is known by its place, ``training.wire``; NAME stands for any name, as in ``secondaries.NAME.k``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedsim.errors import SettingError, nearest_word
from fedsim.party.shipped_schemas import FILES, shipped

Schema = dict[str, Any]
_TYPES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
_ANY = re.compile(r"[A-Z]+")
LIKE = 0.65  # share of letters in common: among so many short names nearly every word is a little like one


@dataclass(frozen=True)
class Key:
    """One setting, or a section where ``inside`` names its settings; ``default`` and ``example`` are written as TOML.

    ``of_kind`` is set where the setting belongs to one kind of encoding, combination or hardening.
    """

    name: str
    file: str
    meaning: str
    allowed: str
    default: str
    example: str
    required: bool
    of_kind: str = ""
    inside: tuple[str, ...] = ()

    @property
    def leaf(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


@cache
def all_keys() -> tuple[Key, ...]:
    """Every section and setting of both files, in the order of the files."""
    return tuple(key for file in FILES for key in _keys_in(file))


def keys_for(word: str) -> list[Key]:
    """What a word may mean: the full name of a setting, or the end of one.

    >>> [key.name for key in keys_for("secondaries.rentals.k")], [key.name for key in keys_for("max_tau")]
    (['secondaries.NAME.k'], ['policy.max_tau'])
    """
    asked = word.strip().strip("[]").split(".")
    file = asked.pop(0) if len(asked) > 1 and asked[0] in FILES else ""
    keys = [key for key in all_keys() if file in ("", key.file)]
    whole = [key for key in keys if _fits(key.name.split("."), asked)]
    found = whole or [key for key in keys if _fits(key.name.split(".")[-len(asked) :], asked)]
    if not found:
        raise SettingError(f"unknown setting '{word[:60]}'; {_hint('.'.join(asked), keys)}")
    return found


def _fits(name: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether every part is the one asked for; NAME and COLUMN stand for any."""
    return len(name) == len(asked) and all(
        part == wanted or bool(_ANY.fullmatch(part)) for part, wanted in zip(name, asked, strict=True)
    )


def _hint(word: str, keys: Sequence[Key]) -> str:
    names = {key.name: key.name for key in keys} | {key.leaf: key.name for key in reversed(keys)}
    near = next(filter(None, (nearest_word(said, names, cutoff=LIKE) for said in (word, word.rpartition(".")[2]))), "")
    return f"did you mean '{names[near]}'?" if near else "`fedsim explain` lists them all"


def _keys_in(file: str) -> Iterator[Key]:
    root = shipped(file)
    yield from _inside(root, root, file, "")


def _inside(root: Schema, section: Schema, file: str, place: str, kind: str = "") -> Iterator[Key]:
    """The settings of a section and of all sections in it."""
    for name, setting in section.get("properties", {}).items():
        full = f"{place}{name}"
        inner = _resolved(root, setting)
        yield _key(full, file, inner, required=name in section.get("required", ()), kind=kind)
        for part, part_kind in _sections(inner):
            yield from _inside(root, _resolved(root, part), file, f"{full}.", part_kind)
        named = inner.get("additionalProperties")
        if isinstance(named, dict) and "$ref" in named:
            yield from _inside(root, _resolved(root, named), file, f"{full}.NAME.")


def _sections(setting: Schema) -> Iterator[tuple[Schema, str]]:
    """Tables inside a setting: itself, those of a list, or one for every kind."""
    here = setting.get("items", setting)
    if "properties" in here:
        yield here, ""
    for part in here.get("oneOf", ()):
        yield part, part["properties"]["kind"]["const"]


def _resolved(root: Schema, setting: Schema) -> Schema:
    """With what it refers to; words at the place itself come first."""
    if "$ref" not in setting:
        return setting
    target = root["$defs"][setting["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in setting.items() if key != "$ref"}}


def _key(name: str, file: str, setting: Schema, *, required: bool, kind: str) -> Key:
    inside = _names_in(setting)
    written = "" if inside else _example(name.rpartition(".")[2], setting)
    default = "" if inside or "default" not in setting else toml(setting["default"])
    return Key(
        name=name,
        file=file,
        meaning=setting.get("description", ""),
        allowed="a section" if inside else _allowed(setting),
        default=default,
        example=written,
        required=required,
        of_kind=kind,
        inside=inside,
    )


def _names_in(setting: Schema) -> tuple[str, ...]:
    named = setting.get("additionalProperties")
    if isinstance(named, dict) and "$ref" in named:
        return ("NAME",)
    names = [name for part, _ in _sections(setting) for name in part["properties"]]
    return tuple(dict.fromkeys(names))


def _allowed(setting: Schema) -> str:
    words = setting.get("enum") or setting.get("items", {}).get("enum")
    if words:
        return ("one of " if "enum" in setting else "a list of ") + ", ".join(words)
    return str(setting.get("title") or _TYPES.get(setting.get("type", ""), ""))


def _example(leaf: str, setting: Schema) -> str:
    shown = setting.get("examples", [setting.get("default", next(iter(setting.get("enum", [""]))))])[0]
    return f"{leaf} = {toml(shown, date=setting.get('format') == 'date')}"


def toml(value: Any, *, date: bool = False) -> str:
    """A value as a TOML file has it; dates stand there without quotes.

    >>> toml({"lat": ["a", 1.5, True]})
    '{ lat = ["a", 1.5, true] }'
    """
    if date:
        return str(value)
    if isinstance(value, dict):
        settings = (f"{_bare(key)} = {toml(inside)}" for key, inside in value.items())
        return f"{{ {', '.join(settings)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(inside) for inside in value)}]"
    # JSON writes text, numbers, true and false as TOML does, but for one sign that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml(key)
