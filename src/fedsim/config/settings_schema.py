"""JSON Schemas of job and party files, and the documentation of every setting that `fedsim explain` shows.

The schemas are generated from the pydantic models and shipped in ``schemas/``, so that `fedsim explain` answers at once
without loading the models. After changing a model, write them again with ``python -m fedsim_lab.schema_generator``.
Choices that other packages registered are added when a shipped schema is loaded.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError, nearest_word
from fedsim.registry import ENCODINGS, REGISTRIES, TOKENS, setting_type

SCHEMA_FOLDER = Path(__file__).with_name("schemas")
SCHEMA_FILES = {"job": "job.schema.json", "party": "party.schema.json"}
MIN_WORD_SIMILARITY = 0.65  # for "did you mean"; with lower values nearly every word resembles some setting

JsonSchema = dict[str, Any]
_TYPE_NAMES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
_PLACEHOLDER = re.compile(r"[A-Z]+")

_PART_TYPES: dict[str, JsonSchema] = {
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "date": {"type": "string", "format": "date"},
    "tuple[float, ...]": {"type": "array", "items": {"type": "number"}},
    "tuple[str, ...]": {"type": "array", "items": {"type": "string"}},
}


# Loading the shipped schemas


def load_schema(name: str) -> JsonSchema:
    """Return the schema of ``"job"`` or ``"party"`` files, including choices that other packages registered."""
    schema: JsonSchema = json.loads((SCHEMA_FOLDER / SCHEMA_FILES[name]).read_text(encoding="utf-8"))
    if name == "job":
        terms = schema["$defs"]["SecondaryTerms"]["properties"]
        encodings = terms["schema"]["properties"]["fields"]["items"]["properties"]["encoding"]["oneOf"]
        tokens = terms["tokens"]["items"]["oneOf"]
        for parts, choices, describe in ((encodings, ENCODINGS, part_schema), (tokens, TOKENS, token_part)):
            known = {part["properties"]["kind"]["const"] for part in parts}
            parts += [describe(kind, choices[kind]) for kind in choices.names(in_jobs=True) if kind not in known]
    add_choices(schema)
    return schema


def read_schema_text(name: str) -> str:
    """Return the schema of ``"job"`` or ``"party"`` files as JSON text."""
    return schema_text(load_schema(name))


def add_choices(schema: Any) -> None:
    """List the names and summaries of a registry wherever a setting names one of its choices."""
    if isinstance(schema, list):
        for part in schema:
            add_choices(part)
    if isinstance(schema, dict):
        for part in schema.values():
            add_choices(part)
        if "x-registry" in schema:
            registry = REGISTRIES[schema["x-registry"]]
            schema["enum"] = list(registry.names(in_jobs=True))
            # The editor extension that reads `#:schema` comments shows these texts beside the choices.
            schema["x-taplo"] = {"docs": {"enumValues": [registry.summary(choice) for choice in schema["enum"]]}}


def schema_text(schema: JsonSchema) -> str:
    """Format a schema as it is shipped."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


# Documentation of settings


@dataclass(frozen=True)
class SettingDoc:
    """Documentation of a setting, or of a section if ``inside`` lists its settings.

    ``name`` is a dotted path in which NAME stands for any name, as in ``secondaries.NAME.k``. ``default`` and
    ``example`` are TOML. ``of_kind`` is set if the setting belongs to one kind of encoding.
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


def list_settings() -> tuple[SettingDoc, ...]:
    """Return every section and setting of job and party files, in the order of the files."""
    return _list_settings(tuple((name, choice) for name, kind in REGISTRIES.items() for choice in kind.names()))


@cache
def _list_settings(_: tuple[tuple[str, str], ...]) -> tuple[SettingDoc, ...]:
    """Read both schemas again only if a choice was registered since."""
    found: list[SettingDoc] = []
    for file in SCHEMA_FILES:
        root = load_schema(file)
        found += _settings_in(root, root, file, "")
    return tuple(found)


def find_settings(name: str) -> list[SettingDoc]:
    """Return the settings with this full name, or else those whose name ends with it.

    >>> [key.name for key in find_settings("secondaries.rentals.k")], [key.name for key in find_settings("max_tau")]
    (['secondaries.NAME.k'], ['policy.max_tau'])
    """
    parts = name.strip().strip("[]").split(".")
    file = parts.pop(0) if len(parts) > 1 and parts[0] in SCHEMA_FILES else ""
    keys = [key for key in list_settings() if file in ("", key.file)]
    found = [key for key in keys if _matches(key.name.split("."), parts)]
    found = found or [key for key in keys if _matches(key.name.split(".")[-len(parts) :], parts)]
    if not found:
        known = {key.name: key.name for key in keys} | {key.leaf: key.name for key in reversed(keys)}
        near = nearest_word(".".join(parts), known, cutoff=MIN_WORD_SIMILARITY)
        near = near or nearest_word(parts[-1], known, cutoff=MIN_WORD_SIMILARITY)
        hint = f"did you mean '{known[near]}'?" if near else "run `fedsim explain` for a list"
        raise SettingError(f"unknown setting '{name[:60]}'; {hint}", code="unknown-setting", value=name)
    return found


def _matches(name: Sequence[str], parts: Sequence[str]) -> bool:
    """Compare two names part by part; NAME and COLUMN match any part."""
    return len(name) == len(parts) and all(
        part == wanted or bool(_PLACEHOLDER.fullmatch(part)) for part, wanted in zip(name, parts, strict=True)
    )


def _settings_in(root: JsonSchema, section: JsonSchema, file: str, prefix: str, kind: str = "") -> Iterator[SettingDoc]:
    """Yield the settings of a section and of all sections in it."""
    required = section.get("required") or next((part.get("required") for part in section.get("anyOf", ())), None) or ()
    for name, reference in section.get("properties", {}).items():
        setting, full = _resolve(root, reference), f"{prefix}{name}"
        yield _setting_doc(full, file, setting, required=name in required, kind=kind)
        for part, part_kind in _sections(setting):
            yield from _settings_in(root, _resolve(root, part), file, f"{full}.", part_kind)
        named = setting.get("additionalProperties")
        if isinstance(named, dict) and "$ref" in named:
            yield from _settings_in(root, _resolve(root, named), file, f"{full}.NAME.")


def _sections(setting: JsonSchema) -> Iterator[tuple[JsonSchema, str]]:
    """Yield the tables inside a setting with their kind: the setting itself, items of a list, or one table per kind."""
    table = setting.get("items", setting)
    if "properties" in table:
        yield table, ""
    for part in table.get("oneOf", ()):
        yield part, part["properties"]["kind"]["const"]


def _resolve(root: JsonSchema, setting: JsonSchema) -> JsonSchema:
    """Merge a setting with the definition that it refers to; its own keys take precedence.

    A setting that is a table or a word refers to the table; ``x-words`` has the words.
    """
    parts = setting.get("anyOf", ())
    if any("$ref" in part for part in parts):
        table = next(part for part in parts if "$ref" in part)
        words = [part["const"] for part in parts if "const" in part]
        return _resolve(root, {**table, **{key: setting[key] for key in setting if key != "anyOf"}, "x-words": words})
    if "$ref" not in setting:
        return setting
    target = root["$defs"][setting["$ref"].rpartition("/")[2]]
    return {**target, **{key: value for key, value in setting.items() if key != "$ref"}}


def _setting_doc(name: str, file: str, setting: JsonSchema, *, required: bool, kind: str) -> SettingDoc:
    named = setting.get("additionalProperties")
    if isinstance(named, dict) and "$ref" in named:
        inside: tuple[str, ...] = ("NAME",)
    else:
        inside = tuple(dict.fromkeys(name for part, _ in _sections(setting) for name in part["properties"]))
    items = setting.get("items", {})
    choices = setting.get("enum") or items.get("enum")
    summaries = (setting if "enum" in setting else items).get("x-taplo", {}).get("docs", {}).get("enumValues", ())
    explained = (f"`{choice}`: {text}" for choice, text in zip(choices or (), summaries, strict=False) if text)
    if inside:
        allowed = " or ".join(["a section", *map(to_toml, setting.get("x-words", ()))])
    elif choices:
        allowed = ("one of " if "enum" in setting else "a list of ") + ", ".join(choices)
    else:
        allowed = str(setting.get("title") or _TYPE_NAMES.get(setting.get("type", ""), ""))
    example = setting.get("examples", [setting.get("default", next(iter(setting.get("enum", [""]))))])[0]
    leaf = name.rpartition(".")[2]
    return SettingDoc(
        name=name,
        file=file,
        meaning=" ".join([setting.get("description", ""), *explained]),
        allowed=allowed,
        default="" if inside or "default" not in setting else to_toml(setting["default"]),
        example="" if inside else f"{leaf} = {to_toml(example, date=setting.get('format') == 'date')}",
        required=required,
        of_kind=kind,
        inside=inside,
    )


def to_toml(value: Any, *, date: bool = False) -> str:
    """Format a value as TOML; with ``date``, text is written as a date, without quotes.

    >>> to_toml({"lat": ["a", 1.5, True]})
    '{ lat = ["a", 1.5, true] }'
    """
    if date:
        return str(value)
    if isinstance(value, dict):
        plain = re.compile(r"[A-Za-z0-9_-]+")
        keys = {key: key if plain.fullmatch(key) else to_toml(key) for key in value}
        entries = ", ".join(f"{keys[key]} = {to_toml(inner)}" for key, inner in value.items())
        return f"{{ {entries} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(inner) for inner in value)}]"
    # JSON and TOML write text, numbers and booleans alike; TOML escapes all characters alike, however large.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


# Encodings and flipped bits, which are dataclasses


def part_schema(kind: str, part: Any, documentation: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """Describe a dataclass and its fields.

    ``documentation`` has the keys ``kind`` and ``kind.field``. An encoding from another package has its summary from
    the registry and documents its settings in ``dataclasses.field(metadata={"title", "description", ...})``.
    """
    known = documentation or {}
    registered = (ENCODINGS.summary(kind) if kind in ENCODINGS else "") or f"The kind {kind}."
    summary = known.get(kind, {"description": registered})["description"]
    word = {"const": kind, "title": f"the word {kind}", "description": summary, "examples": [kind]}
    fields = [field for field in dataclasses.fields(part) if field.init]
    settings = {
        field.name: {
            **_PART_TYPES.get(setting_type(field), {}),
            **({} if field.default in (dataclasses.MISSING, ()) else {"default": field.default}),
            **known.get(f"{kind}.{field.name}", field.metadata),
        }
        for field in fields
    }
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    return {**object_schema({"kind": word, **settings}, ["kind", *required]), "description": summary}


def token_part(kind: str, part: Any, documentation: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """Describe a field of a schema of tokens: a kind with its settings, the columns and the weight."""
    summary = TOKENS.summary(kind) or f"The kind {kind}."
    found = part_schema(kind, part, {kind: {"description": summary}, **(documentation or {})})
    columns = {
        "type": "array",
        "items": {"type": "string"},
        "title": f"a list of {'two names' if part.COLUMNS > 1 else 'one name'}",
        "description": "Agreed names of the columns; a party with other names maps them under identifiers "
        "in its party file.",
        "examples": [["lat", "lon"] if part.COLUMNS > 1 else ["name"]],
    }
    weight = {"type": "number", "title": "a number above 0", "description": "Weight of this field.", "default": 1.0}
    properties = {"columns": columns, **found["properties"], "weight": weight}
    return {**found, "properties": properties, "required": ["columns", *found["required"]]}


def object_schema(properties: JsonSchema, required: Iterable[str]) -> JsonSchema:
    """Describe a table with these settings and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
