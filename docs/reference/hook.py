"""MkDocs hooks: add generated pages and pages outside ``docs``, and rewrite their links."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

from api import api_pages
from commands import command_pages
from failures import errors_page
from gallery import gallery_pages
from metrics import metrics_page
from settings import settings_page

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/RESULTS.md": "project/benchmarks.md",
    "deploy/README.md": "project/deployment.md",
    "examples/three_processes/README.md": "project/three-processes.md",
}
HOMES = {place: name for name, place in OUTSIDE.items()}
WORKER_URL = "https://unpkg.com/iframe-worker/shim"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def generated() -> dict[str, str]:
    """Return the generated pages by path."""
    pages = {"settings": settings_page(), "errors": errors_page(), "metrics": metrics_page()}
    pages |= {**command_pages(), **api_pages()}
    return {f"reference/{name}.md": text for name, text in pages.items()} | gallery_pages()


def on_files(files: Files, config: Any) -> Files:
    """Add pages that are not in ``docs``."""
    for name, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "project/further.md", content=further_page(files, str(config.nav))))
    for place, text in generated().items():
        files.append(File.generated(config, place, content=text))
    return files


def further_page(files: Files, nav: str) -> str:
    """Return the list of all pages that the navigation leaves out, decisions last."""
    lines = ["# Further pages\n", "Measurements, the project and its decisions.\n"]
    for page in sorted(files.documentation_pages(), key=lambda page: (page.src_uri.startswith("adr/"), page.src_uri)):
        if f"'{page.src_uri}'" not in nav:
            title = page.content_string.partition("\n")[0].lstrip("# ")
            decision = "Decision " if page.src_uri.startswith("adr/") else ""
            lines.append(f"- [{decision}{title}]({os.path.relpath(page.src_uri, 'project')})")
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links between repository files as links of the site."""
    place = page.file.src_uri
    if place.startswith(("adr/", "project/")):
        page.meta.setdefault("search", {"boost": 0.5})  # below the pages that explain how things are
    return LINK.sub(lambda link: _on_site(link, place), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Replace the one script that the theme would load from the network by a local copy."""
    return output.replace(WORKER_URL, os.path.relpath("iframe-worker.js", PurePosixPath(page.file.src_uri).parent))


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for the 404 page."""
    return output_content.replace(WORKER_URL, "iframe-worker.js")


def _on_site(link: re.Match[str], place: str) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    home = PurePosixPath(HOMES.get(place, f"docs/{place}")).parent
    named = os.path.normpath(home / target)
    if named in OUTSIDE:
        there = OUTSIDE[named]
    elif named.startswith("docs/"):
        there = named.removeprefix("docs/")
    elif (ROOT / named).exists():  # a file of the repository that is not a page
        return text if text == f"`{named}`" else f"{text} (`{named}`)"
    else:
        return link[0]
    if (ROOT / "docs" / there).is_dir():
        return text
    return f"[{text}]({os.path.relpath(there, PurePosixPath(place).parent)}{anchor})"
