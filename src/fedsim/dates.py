"""Dates as they are written in tables: one way, the same everywhere."""

from __future__ import annotations

import re
from datetime import date, datetime

# [0-9], because \d takes the digits of every script.
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}.*)?")


def iso_moment(text: str) -> datetime | None:
    """The moment of ``1984-07-31`` or of ``1984-07-31T09:30``, as the clock on the wall shows it; ``None`` for others.

    >>> iso_moment("1984-07-31 09:30:00+08:00"), iso_moment("84-07-31"), iso_moment("1984-02-30")
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


def iso_date(text: str) -> date | None:
    """The day of :func:`iso_moment`.

    >>> iso_date("1984-07-31"), iso_date("84-07-31"), iso_date("1984-02-30")
    (datetime.date(1984, 7, 31), None, None)
    """
    moment = iso_moment(text)
    return moment.date() if moment else None
