"""Generate the JSON Schemas of job and party files, which are shipped in ``fedsim/config/schemas``.

After changing a model of :mod:`fedsim.config`, write them again with ``python -m fedsim_lab.schema_generator``.
"""

import ast
import inspect
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from fedsim.config import job, party_file
from fedsim.config.settings_schema import (
    SCHEMA_FILES,
    SCHEMA_FOLDER,
    JsonSchema,
    add_choices,
    object_schema,
    part_schema,
    schema_text,
    token_part,
)
from fedsim.linkage.encoding.schema import CONCATENATE, SCHEMA_VERSION
from fedsim.registry import ENCODINGS, TOKENS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Settings of encodings and of flipped bits, which are dataclasses: valid values, meaning, example.
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
    "place.metres": (
        "a number above 0",
        "Resolution in metres; a hundredth of the usual distance to the last partner is fine enough.",
        1.0,
    ),
    "number.unit": (
        "a number above 0",
        "Resolution: numbers this far apart have distance 1. Units of several fields weigh them against each other.",
        0.5,
    ),
    "day.days": ("a number of days above 0", "Resolution: dates this many days apart have distance 1.", 1.0),
}
_GRID = {
    "levels": ("a whole number from 1 to 32", "Number of widths; each is twice the one before.", 10),
    "cap": (
        "a whole number above 0",
        "Most rows under one token; a wider cell of more rows is left to narrower ones.",
        64,
    ),
    "narrowest": ("a whole number from 0", "The first width in which rows are listed; 0 is the finest.", 2),
    "reach": ("a whole number from 1 to 8", "A record looks into this many cells on either side, at every width.", 2),
    "scale": ("a number above 0", "Distance of similarity 1/2, in widths of the finest cell.", 8.0),
}
_TOKEN_SETTINGS: dict[str, JsonSchema] = {
    name: {"title": title, "description": description, "examples": [example]}
    for name, (title, description, example) in {
        "text.samples": ("a whole number from 1 to 1,000", "Sampled pairs of parts of words; more find more.", 80),
        "text.words": ("a whole number from 1 to 1,000", "Most words, alone or joined with their neighbour.", 24),
        "text.deletions": (
            "a whole number from 1 to 1,000",
            "Most words with a letter left out, for typos.",
            23,
        ),
        "text.cap": ("a whole number from 1 to 1,000", "Tokens of more rows than this are not listed.", 5),
        "code.cap": ("a whole number above 0", "Values of more rows than this are not listed.", 50),
        "place.metres": ("a number of metres", "Width of the finest cell; no place is shown more precisely.", 100),
        "number.width": ("a number above 0", "Width of the narrowest bin; no number is shown more precisely.", 5),
        "date.width": ("a number of days above 0", "Width of the narrowest bin in days.", 1.0),
        **{f"{kind}.{name}": about for kind in ("place", "number", "date") for name, about in _GRID.items()},
    }.items()
}
_PART_KINDS = {
    "numeric": "Numbers, such as latitude.",
    "date": "Dates.",
    "string": "Text, such as a name.",
    "place": "Latitude and longitude as a point of a secretly rotated globe; distances are exact.",
    "number": "A number as a position on an axis with secret origin and direction; distances are exact.",
    "day": "A date as a position on an axis with secret origin and direction; distances are exact.",
}
_PART_DOCUMENTATION: dict[str, JsonSchema] = {
    **{kind: {"description": summary} for kind, summary in _PART_KINDS.items()},
    **{
        name: {"title": title, "description": description, "examples": [example]}
        for name, (title, description, example) in _PART_SETTINGS.items()
    },
}


class _WithoutTitles(GenerateJsonSchema):
    """Skips titles derived from field names: our titles describe the valid values."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def build_schema(name: str) -> JsonSchema:
    """Generate the schema of ``"job"`` or ``"party"`` files from the pydantic models."""
    model: type[BaseModel] = job.Job if name == "job" else party_file.PartyFile
    schema = model.model_json_schema(schema_generator=_WithoutTitles)
    for kind, settings in _attribute_docstrings().items():
        properties = (schema if kind == model.__name__ else schema["$defs"].get(kind, {})).get("properties", {})
        for setting in settings.keys() & properties:
            properties[setting] = dict(sorted({**properties[setting], "description": settings[setting]}.items()))
    schema = _without_null(schema)
    for section in (schema, *schema["$defs"].values()):
        section.pop("title", None)  # the name of a class
    if name == "job":
        section = schema["$defs"]["SecondaryTerms"]
        terms = section["properties"]
        terms["schema"] = {**_linkage_schema(), **terms["schema"]}
        terms["tokens"] = {"type": "array", "minItems": 1, **terms["tokens"], "items": {"oneOf": _token_parts()}}
    else:
        column = {"type": "string", "minLength": 1}
        names = {"type": "object", "additionalProperties": column}
        schema["properties"]["identifiers"]["additionalProperties"] = {"anyOf": [column, names]}
    add_choices(schema)
    return {"$schema": DIALECT, **schema}


def write_schemas(folder: Path = SCHEMA_FOLDER) -> None:
    """Write the schemas that are shipped with the package."""
    for name, file in SCHEMA_FILES.items():
        (folder / file).write_text(schema_text(build_schema(name)), encoding="utf-8")


def _attribute_docstrings() -> dict[str, dict[str, str]]:
    """Return the docstrings of the settings by model; pydantic could read them, too, but on every start."""
    found: dict[str, dict[str, str]] = {}
    for module in (job, party_file):
        for model in ast.parse(inspect.getsource(module)).body:
            if not isinstance(model, ast.ClassDef):
                continue
            for setting, text in pairwise(model.body):
                if isinstance(setting, ast.AnnAssign) and isinstance(text, ast.Expr):
                    name = "schema" if ast.unparse(setting.target) == "filters" else ast.unparse(setting.target)
                    found.setdefault(model.name, {})[name] = " ".join(ast.literal_eval(text.value).split())
    return found


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
    encodings = _describe_parts({kind: ENCODINGS[kind] for kind in ENCODINGS.names(in_jobs=True)})
    field = object_schema(
        {
            "column": {
                "type": "string",
                "title": "a name",
                "description": "Agreed name of the column; a party whose column has another name maps it under "
                "identifiers in its party file.",
                "examples": ["lat"],
            },
            "encoding": {
                "description": "How values are encoded: as filters or as positions.",
                "oneOf": encodings,
            },
            "salt": {
                "type": "string",
                "title": "a name",
                "description": "A second column whose value is part of every hash of a text: texts match only if it is "
                "equal.",
                "examples": ["born"],
            },
            "longitude": {
                "type": "string",
                "title": "a name",
                "description": "The column of the longitude, if the encoding is `place`; `column` is the latitude.",
                "examples": ["lon"],
            },
        },
        ["column", "encoding"],
    )
    return object_schema(
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
                "const": CONCATENATE,
                "title": "the default",
                "description": "The filters of the fields lie side by side.",
                "examples": [CONCATENATE],
            },
            "hardening": {
                "const": [],
                "title": "the default",
                "description": "Nothing, as earlier versions wrote it.",
                "examples": [[]],
            },
        },
        ["version", "fields"],
    )


def _token_parts() -> list[JsonSchema]:
    """Describe a field of every kind of tokens."""
    return [token_part(kind, TOKENS[kind], _TOKEN_SETTINGS) for kind in TOKENS.names(in_jobs=True)]


def _describe_parts(kinds: Mapping[str, Any]) -> list[JsonSchema]:
    return [part_schema(kind, part, _PART_DOCUMENTATION) for kind, part in kinds.items()]


if __name__ == "__main__":
    write_schemas()
