"""What a table looks like, column by column: kind, gaps, distinct values, range; for proposals, never for training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from fedsim.data.columns import DECIMAL_COMMA
from fedsim.data.kinds import Kind
from fedsim.data.typed import typed
from fedsim.dates import iso_date
from fedsim.errors import InputError

# Words that stand for nothing in tables of numbers.
GAP_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "-", "?")
NUMBER = r"^[+-]?[0-9]+$"
OTHER = "other"  # lists, bytes and whatever else cannot be learnt from


@dataclass(frozen=True, eq=False)
class ColumnLook:
    """One column. ``cells`` are Float64, Date or String without blanks around; ``alone`` counts values of one row only.

    ``kind`` is a word of :class:`Kind`, or ``other``.
    """

    name: str
    kind: str
    cells: pl.Series
    distinct: int
    alone: int

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        return f"ColumnLook({self.name}: {self.kind}, {len(self)} rows)"

    @property
    def filled(self) -> pl.Series:
        """The cells that are there."""
        return self.cells.drop_nulls()

    @property
    def gaps(self) -> int:
        """How many cells are missing."""
        return self.cells.null_count()

    @property
    def numbers(self) -> pl.Series:
        """Numbers, and dates as days; without gaps."""
        return self.filled.to_physical().cast(pl.Float64)

    @property
    def whole(self) -> bool:
        """Whether all its numbers are whole."""
        return self.kind == Kind.NUMBER and bool((self.filled == self.filled.round()).all())

    @property
    def length(self) -> float:
        """Letters of a text, on average."""
        mean = self.filled.str.len_chars().mean() if self.kind == Kind.CATEGORY else 0.0
        return float(mean or 0.0)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class TableLook:
    """A table by its columns; ``name`` is for people, ``gap_words`` are those of :data:`GAP_WORDS` that it uses."""

    name: str
    rows: int
    columns: dict[str, ColumnLook]
    gap_words: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TableLook({self.name}: {self.rows} records, {len(self.columns)} columns)"


def look_at(frame: pl.DataFrame, name: str) -> TableLook:
    """Look at every column; a table with decimal commas is refused, for its numbers would be taken for words."""
    bare = frame.with_columns(pl.col(pl.String).str.strip_chars())
    _refuse_decimal_commas(bare, name)
    words = _gap_words(bare)
    table = typed(bare, words)
    columns = {column.name: _look(column) for column in table.iter_columns()}
    return TableLook(name, len(frame), columns, tuple(words))


def _look(column: pl.Series) -> ColumnLook:
    kind, cells = _kind(column)
    counts = cells.drop_nulls().value_counts()["count"] if kind != OTHER else pl.Series([], dtype=pl.UInt32)
    return ColumnLook(column.name, kind, cells, len(counts), int((counts == 1).sum()))


def _kind(column: pl.Series) -> tuple[str, pl.Series]:
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return Kind.NUMBER, column.cast(pl.Float64).fill_nan(None)
    if column.dtype in (pl.Date, pl.Datetime):
        return Kind.DATE, column.dt.date()
    if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
        return OTHER, column
    text = column.cast(pl.String)
    first = text.drop_nulls().head(1)
    if len(first) and iso_date(first[0]):
        days = pl.Series(column.name, [cell and iso_date(cell) for cell in text], dtype=pl.Date)
        if days.null_count() == text.null_count():
            return Kind.DATE, days
    return Kind.CATEGORY, text


def _gap_words(frame: pl.DataFrame) -> list[str]:
    """The words for gaps that stand in columns which are numbers but for them."""
    found: dict[str, None] = {}
    for column in _texts(frame):
        used = [word for word in GAP_WORDS if (column == word).any()]
        if used and typed(pl.DataFrame([column]), used).dtypes[0] == pl.Float64:
            found |= dict.fromkeys(used)
    return list(found)


def _refuse_decimal_commas(frame: pl.DataFrame, name: str) -> None:
    for column in _texts(frame):
        cells = column.replace([*GAP_WORDS, ""], None)
        commas = cells.str.contains(DECIMAL_COMMA).fill_null(value=False)
        rest = cells.filter(~commas).drop_nulls()
        if commas.any() and rest.str.contains(NUMBER).all():
            row = int(commas.arg_true()[0]) + 1
            raise InputError(
                f"{name}: column '{column.name}', row {row} has a decimal comma; write decimals with a point"
            )


def _texts(frame: pl.DataFrame) -> Iterable[pl.Series]:
    return frame.select(pl.col(pl.String)).iter_columns()
