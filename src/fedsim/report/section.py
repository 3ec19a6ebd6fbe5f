"""A part of a page: a heading, a few sentences, figures and tables."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.report.figure import Figure


@dataclass(frozen=True)
class Table:
    """Cells under their heads; ``caption`` says what they are, ``note`` how to read them."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """``anchor`` is what the page's own table of contents points to."""

    anchor: str
    title: str
    words: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
