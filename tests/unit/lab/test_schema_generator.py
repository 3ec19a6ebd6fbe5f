"""JSON Schemas are generated from the settings and registries."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fedsim.config.settings_schema import (
    SCHEMA_FILES,
    SCHEMA_FOLDER,
    find_settings,
    list_settings,
    load_schema,
    read_schema_text,
)
from fedsim.linkage.encoding.column_encodings import NumericFilter
from fedsim.registry import ENCODINGS, METHODS, METRICS, PRESETS
from fedsim_lab.schema_generator import build_schema, write_schemas


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
