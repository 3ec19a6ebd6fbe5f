"""Dates as they are written in tables: one way, the same everywhere."""

from __future__ import annotations

import re
from datetime import date

# [0-9], because \d takes the digits of every script.
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}.*)?")


def iso_date(text: str) -> date | None:
    """The day of ``1984-07-31`` or of ``1984-07-31T09:30``, as it stands there; ``None`` for anything else.

    >>> iso_date("1984-07-31"), iso_date("84-07-31"), iso_date("1984-02-30")
    (datetime.date(1984, 7, 31), None, None)
    """
    if not _ISO_DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return None
