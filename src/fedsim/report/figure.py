"""A chart with its words and its numbers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


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
