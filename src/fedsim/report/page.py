"""The parts of an HTML page (figures, tables, sections), and rendering a template to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsim.storage.files import atomic_write

# A chart with its words and its numbers


@dataclass(frozen=True)
class Figure:
    """``title`` and ``caption`` around the picture; ``head`` and ``rows`` say the same as a table.

    ``notes`` are sentences below the picture, for what it does not show by itself.
    """

    title: str
    caption: str
    picture: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


# A part of a page: a heading, a few sentences, figures and tables


@dataclass(frozen=True)
class PageTable:
    """Cells under their heads; ``caption`` says what they are, ``note`` how to read them."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class PageSection:
    """``anchor`` is what the page's own table of contents points to."""

    anchor: str
    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[PageTable, ...] = ()


# Templates filled in, everything put into them escaped, and pages written whole


def render_template(template: str, **content: Any) -> str:
    """The page of a template of this folder."""
    pages = Environment(loader=PackageLoader("fedsim", "report"), autoescape=True, undefined=StrictUndefined)
    return pages.get_template(template).render(**content)


def write_page(page: str, path: Path | str) -> None:
    """Replace ``path`` by the page."""
    with atomic_write(Path(path)) as part:
        part.write_text(page, encoding="utf-8")
