"""Documentation of every job and party setting, read from the shipped JSON Schemas without loading the models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError, nearest_word

# The JSON Schemas that are shipped with the package


SCHEMA_FOLDER = Path(__file__).with_name("schemas")
SCHEMA_FILES = {"job": "job.schema.json", "party": "party.schema.json"}


def read_schema_text(name: str) -> str:
    """The schema of ``job`` or ``party`` files, as text."""
    return (SCHEMA_FOLDER / SCHEMA_FILES[name]).read_text(encoding="utf-8")


def load_schema(name: str) -> dict[str, Any]:
    """The same as a value."""
    found: dict[str, Any] = json.loads(read_schema_text(name))
    return found


# What a setting of a job or party file means, from the shipped schemas alone, so that the answer is instant
#
# A setting is known by its place, ``training.wire``; NAME stands for any name, as in ``secondaries.NAME.k``.


JsonSchema = dict[str, Any]
_TYPES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
_PLACEHOLDER = re.compile(r"[A-Z]+")
MIN_WORD_SIMILARITY = (
    0.65  # share of letters in common: among so many short names nearly every word is a little like one
)


@dataclass(frozen=True)
class SettingDoc:
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
def list_settings() -> tuple[SettingDoc, ...]:
    """Every section and setting of both files, in the order of the files."""
    return tuple(key for file in SCHEMA_FILES for key in _settings_in(file))


def find_settings(word: str) -> list[SettingDoc]:
    """What a word may mean: the full name of a setting, or the end of one.

    >>> [key.name for key in find_settings("secondaries.rentals.k")], [key.name for key in find_settings("max_tau")]
    (['secondaries.NAME.k'], ['policy.max_tau'])
    """
    asked = word.strip().strip("[]").split(".")
    file = asked.pop(0) if len(asked) > 1 and asked[0] in SCHEMA_FILES else ""
    keys = [key for key in list_settings() if file in ("", key.file)]
    whole = [key for key in keys if _fits(key.name.split("."), asked)]
    found = whole or [key for key in keys if _fits(key.name.split(".")[-len(asked) :], asked)]
    if not found:
        raise SettingError(f"unknown setting '{word[:60]}'; {_hint('.'.join(asked), keys)}")
    return found


def _fits(name: Sequence[str], asked: Sequence[str]) -> bool:
    """Whether every part is the one asked for; NAME and COLUMN stand for any."""
    return len(name) == len(asked) and all(
        part == wanted or bool(_PLACEHOLDER.fullmatch(part)) for part, wanted in zip(name, asked, strict=True)
    )


def _hint(word: str, keys: Sequence[SettingDoc]) -> str:
    names = {key.name: key.name for key in keys} | {key.leaf: key.name for key in reversed(keys)}
    near = next(
        filter(
            None, (nearest_word(said, names, cutoff=MIN_WORD_SIMILARITY) for said in (word, word.rpartition(".")[2]))
        ),
        "",
    )
    return f"did you mean '{names[near]}'?" if near else "`fedsim explain` lists them all"


def _settings_in(file: str) -> Iterator[SettingDoc]:
    root = load_schema(file)
    yield from _nested_settings(root, root, file, "")


def _nested_settings(
    root: JsonSchema, section: JsonSchema, file: str, place: str, kind: str = ""
) -> Iterator[SettingDoc]:
    """The settings of a section and of all sections in it."""
    for name, setting in section.get("properties", {}).items():
        full = f"{place}{name}"
        inner = _resolved(root, setting)
        yield _setting_doc(full, file, inner, required=name in section.get("required", ()), kind=kind)
        for part, part_kind in _sections(inner):
            yield from _nested_settings(root, _resolved(root, part), file, f"{full}.", part_kind)
        named = inner.get("additionalProperties")
        if isinstance(named, dict) and "$ref" in named:
            yield from _nested_settings(root, _resolved(root, named), file, f"{full}.NAME.")


def _sections(setting: JsonSchema) -> Iterator[tuple[JsonSchema, str]]:
    """Tables inside a setting: itself, those of a list, or one for every kind."""
    here = setting.get("items", setting)
    if "properties" in here:
        yield here, ""
    for part in here.get("oneOf", ()):
        yield part, part["properties"]["kind"]["const"]


def _resolved(root: JsonSchema, setting: JsonSchema) -> JsonSchema:
    """With what it refers to; words at the place itself come first."""
    if "$ref" not in setting:
        return setting
    target = root["$defs"][setting["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in setting.items() if key != "$ref"}}


def _setting_doc(name: str, file: str, setting: JsonSchema, *, required: bool, kind: str) -> SettingDoc:
    inside = _names_in(setting)
    written = "" if inside else _example(name.rpartition(".")[2], setting)
    default = "" if inside or "default" not in setting else to_toml(setting["default"])
    return SettingDoc(
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


def _names_in(setting: JsonSchema) -> tuple[str, ...]:
    named = setting.get("additionalProperties")
    if isinstance(named, dict) and "$ref" in named:
        return ("NAME",)
    names = [name for part, _ in _sections(setting) for name in part["properties"]]
    return tuple(dict.fromkeys(names))


def _allowed(setting: JsonSchema) -> str:
    words = setting.get("enum") or setting.get("items", {}).get("enum")
    if words:
        return ("one of " if "enum" in setting else "a list of ") + ", ".join(words)
    return str(setting.get("title") or _TYPES.get(setting.get("type", ""), ""))


def _example(leaf: str, setting: JsonSchema) -> str:
    shown = setting.get("examples", [setting.get("default", next(iter(setting.get("enum", [""]))))])[0]
    return f"{leaf} = {to_toml(shown, date=setting.get('format') == 'date')}"


def to_toml(value: Any, *, date: bool = False) -> str:
    """A value as a TOML file has it; dates stand there without quotes.

    >>> to_toml({"lat": ["a", 1.5, True]})
    '{ lat = ["a", 1.5, true] }'
    """
    if date:
        return str(value)
    if isinstance(value, dict):
        settings = (f"{_toml_key(key)} = {to_toml(inside)}" for key, inside in value.items())
        return f"{{ {', '.join(settings)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(inside) for inside in value)}]"
    # JSON writes text, numbers, true and false as TOML does, but for one sign that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else to_toml(key)
