"""Classify and parse single table cells: missing values, numbers, ISO dates."""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from decimal import Decimal
from numbers import Real

# Dates as they are written in tables: one way, the same everywhere


# [0-9], because \d takes the digits of every script.
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}.*)?")


def parse_iso_datetime(text: str) -> datetime | None:
    """The moment of ``1984-07-31`` or of ``1984-07-31T09:30``, as the clock on the wall shows it; ``None`` for others.

    >>> parse_iso_datetime("1984-07-31 09:30:00+08:00"), parse_iso_datetime("84-07-31"), parse_iso_datetime("1984-02-30")
    (datetime.datetime(1984, 7, 31, 9, 30), None, None)
    """
    if not _ISO_DATE.fullmatch(text):
        return None
    # Where more stands behind the minutes than Python knows, the minutes count.
    for part in (text, text[:16]):
        try:
            return datetime.fromisoformat(part).replace(tzinfo=None)
        except ValueError:
            continue
    return None


def parse_iso_date(text: str) -> date | None:
    """The day of :func:`iso_moment`.

    >>> parse_iso_date("1984-07-31"), parse_iso_date("84-07-31"), parse_iso_date("1984-02-30")
    (datetime.date(1984, 7, 31), None, None)
    """
    moment = parse_iso_datetime(text)
    return moment.date() if moment else None


# What one cell of a table is, whatever library it came from: missing, a number, a day, or none of these
#
# One set of rules for all that read identifiers; each reader says in its own sentence what it wanted.


# The missing values of pandas, known by name because pandas need not be installed.
_MISSING_TYPES = {"NAType", "NaTType"}


def is_missing(cell: object) -> bool:
    """Whether nothing stands there.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    return cell is None or (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in _MISSING_TYPES


def is_number(cell: object) -> bool:
    """Whether it is a number; true and false are none, and neither is text that looks like one.

    >>> is_number(Decimal("1.5")), is_number(True), is_number("1.5")
    (True, False, False)
    """
    return isinstance(cell, Real | Decimal) and not isinstance(cell, bool) and not is_missing(cell)


def to_date(cell: object) -> date | None:
    """The day of a date, of a moment as its own clock shows it, or of ISO text; ``None`` for anything else.

    >>> to_date("1984-07-31T09:30"), to_date(19840731)
    (datetime.date(1984, 7, 31), None)
    """
    if isinstance(cell, str):
        return parse_iso_date(cell)
    return date(cell.year, cell.month, cell.day) if isinstance(cell, date) and not is_missing(cell) else None
