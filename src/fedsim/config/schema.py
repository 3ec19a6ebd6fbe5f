"""Generate the JSON Schemas of job and party files; run `python -m fedsim.config.schema` after changing a model.

They are shipped beside this module, so that `fedsim explain` needs no model. After a change of the models write them
anew: ``python -m fedsim.config.schema``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from fedsim.config.explain import SCHEMA_FILES, SCHEMA_FOLDER
from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.linkage.encoding.schema import COMBINATIONS, ENCODINGS, HARDENINGS, SCHEMA_VERSION

SCHEMA_MODELS: dict[str, type[BaseModel]] = {"job": Job, "party": PartyFile}
DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Settings of encodings, combinations and hardenings, which are dataclasses: what may be given, what it means, example.
_PARTS: dict[str, tuple[str, str, Any]] = {
    "numeric.low": ("a number", "The least number that can be encoded; agreed by all, not taken from one table.", 39),
    "numeric.high": ("a number above low", "The largest number that can be encoded.", 42),
    "numeric.threshold": (
        "a number above 0",
        "How far numbers are told apart: the distance grows up to twice this and then stands still. A few times the "
        "distance to the last partner wanted.",
        0.01,
    ),
    "numeric.bits": ("a multiple of 8", "Size of the filter; more bits find more of the true neighbours.", 1024),
    "date.low": ("a date", "The earliest date that can be encoded; agreed by all.", "1900-01-01"),
    "date.high": ("a date after low", "The latest date that can be encoded.", "2025-12-31"),
    "date.threshold": ("a number of days above 0", "The same as for numbers, in days.", 365),
    "date.bits": ("a multiple of 8", "Size of the filter.", 1024),
    "string.q": ("a whole number from 1 to 8", "Letters per piece into which a text is cut.", 2),
    "string.hashes": ("a whole number from 1 to 1,024", "Bits that each piece sets.", 20),
    "string.bits": ("a multiple of 8", "Size of the filter; a third of it should be ones.", 1024),
    "string.padded": ("true or false", "Whether both ends are marked, so that they count as much as the middle.", True),
    "string.normalised": ("true or false", "Whether letter case, width and runs of blanks are made alike first.", True),
    "sample.bits": ("a multiple of 8", "Size of the record's filter.", 1024),
    "sample.weights": ("a number for each field", "How much each field counts; left out, all alike.", [2, 1]),
    "bit-flip.epsilon": (
        "a number above 0 and below 36",
        "Differential privacy of one bit: each is flipped with the chance 1 / (1 + e^epsilon).",
        3.0,
    ),
}
_KINDS = {
    "numeric": "Numbers, such as latitude.",
    "date": "Dates.",
    "string": "Text, such as a name.",
    "concatenate": "Filters side by side; distances add up.",
    "sample": "Secretly chosen bits of every field, by weight.",
    "union": "Filters of one size over each other.",
    "shuffle": "Bits in a secret order.",
    "xor-fold": "The two halves of a filter laid over each other: half the size.",
    "balance": "Filter and complement: every record has equally many ones, and twice the bits.",
    "bit-flip": "Every bit flipped by its own coin.",
}
_TYPES: dict[str, dict[str, Any]] = {
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "tuple[float, ...]": {"type": "array", "items": {"type": "number"}},
}


class _SchemaWithoutTitles(GenerateJsonSchema):
    """Without titles made of field names: ours say what may be given."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def build_schema(name: str) -> dict[str, Any]:
    """The schema of ``job`` or ``party`` files."""
    found = _without_null(SCHEMA_MODELS[name].model_json_schema(schema_generator=_SchemaWithoutTitles))
    for section in (found, *found["$defs"].values()):
        section.pop("title", None)  # the name of a class
    if name == "job":
        terms = found["$defs"]["SecondaryTerms"]["properties"]
        terms["schema"] = {**_linkage_schema(), **terms["schema"]}
    else:
        column = {"type": "string", "minLength": 1}
        names = {"type": "object", "additionalProperties": column}
        found["properties"]["identifiers"]["additionalProperties"] = {"anyOf": [column, names]}
    return {"$schema": DIALECT, **found}


def schema_text(name: str) -> str:
    """The schema as it is shipped."""
    return json.dumps(build_schema(name), indent=1, ensure_ascii=False) + "\n"


def _without_null(schema: Any) -> Any:
    """TOML has no null: what may be left out is no alternative of its own."""
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


def _linkage_schema() -> dict[str, Any]:
    field = _object_schema(
        {
            "column": {
                "type": "string",
                "title": "a name",
                "description": "The agreed name of the column; a party whose own column is called otherwise says so "
                "under identifiers.",
                "examples": ["lat"],
            },
            "encoding": {"description": "How its values become filters.", "oneOf": _parts(ENCODINGS)},
            "salt": {
                "type": "string",
                "title": "a name",
                "description": "A second column whose value enters every hash of a text; where it differs, texts no "
                "longer match.",
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
                "description": "The version of this description.",
                "examples": [SCHEMA_VERSION],
            },
            "fields": {
                "type": "array",
                "minItems": 1,
                "description": "The columns that link, in the order of their filters.",
                "items": field,
            },
            "combine": {
                "description": "How the filters of the fields become the one of the record; left out, side by side.",
                "oneOf": _parts(COMBINATIONS),
            },
            "hardening": {
                "type": "array",
                "description": "Steps that make filters harder to read back, in their order; left out, none.",
                "items": {"oneOf": _parts(HARDENINGS)},
            },
        },
        ["version", "fields"],
    )


def _parts(kinds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One table of settings for every kind."""
    return [_part(kind, dataclasses.fields(part)) for kind, part in kinds.items()]


def _part(kind: str, fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, Any]:
    word = {"const": kind, "title": f"the word {kind}", "description": _KINDS[kind], "examples": [kind]}
    settings = {field.name: _setting(f"{kind}.{field.name}", field) for field in fields}
    required = [field.name for field in fields if field.default is dataclasses.MISSING]
    return {**_object_schema({"kind": word, **settings}, ["kind", *required]), "description": _KINDS[kind]}


def _setting(name: str, field: dataclasses.Field[Any]) -> dict[str, Any]:
    title, description, example = _PARTS[name]
    default = {} if field.default in (dataclasses.MISSING, ()) else {"default": field.default}
    kind = _TYPES[str(field.type)]
    return {**kind, **default, "title": title, "description": description, "examples": [example]}


def _object_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def write_schemas(folder: Path = SCHEMA_FOLDER) -> None:
    """Write the schemas as they are shipped."""
    folder.mkdir(exist_ok=True)
    for name in SCHEMA_MODELS:
        (folder / SCHEMA_FILES[name]).write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
