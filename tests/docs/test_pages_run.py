"""Every snippet and every command of the README and the docs runs, and prints what the page says it prints."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from docs_runner import ROOT, Newcomer, blocks
from fedsim import registry as registries
from fedsim.cli.app import app
from fedsim.cli.demo import free_ports

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
TEN_MINUTES = DOCS / "ten-minutes.md"
OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")]
PORTS = ("7411", "7412", "8000")
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)")
NAMED = re.compile(r"`fedsim ([a-z]+)")
SHOWN = re.compile(r"^(?:\w+=\S+ )*fedsim (.+)$", re.MULTILINE)
SOURCE = re.compile(r"`([\w/]+/\w+\.(?:py|js|proto))`")
SOURCE_ROOTS = [ROOT, *(ROOT / "src" / folder for folder in (".", "fedsim", "fedsim/linkage"))]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runs(page: Path) -> bool:
    return any(block.language in ("python", "console") for block in blocks(page))


@pytest.fixture
def newcomer(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Newcomer]:
    """Somebody in the project's folder, with no file but those of the project."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("examples", "Makefile"):
        (project / name).symlink_to(ROOT / name)
    monkeypatch.chdir(project)
    monkeypatch.setattr("fedsim.contribution.ladder.MAX_DOUBLINGS", 0)
    monkeypatch.setattr("fedsim.training.boosted_trees.ROUNDS", 20)
    for registry in registries.REGISTRIES.values():
        monkeypatch.setattr(registry, "_choices", dict(vars(registry)["_choices"]))  # pages register their own
    someone = Newcomer(dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True)))
    yield someone
    someone.stop()


@pytest.mark.parametrize("page", list(filter(runs, PAGES)), ids=named)
def test_a_newcomer_can_do_what_the_page_says(page: Path, newcomer: Newcomer) -> None:
    newcomer.follow(page)


def test_the_first_report_takes_at_most_eight_commands() -> None:
    commands = [line for block in blocks(TEN_MINUTES) for line in block.text.splitlines() if line.startswith("$ ")]
    assert 1 < len(commands) <= 8


def test_two_organisations_train_with_seven_commands_and_four_files_that_are_sent() -> None:
    text = "".join(block.text for block in blocks(DOCS / "organisations.md")).partition("$ fedsim privacy")[0]
    commands = [line.split()[1:] for line in text.splitlines() if line.startswith("$ ")]
    assert sum(words[0] == "fedsim" for words in commands) == 7
    sent = [words[1:-1] for words in commands if words[0] == "cp"]
    assert len([file for files in sent for file in files]) + 1 == 4  # the request to sign is read where it was created


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=named)
def test_links_lead_somewhere_and_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [link for link in LINK.findall(text) if not leads_somewhere(page, link)] == []
    assert set(NAMED.findall(text)) <= set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "deploy" / "README.md"], ids=named)
def test_commands_that_cannot_be_run_here_have_options_that_exist(page: Path) -> None:
    commands = typer.main.get_command(app).commands
    for block in blocks(page):
        for line in SHOWN.findall(block.text) if block.language in ("bash", "sh", "text") else ():
            command, *words = shlex.split(line, comments=True)
            commands[command].make_context(command, words)


def leads_somewhere(page: Path, link: str) -> bool:
    """A file, or a page that is generated."""
    there = (page.parent / link).resolve()
    return there.exists() or any(there.is_relative_to(DOCS / folder) for folder in ("reference", "gallery"))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_shown_on_a_page_can_be_read(page: Path) -> None:
    for block in blocks(page):
        {"toml": tomllib.loads, "json": json.loads}.get(block.language, str)(block.text)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "adr"], ids=named)
def test_source_files_named_on_a_page_exist(page: Path) -> None:
    names = SOURCE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in names if not any((root / name).is_file() for root in SOURCE_ROOTS)] == []
