"""``fedsim explain`` answers at once, whatever is asked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner, Result

from fedsim.cli.table_commands import explain
from fedsim.config.settings_schema import find_settings
from fedsim.errors import SettingError


def asked(*words: str) -> Result:
    app = typer.Typer()
    app.command()(explain)
    return CliRunner().invoke(app, words)


def test_a_setting_is_explained_with_type_default_and_example():
    output = asked("training.wire").output
    assert output.startswith("training.wire")
    assert "type       one of float32, float16, bfloat16, int8" in output
    assert 'default    "float32"' in output
    assert 'example    wire = "float32"' in output


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("policy.max_tau", ["policy.max_tau"]),
        ("secondaries.rentals.k", ["secondaries.NAME.k"]),
        ("[secondaries.rentals.schema]", ["secondaries.NAME.schema"]),
        ("tau", ["secondaries.NAME.tau"]),
        ("job.name", ["name"]),
        ("party.network.listen", ["network.listen"]),
        ("encoding.hashes", ["secondaries.NAME.schema.fields.encoding.hashes"]),
        ("wire", ["training.wire"]),
    ],
)
def test_a_setting_is_found_by_its_name_or_the_end_of_it(word, names):
    assert [key.name for key in find_settings(word)] == names


def test_settings_of_several_kinds_are_told_one_by_one():
    output = asked("threshold").output
    assert "kind numeric" in output
    assert "kind date" in output
    assert "a number of days above 0" in output


def test_a_section_lists_its_settings():
    assert "settings   authority, certificate, key" in asked("tls").output


@pytest.mark.parametrize(
    ("word", "near"),
    [("trainig.wire", "training.wire"), ("epoch", "training.epochs"), ("secondaries.NAME.kk", "secondaries.NAME.k")],
)
def test_an_unknown_setting_comes_with_the_nearest(word, near):
    with pytest.raises(SettingError, match=f"did you mean '{near}'"):
        find_settings(word)


@pytest.mark.parametrize("word", ["xyzzy", "nonsense"])
def test_nothing_near_is_told_where_to_look(word):
    with pytest.raises(SettingError) as caught:
        find_settings(word)
    assert caught.value.code == "unknown-setting"


def test_without_a_word_every_setting_has_its_line():
    lines = asked().output.splitlines()
    assert lines[0] == "job file"
    assert any(line.startswith("  policy.max_tau") for line in lines)
    assert max(map(len, lines)) <= 100


def test_programs_get_objects_and_editors_the_schema():
    assert json.loads(asked("tau", "--json").output)[0]["name"] == "secondaries.NAME.tau"
    assert "properties" in json.loads(asked("--schema", "party").output)


def test_nothing_heavy_is_imported():
    program = (
        "import sys\nfrom fedsim.cli import main\n"
        "try:\n    main(['explain', 'tau'])\n"
        "except SystemExit:\n    sys.exit(str({'numpy', 'polars', 'torch'} & set(sys.modules) or ''))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert not done.stderr.strip()
