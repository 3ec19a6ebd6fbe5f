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
    SCHEMA_FOLDER,
    SettingDoc,
    find_settings,
    list_settings,
    load_schema,
    read_schema_text,
)
from fedsim.linkage.encoding.filters import NumericFilter
from fedsim.registry import ENCODINGS, METHODS, METRICS, PRESETS
from fedsim_lab.schema_generator import build_schema, write_schemas

ROOT = Path(__file__).parents[3]
FILES = [*(ROOT / "tests" / "golden").glob("job*.toml"), *(ROOT / "examples" / "three_processes").glob("*.toml")]


def validator(path: Path) -> Draft202012Validator:
    return Draft202012Validator(load_schema("job" if path.name == "job.toml" else "party"))


def as_json(words: Any) -> Any:
    return json.loads(json.dumps(words, default=date.isoformat))


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_the_shipped_schemas_are_up_to_date(name, tmp_path):
    write_schemas(tmp_path)
    shipped, file = SCHEMA_FOLDER / SCHEMA_FILES[name], tmp_path / SCHEMA_FILES[name]
    assert shipped.read_text() == file.read_text(), "write them again: python -m fedsim_lab.schema_generator"
    assert read_schema_text(name) == shipped.read_text()
    Draft202012Validator.check_schema(load_schema(name))


def test_choices_of_other_packages_are_in_the_schema_and_the_documentation():
    class MyEncoding(NumericFilter):
        """An encoding of another package."""

    with (
        METHODS.temporarily("mine", object(), summary="Weighs partners by age."),
        PRESETS.temporarily("mine", object(), summary="Small networks."),
        METRICS.temporarily("mine", object(), summary="A metric."),
        ENCODINGS.temporarily("mine", MyEncoding, summary="Numbers of mine."),
    ):
        for name in SCHEMA_FILES:
            assert load_schema(name) == as_json(build_schema(name))
        [method] = find_settings("training.method")
        assert "mine" in method.allowed
        assert "Weighs partners by age." in method.meaning
        assert any(key.of_kind == "mine" for key in find_settings("secondaries.NAME.schema.fields.encoding.low"))
    assert not any(key.of_kind == "mine" for key in list_settings())


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
        ('[{ kind = "balance" }]', '[{ kind = "bit-flip" }]'),
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
