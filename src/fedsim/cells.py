"""What one cell of a table is, whatever library it came from: missing, a number, a day, or none of these.

One set of rules for all that read identifiers; each reader says in its own sentence what it wanted.
"""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from numbers import Real

from fedsim.dates import iso_date

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


def day_of(cell: object) -> date | None:
    """The day of a date, of a moment as its own clock shows it, or of ISO text; ``None`` for anything else.

    >>> day_of("1984-07-31T09:30"), day_of(19840731)
    (datetime.date(1984, 7, 31), None)
    """
    if isinstance(cell, str):
        return iso_date(cell)
    return date(cell.year, cell.month, cell.day) if isinstance(cell, date) and not is_missing(cell) else None
