"""JSON Schemas of job and party files, and the documentation of every setting that `fedsim explain` shows.

The schemas are generated from the pydantic models and shipped in ``schemas/``, so that `fedsim explain` answers at once
without loading the models. After changing a model, write them again with ``python -m fedsim.config.schema``. Choices
that other packages registered are added when a shipped schema is loaded.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError, nearest_word
from fedsim.registry import ENCODINGS, METHODS, METRICS, PRESETS, Registry

SCHEMA_FOLDER = Path(__file__).with_name("schemas")
SCHEMA_FILES = {"job": "job.schema.json", "party": "party.schema.json"}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MIN_WORD_SIMILARITY = 0.65  # for "did you mean"; with lower values nearly every word resembles some setting

JsonSchema = dict[str, Any]
_REGISTRIES = {registry.kind: registry for registry in (METHODS, METRICS, PRESETS)}
_TYPE_NAMES = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}
_PLACEHOLDER = re.compile(r"[A-Z]+")

# Settings of encodings, combinations and hardening steps, which are dataclasses: valid values, meaning, example. An
# encoding from another package documents its settings in `dataclasses.field(metadata={"title", "description", ...})`.
_PART_SETTINGS: dict[str, tuple[str, str, Any]] = {
    "numeric.low": ("a number", "Smallest number that can be encoded; agreed by all parties.", 39),
    "numeric.high": ("a number above low", "Largest number that can be encoded.", 42),
    "numeric.threshold": (
        "a number above 0",
        "Range of the distance: it grows up to twice this difference and then stays constant. A few times the "
        "difference to the last partner works well.",
        0.01,
    ),
    "numeric.bits": ("a multiple of 8", "Size of the filter; more bits find more of the true neighbours.", 1024),
    "date.low": ("a date", "Earliest date that can be encoded; agreed by all parties.", "1900-01-01"),
    "date.high": ("a date after low", "Latest date that can be encoded.", "2025-12-31"),
    "date.threshold": ("a number of days above 0", "As for numbers, in days.", 365),
    "date.bits": ("a multiple of 8", "Size of the filter.", 1024),
    "string.q": ("a whole number from 1 to 8", "Length of the substrings (q-grams) that are hashed.", 2),
    "string.hashes": ("a whole number from 1 to 1,024", "Number of bits that each q-gram sets.", 20),
    "string.bits": ("a multiple of 8", "Size of the filter; about a third of the bits should be set.", 1024),
    "string.padded": ("true or false", "Mark both ends of the text, so that they count as much as its middle.", True),
    "string.normalised": ("true or false", "Normalise letter case, character width and repeated spaces.", True),
    "sample.bits": ("a multiple of 8", "Size of the filter of the record.", 1024),
    "sample.weights": ("a number for each field", "Weight of each field. Default: equal weights.", [2, 1]),
    "bit-flip.epsilon": (
        "a number above 0 and below 36",
        "Differential privacy of one bit: each bit is flipped with probability 1 / (1 + e^epsilon).",
        3.0,
    ),
}
_PART_KINDS = {
    "numeric": "Numbers, such as latitude.",
    "date": "Dates.",
    "string": "Text, such as a name.",
    "concatenate": "Puts the filters side by side; distances add up.",
    "sample": "Takes secretly chosen bits of every field, by weight.",
    "union": "Combines filters of equal size with OR.",
    "shuffle": "Permutes the bits secretly.",
    "xor-fold": "Combines the two halves of a filter with XOR, which halves its size.",
    "balance": "Appends the complement: all records have the same number of ones, and twice the bits.",
    "bit-flip": "Flips every bit at random.",
}
_PART_TYPES: dict[str, JsonSchema] = {
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "date": {"type": "string", "format": "date"},
    "tuple[float, ...]": {"type": "array", "items": {"type": "number"}},
}


# Loading the shipped schemas


def load_schema(name: str) -> JsonSchema:
    """Return the schema of ``"job"`` or ``"party"`` files, including choices that other packages registered."""
    schema: JsonSchema = json.loads((SCHEMA_FOLDER / SCHEMA_FILES[name]).read_text(encoding="utf-8"))
    if name == "job":
        fields = schema["$defs"]["SecondaryTerms"]["properties"]["schema"]["properties"]["fields"]
        parts = fields["items"]["properties"]["encoding"]["oneOf"]
        known = {part["properties"]["kind"]["const"] for part in parts}
        parts += [_part_schema(kind, ENCODINGS[kind]) for kind in ENCODINGS.names(in_jobs=True) if kind not in known]
    _add_choices(schema)
    return schema


def read_schema_text(name: str) -> str:
    """Return the schema of ``"job"`` or ``"party"`` files as JSON text."""
    return _to_text(load_schema(name))


def _add_choices(schema: Any) -> None:
    """List the names and summaries of a registry wherever a setting names one of its choices."""
    if isinstance(schema, list):
        for part in schema:
            _add_choices(part)
    if isinstance(schema, dict):
        for part in schema.values():
            _add_choices(part)
        if "x-registry" in schema:
            registry: Registry = _REGISTRIES[schema["x-registry"]]
            schema["enum"] = list(registry.names(in_jobs=True))
            # The editor extension that reads `#:schema` comments shows these texts beside the choices.
            schema["x-taplo"] = {"docs": {"enumValues": [registry.summary(choice) for choice in schema["enum"]]}}


def _to_text(schema: JsonSchema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


# Documentation of settings


@dataclass(frozen=True)
class SettingDoc:
    """Documentation of a setting, or of a section if ``inside`` lists its settings.

    ``name`` is a dotted path in which NAME stands for any name, as in ``secondaries.NAME.k``. ``default`` and
    ``example`` are TOML. ``of_kind`` is set if the setting belongs to one kind of encoding, combination or hardening.
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
    return _list_settings(tuple((name, choice) for name, kind in _CHOICES.items() for choice in kind.names()))


_CHOICES = {**_REGISTRIES, "encoding": ENCODINGS}


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
    for name, reference in section.get("properties", {}).items():
        setting, full = _resolve(root, reference), f"{prefix}{name}"
        yield _setting_doc(full, file, setting, required=name in section.get("required", ()), kind=kind)
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
    """Merge a setting with the definition that it refers to; its own keys take precedence."""
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
        allowed = "a section"
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
        return (
            f"{{ {', '.join(f'{keys[key]} = {to_toml(inner)}' for key, inner in value.items())} }}" if value else "{}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_toml(inner) for inner in value)}]"
    # JSON and TOML write text, numbers and booleans alike, except for one character that TOML requires to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Generating the schemas from the models


def build_schema(name: str) -> JsonSchema:
    """Generate the schema of ``"job"`` or ``"party"`` files from the pydantic models."""
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 -- slow, and not needed to explain settings

    from fedsim.config.job import Job  # noqa: PLC0415
    from fedsim.config.party_file import PartyFile  # noqa: PLC0415

    class WithoutTitles(GenerateJsonSchema):
        """Skips titles made of field names: our titles say which values are valid."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    model = Job if name == "job" else PartyFile
    schema = _without_null(model.model_json_schema(schema_generator=WithoutTitles))
    for section in (schema, *schema["$defs"].values()):
        section.pop("title", None)  # the name of a class
    if name == "job":
        terms = schema["$defs"]["SecondaryTerms"]["properties"]
        terms["schema"] = {**_linkage_schema(), **terms["schema"]}
    else:
        column = {"type": "string", "minLength": 1}
        names = {"type": "object", "additionalProperties": column}
        schema["properties"]["identifiers"]["additionalProperties"] = {"anyOf": [column, names]}
    _add_choices(schema)
    return {"$schema": DIALECT, **schema}


def write_schemas(folder: Path = SCHEMA_FOLDER) -> None:
    """Write the schemas that are shipped with the package."""
    for name, file in SCHEMA_FILES.items():
        (folder / file).write_text(_to_text(build_schema(name)), encoding="utf-8")


def _without_null(schema: Any) -> Any:
    """Remove null as an alternative and as a default: TOML has no null."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    choices = [choice for choice in plain.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del plain["anyOf"]
        return {**choices[0], **plain}
    return plain


def _linkage_schema() -> JsonSchema:
    from fedsim.linkage.encoding.schema import COMBINATIONS, HARDENINGS, SCHEMA_VERSION  # noqa: PLC0415

    encodings = {kind: ENCODINGS[kind] for kind in ENCODINGS.names(in_jobs=True)}
    field = _object_schema(
        {
            "column": {
                "type": "string",
                "title": "a name",
                "description": "Agreed name of the column; a party whose column has another name maps it under "
                "identifiers in its party file.",
                "examples": ["lat"],
            },
            "encoding": {"description": "How values are encoded as Bloom filters.", "oneOf": _part_schemas(encodings)},
            "salt": {
                "type": "string",
                "title": "a name",
                "description": "A second column whose value is part of every hash of a text: texts match only if it is "
                "equal.",
                "examples": ["born"],
            },
        },
        ["column", "encoding"],
    )
    return _object_schema(
        {
            "version": {
                "const": SCHEMA_VERSION,
                "title": f"the number {SCHEMA_VERSION}",
                "description": "Version of the schema format.",
                "examples": [SCHEMA_VERSION],
            },
            "fields": {
                "type": "array",
                "minItems": 1,
                "description": "The identifier columns, in the order of their filters.",
                "items": field,
            },
            "combine": {
                "description": "How the filters of the fields are combined. Default: side by side.",
                "oneOf": _part_schemas(COMBINATIONS),
            },
            "hardening": {
                "type": "array",
                "description": "Steps that make filters harder to decode, in order. Default: none.",
                "items": {"oneOf": _part_schemas(HARDENINGS)},
            },
        },
        ["version", "fields"],
    )


def _part_schemas(kinds: Mapping[str, Any]) -> list[JsonSchema]:
    return [_part_schema(kind, part) for kind, part in kinds.items()]


def _part_schema(kind: str, part: Any) -> JsonSchema:
    """Describe the settings of an encoding, combination or hardening step, which is a dataclass."""
    fields = [field for field in dataclasses.fields(part) if field.init]
    summary = _PART_KINDS.get(kind) or (ENCODINGS.summary(kind) if kind in ENCODINGS else "") or f"The kind {kind}."
    word = {"const": kind, "title": f"the word {kind}", "description": summary, "examples": [kind]}
    settings = {field.name: _part_setting(f"{kind}.{field.name}", field) for field in fields}
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    return {**_object_schema({"kind": word, **settings}, ["kind", *required]), "description": summary}


def _part_setting(name: str, field: dataclasses.Field[Any]) -> JsonSchema:
    default = {} if field.default in (dataclasses.MISSING, ()) else {"default": field.default}
    kind = _PART_TYPES.get(str(getattr(field.type, "__name__", field.type)), {})
    if name not in _PART_SETTINGS:
        return {**kind, **default, **field.metadata}
    title, description, example = _PART_SETTINGS[name]
    return {**kind, **default, "title": title, "description": description, "examples": [example]}


def _object_schema(properties: JsonSchema, required: Iterable[str]) -> JsonSchema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


if __name__ == "__main__":
    write_schemas()
