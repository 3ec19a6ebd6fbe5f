"""The shipped JSON Schemas: up to date, complete, and consistent with the models."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fedsim.config.job import read_job
from fedsim.config.settings_schema import (
    SCHEMA_FILES,
    SettingDoc,
    list_settings,
    load_schema,
)

ROOT = Path(__file__).parents[3]
FILES = [*(ROOT / "tests" / "golden").glob("job*.toml"), *(ROOT / "examples" / "three_processes").glob("*.toml")]


def validator(path: Path) -> Draft202012Validator:
    return Draft202012Validator(load_schema("job" if path.name == "job.toml" else "party"))


def as_json(words: Any) -> Any:
    return json.loads(json.dumps(words, default=date.isoformat))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_valid_files_also_pass_the_schema(path):
    validator(path).validate(as_json(tomllib.loads(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 7", "seed = -1"),
        ("seed = 7", "sed = 7"),
        ('"regression"', '"regresion"'),
        ("k = 10", ""),
        ("k = 10", "k = 0"),
        ('kind = "string"', 'kind = "strings"'),
        ("threshold = 365", "treshold = 365"),
        ("version = 1", "version = 2"),
    ],
)
def test_invalid_files_also_fail_the_schema(old, new):
    path = ROOT / "tests" / "golden" / "job.toml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    assert not validator(path).is_valid(as_json(tomllib.loads(text.replace(old, new, 1))))


def without_none(words: Any) -> Any:
    return (
        {key: without_none(value) for key, value in words.items() if value is not None}
        if isinstance(words, dict)
        else words
    )


def test_a_job_as_a_dictionary_passes_the_schema():
    described = read_job(ROOT / "tests" / "golden" / "job.toml").to_dict()
    Draft202012Validator(load_schema("job")).validate(without_none(described))


@pytest.mark.parametrize("key", list_settings(), ids=lambda key: f"{key.file}.{key.name}{key.of_kind}")
def test_every_setting_has_a_meaning_valid_values_and_an_example(key: SettingDoc):
    assert key.meaning.endswith(".")
    assert key.allowed
    assert key.inside or tomllib.loads(key.example)


def test_every_example_is_valid():
    """Each example is what its own piece of schema allows."""

    def look(schema: Any) -> int:
        if isinstance(schema, list):
            return sum(map(look, schema))
        if not isinstance(schema, dict):
            return 0
        plain = {key: value for key, value in schema.items() if key != "$ref"}
        for example in schema.get("examples", ()) if "$ref" not in schema else ():
            Draft202012Validator(plain).validate(example)
        return len(schema.get("examples", ())) + sum(map(look, schema.values()))

    assert sum(look(load_schema(name)) for name in SCHEMA_FILES) > 50
