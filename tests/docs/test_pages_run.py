"""Every snippet and every command of the README and the docs runs, and prints what the page says it prints."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.cli import main
from fedsim.data.synthetic import city

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCHEMA = """{"version": 1, "fields": [{"column": "name", "encoding": {"kind": "string"}}]}"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def said(code: str) -> list[str]:
    """What the comments behind or below a print promise."""
    behind = re.findall(r"^print\(.*\)(?:  |\n)# (.+)$", code, re.MULTILINE)
    return [line for line in behind if line]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_snippets_print_what_the_page_says(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(compile(code, page.name, "exec"), namespace)  # noqa: S102
        assert capsys.readouterr().out.splitlines() == said(code)


@pytest.fixture
def folder_of_a_newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    town = city(np.random.default_rng(0))
    town.flats.head(300).write_csv(tmp_path / "flats.csv")
    town.rentals.head(1000).write_csv(tmp_path / "rentals.csv")
    for file in (ROOT / "examples" / "three_processes").glob("*.toml"):
        shutil.copy(file, tmp_path)
    names = [f"{first} {last}" for first in ("Ann", "Bob", "Cyd", "Dan") for last in ("Poe", "Roe", "Coe", "Doe")]
    for table in ("clients", "patients"):
        pl.DataFrame({"name": names * 4}).write_csv(tmp_path / f"{table}.csv")
    (tmp_path / "schema.json").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_commands_run(page: Path, folder_of_a_newcomer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ (fedsim .*)$", block.replace("\\\n", " "), re.MULTILINE):
            monkeypatch.setattr("sys.argv", shlex.split(line))
            with pytest.raises(SystemExit) as left:
                main()
            assert left.value.code in (0, None), line
