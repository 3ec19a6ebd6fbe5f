"""The parts of an HTML page (figures, tables, sections), and rendering a template to a file."""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedsim.errors import replace_unprintable
from fedsim.storage.files import atomic_write

_CODE = re.compile(r"`([^`\n]+)`")
_SPECIAL = re.compile(r"([\\`*_\[\]{}<>|#&])")  # in Markdown


@dataclass(frozen=True)
class Figure:
    """A chart with title and caption; ``head`` and ``rows`` show its numbers, ``notes`` are sentences below it."""

    title: str
    caption: str
    picture: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageTable:
    """A table; ``note`` explains how to read it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class PageSection:
    """A section of a page; ``anchor`` is its id."""

    anchor: str
    title: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[PageTable, ...] = ()


@dataclass(frozen=True)
class FigureGroup:
    """Charts that a notebook shows; elsewhere, :meth:`save` writes them as a page.

    Parameters
    ----------
    title
        What the charts are about.
    figures
        The charts.
    lead, warnings
        Shown above the charts of a page.
    """

    title: str
    figures: tuple[Figure, ...]
    lead: str = ""
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(figure.title for figure in self.figures)
        return f"<{self.title}: {names}; shown by a notebook, or by save('charts.html')>"

    def _repr_html_(self) -> str:
        # The style of our pages, nested so that it holds inside this element only.
        style = Markup(_read_own("page.css").replace(":root", "&"))  # noqa: S704 - our own file, without user data
        page = _templates("fedsim.report").get_template("notebook.html").render(figures=self.figures, style=style)
        return replace_unprintable(page, lines=True)

    def save(self, path: Path | str) -> None:
        """Write the charts as a self-contained HTML page.

        Parameters
        ----------
        path
            The file.
        """
        write_page(self.to_page(), path)

    def to_page(self) -> str:
        """Return the charts as a self-contained HTML page."""
        return render_template("figures_page.html", **vars(self), subject="charts", content="charts")


def render_template(template: str, package: str = "fedsim.report", /, **content: Any) -> str:
    """Render a template of this folder, or of another package that builds on it; everything put into it is escaped.

    The content security policy of a page allows one script, that of the tooltips, by its hash.
    """
    script = _read_own("tips.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    content |= {"script": Markup(script), "script_digest": digest}  # noqa: S704 - our own file, without user data
    return replace_unprintable(_templates(package).get_template(template).render(**content), lines=True)


def _read_own(name: str) -> str:
    return files("fedsim.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _templates(package: str) -> Environment:
    """Return the templates of a package and of this folder, each of which is compiled once."""
    environment = Environment(loader=_template_loader(package), autoescape=True, undefined=StrictUndefined)
    environment.filters["code"] = mark_code
    return environment


def _template_loader(package: str) -> ChoiceLoader:
    return ChoiceLoader([PackageLoader(name, "") for name in dict.fromkeys([package, "fedsim.report"])])


def render_markdown(template: str, package: str = "fedsim.report", /, **content: Any) -> str:
    """Render a Markdown template, as :func:`render_template` does; everything put into it is escaped."""
    environment = Environment(  # noqa: S701 - Markdown, which `finalize` escapes
        loader=_template_loader(package),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else escape_markdown(str(value)),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**content)


def escape_markdown(text: str) -> str:
    r"""Escape user text for Markdown and HTML, and replace what could control a terminal.

    >>> escape_markdown("</script>|a_b\x1b[2J")
    '\\</script\\>\\|a\\_b?\\[2J'
    """
    return _SPECIAL.sub(r"\\\1", replace_unprintable(text))


def mark_code(text: str) -> Markup:
    """Escape a text, and mark up what is between backticks, as in messages for a terminal.

    >>> mark_code("run `fedsim check` if a < b")
    Markup('run <code>fedsim check</code> if a &lt; b')
    """
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def write_page(page: str, path: Path | str) -> None:
    """Write the page to ``path``."""
    with atomic_write(Path(path)) as part:
        part.write_text(page, encoding="utf-8")
