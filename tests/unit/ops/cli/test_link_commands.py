"""From a key and a schema to filters, and from filters to links."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import polars as pl
import pytest

from fedsim.cli import main
from fedsim.linkage import load_encoded, load_links

CANARY = "Zaphod"
SCHEMA = {
    "version": 1,
    "fields": [
        {"column": "name", "encoding": {"kind": "string"}},
        {"column": "born", "encoding": {"kind": "date", "low": "1900-01-01", "high": "2020-01-01", "threshold": 400}},
        {"column": "floor", "encoding": {"kind": "numeric", "low": 0, "high": 50, "threshold": 3}},
    ],
}
ENCODE = ["encode", "--schema", "schema.json", "--key", "key.hex"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two registers, a schema and a key."""
    people = {
        "name": ["ada", "alan", CANARY],
        "born": ["1915-12-10", "1912-06-23", "1979-10-12"],
        "floor": ["3", "9", "42"],
    }
    pl.DataFrame(people).write_csv(tmp_path / "ours.csv")
    pl.DataFrame(people).reverse().write_csv(tmp_path / "theirs.csv")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir(tmp_path)
    assert run("certs", "key", "--out", "key.hex", "-q") == 0
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert CANARY not in error
    return error


def test_filters_of_two_parties_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ENCODE, "--table", "ours.csv", "--out", "ours.safetensors") == 0
    assert "3 records" in capsys.readouterr().out
    assert run(*ENCODE, "--table", "theirs.csv", "--out", "theirs.safetensors", "-q") == 0
    tables = ["--primary", "ours.safetensors", "--secondary", "theirs.safetensors"]
    for metric in ("hamming", "dice"):
        assert run("link", *tables, "--metric", metric, "--k", "1", "--out", "links.parquet", "-q") == 0
        assert load_links(folder / "links.parquet").partner.ravel().tolist() == [2, 1, 0]


def test_a_key_is_private_and_never_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = folder / "key.hex"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_text()
    assert before.strip() not in refusal(capsys, "certs", "key", "--out", "key.hex")
    assert key.read_text() == before


def test_filters_under_other_keys_do_not_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("certs", "key", "--out", "other.hex", "-q") == 0
    assert run(*ENCODE, "--table", "ours.csv", "--out", "ours.safetensors", "-q") == 0
    assert run(*ENCODE, "--table", "theirs.csv", "--key", "other.hex", "--out", "theirs.safetensors", "-q") == 0
    tables = ["--primary", "ours.safetensors", "--secondary", "theirs.safetensors"]
    assert "fingerprint" in refusal(
        capsys, "link", *tables, "--metric", "hamming", "--k", "1", "--out", "links.parquet"
    )
    assert not (folder / "links.parquet").exists()


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{", "is not valid JSON (line 1"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"version": 1}', "fields"),
        ('{"version": 9, "fields": []}', "version"),
    ],
)
def test_a_bad_schema_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], content: str, rule: str) -> None:
    (folder / "schema.json").write_text(content)
    assert rule in refusal(capsys, *ENCODE, "--table", "ours.csv", "--out", "ours.safetensors")
    assert not (folder / "ours.safetensors").exists()


def test_a_bad_cell_is_named_by_row_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.DataFrame({"name": ["ada"], "born": [CANARY], "floor": [1]}).write_csv("ours.csv")
    output = refusal(capsys, *ENCODE, "--table", "ours.csv", "--out", "ours.safetensors")
    assert "ours.csv: column 'born', row 1" in output


def test_filters_carry_no_text(folder: Path) -> None:
    assert run(*ENCODE, "--table", "ours.csv", "--out", "ours.safetensors", "-q") == 0
    assert CANARY.encode() not in (folder / "ours.safetensors").read_bytes()
    assert len(load_encoded(folder / "ours.safetensors")) == 3


@pytest.mark.parametrize("name", ["key.hex", "schema.json", "ours.csv"])
def test_an_output_never_replaces_an_input(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = (folder / name).read_bytes()
    assert "would replace the input" in refusal(
        capsys, *ENCODE, "--table", "ours.csv", "--out", f"../{folder.name}/{name}"
    )
    assert (folder / name).read_bytes() == before


def test_numbers_under_a_text_encoding_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.DataFrame({"name": [7], "born": ["1990-01-01"], "floor": [1]}).write_parquet("ours.parquet")
    output = refusal(capsys, *ENCODE, "--table", "ours.parquet", "--out", "ours.safetensors")
    assert "column 'name' holds Int64; text is needed" in output


def test_a_salt_may_be_text_at_one_party_and_a_number_at_the_other(folder: Path) -> None:
    salted = {"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string"}, "salt": "year"}]}
    (folder / "schema.json").write_text(json.dumps(salted))
    people = pl.DataFrame({"name": ["ada"], "year": [1915]})
    people.write_csv("ours.csv")
    people.write_parquet("theirs.parquet")
    for table, out in (("ours.csv", "a"), ("theirs.parquet", "b")):
        assert run(*ENCODE, "--table", table, "--out", out, "-q") == 0
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


def test_programs_get_the_whole_fingerprint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ENCODE, "--table", "ours.csv", "--out", "ours.safetensors", "--json") == 0
    result, encoded = json.loads(capsys.readouterr().out), load_encoded(folder / "ours.safetensors")
    assert result == {
        "records": 3,
        "bits": encoded.n_bits,
        "fingerprint": encoded.fingerprint,
        "file": "ours.safetensors",
    }
