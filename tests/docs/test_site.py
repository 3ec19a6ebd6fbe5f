"""The documentation builds without a warning, asks the network for nothing, and reads well from the disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from browser import browser_page, needs_browser
from docs_runner import ROOT
from fedsim.cli import ExitCode
from fedsim.cli.app import app
from fedsim.config.settings_schema import list_settings

pytestmark = pytest.mark.slow
FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?https?://")
SEARCH = """const field = document.querySelector("[data-md-component=search-query]");
field.focus();
field.value = "placebo";
for (const kind of ["input", "keyup"]) field.dispatchEvent(new Event(kind))"""
FOUND = 'document.querySelectorAll(".md-search-result__item").length > 0'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as strictly as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 40
    assert [page.name for page in pages if FETCHED.search(text_of(page))] == []


def test_every_command_setting_and_exit_code_is_in_the_reference(site: Path) -> None:
    commands, settings, errors = (
        text_of(site / f"reference/{name}.html") for name in ("commands", "settings", "errors")
    )
    visible = {name: one for name, one in typer.main.get_command(app).commands.items() if not one.hidden}
    assert all(f"<code>fedsim {name}" in commands for name in visible)
    assert all(f"<code>{key.name}</code>" in settings for key in list_settings() if not key.inside)
    assert all(f"<td>{code:d}</td>" in errors for code in ExitCode)


def test_the_navigation_has_at_most_25_pages_and_leads_to_all_others(site: Path) -> None:
    index = text_of(site / "index.html")
    shown = set(re.findall(r'href="([^"#]+)" class="md-nav__link[ "]', index))
    assert 20 < len(shown) <= 25
    overviews = [site / name for name in shown]
    linked = {
        (page.parent / link).resolve() for page in overviews for link in re.findall(r'href="([^"#:]+)', text_of(page))
    }
    assert {page for page in site.glob("**/*.html") if page.name != "404.html"} <= linked


@pytest.mark.parametrize(
    ("name", "printed", "charts"),
    [
        ("places", "Links(600 records", 1),
        ("names", "Links(500 records", 0),
        ("people", "3072 bits", 0),
        ("several_partners", "with rentals and schools RMSE", 1),
        ("protect_and_audit", "cells of 100 metres", 1),
    ],
)
def test_the_gallery_shows_what_its_examples_print_and_draw(site: Path, name: str, printed: str, charts: int) -> None:
    page = text_of(site / f"gallery/{name}.html")
    assert printed in page
    assert page.count('role="img"') == charts


def test_the_api_shows_signatures_and_examples(site: Path) -> None:
    linkage = text_of(site / "reference/api/linkage.html")
    assert 'id="link"' in linkage
    assert "get_metric" in linkage
    assert ":class:" not in linkage


@needs_browser
@pytest.mark.parametrize("name", ["index", "concepts", "tutorial", "reference/settings", "gallery/places"])
def test_a_page_reads_well_on_a_phone_from_the_disk(site: Path, name: str) -> None:
    page = browser_page(site / f"{name}.html", 400)
    outside = [address for address in page.requests if not address.startswith(site.as_uri())]
    assert (page.errors, outside, page.overflows) == ([], [], False), page.screenshot


@needs_browser
def test_no_page_of_commands_is_longer_than_ten_screens(site: Path) -> None:
    longest = max(site.glob("reference/commands/*.html"), key=lambda page: page.stat().st_size)
    browser_page(longest, 1280, ready="document.documentElement.scrollHeight <= 8000")


@needs_browser
def test_search_works_without_a_server(site: Path) -> None:
    page = browser_page(site / "index.html", 1300, act=SEARCH, ready=FOUND)
    assert page.errors == []
    assert "Concepts" in page.text
