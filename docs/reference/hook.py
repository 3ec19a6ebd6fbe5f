"""What MkDocs asks while it builds: pages that are generated, pages of the project outside ``docs``, their links."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

from api import api_pages
from commands import commands_page
from failures import errors_page
from settings import settings_page

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/RESULTS.md": "project/benchmarks.md",
    "experiments/RESULTS.md": "project/experiments.md",
    "deploy/README.md": "project/deployment.md",
    "examples/three_processes/README.md": "project/three-processes.md",
}
HOMES = {place: name for name, place in OUTSIDE.items()}
AFAR = "https://unpkg.com/iframe-worker/shim"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def generated() -> dict[str, str]:
    """Pages that are in no file, by their place."""
    pages = {"commands": commands_page(), "settings": settings_page(), "errors": errors_page()}
    pages |= {f"api/{name}": text for name, text in api_pages().items()}
    return {f"reference/{name}.md": text for name, text in pages.items()}


def on_config(config: Any) -> Any:
    """Every decision stands in the navigation."""
    config.nav.append({"Decisions": [f"adr/{page.name}" for page in sorted((ROOT / "docs" / "adr").glob("*.md"))]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in ``docs``."""
    for name, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are in the repository become links of the site."""
    place = page.file.src_uri
    return LINK.sub(lambda link: _on_site(link, place), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The one script that the theme would fetch from elsewhere lies beside the pages."""
    return output.replace(AFAR, os.path.relpath("iframe-worker.js", PurePosixPath(page.file.src_uri).parent))


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page that says that there is none."""
    return output_content.replace(AFAR, "iframe-worker.js")


def _on_site(link: re.Match[str], place: str) -> str:
    words, target, anchor = link[1], link[2], link[3] or ""
    home = PurePosixPath(HOMES.get(place, f"docs/{place}")).parent
    named = os.path.normpath(home / target)
    if named in OUTSIDE:
        there = OUTSIDE[named]
    elif named.startswith("docs/"):
        there = named.removeprefix("docs/")
    elif (ROOT / named).exists():  # a part of the project that is no page
        return words if words == f"`{named}`" else f"{words} (`{named}`)"
    else:
        return link[0]
    if (ROOT / "docs" / there).is_dir():
        return words
    return f"[{words}]({os.path.relpath(there, PurePosixPath(place).parent)}{anchor})"
