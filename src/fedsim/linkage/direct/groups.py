"""Disjoint groups of at least m rows, whose averages leave an organisation instead of rows.

Letters: n rows, G groups, L nested cells of a row (narrowest first), d numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from fedsim.errors import SettingError
from fedsim.linkage.direct.token_kinds import mix
from fedsim.linkage.direct.token_schema import FieldTokens, TokenSchema
from fedsim.linkage.encoding.schema import element_to_dict
from fedsim.registry import TOKENS
from fedsim.storage.tensor_file import damaged_file, load_tensors, save_tensors
from fedsim.types import AnyArray, Features, Flags, Floats, Integers, Words

LEFT_OUT = -1
MAX_LOST = 0.1  # of the rows of a cell that its split may leave out; one sparse quarter would block it otherwise
TWO_VALUED = 0.1  # weight of a column of two values beside numbers: there are as many as a table has categories
SHOWN_M = (3, 5, 10, 20)  # for which an owner sees how large groups are
COMMON_CATEGORIES = 32  # of a column; rarer ones count as one
GRID = ("kind", "metres", "width", "levels")  # settings of tokens on which the finest cells depend
Gaps = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]  # places of numbers, and of what marks that they are missing


@dataclass(frozen=True, eq=False)
class Grouping:
    """The ``group`` of every row (n,), or :data:`LEFT_OUT`, and the ``level`` (n,) of the cell that the group fills."""

    group: Integers
    level: Integers

    @property
    def size(self) -> Integers:
        """The number of rows of every group, (G,)."""
        return np.bincount(self.group[self.group >= 0])


def group_by_cells(tokens: Words, m: int) -> Grouping:
    """Group rows by the leaves of a tree of nested cells, given by their tokens (n, L).

    A cell is split as long as its parts with fewer than ``m`` rows lose at most a tenth of its rows, and these are left
    out: so are all rows of a widest cell with fewer than ``m``.

    >>> group_by_cells(np.array([[1, 9], [1, 9], [2, 9], [2, 9], [3, 8]], np.uint64), m=2).group.tolist()
    [0, 0, 1, 1, -1]
    """
    n, levels = tokens.shape
    level = np.full(n, LEFT_OUT)
    cells = [(levels - 1, rows) for rows in _parts(tokens[:, -1], np.arange(n)) if len(rows) >= m]
    while cells:
        at, rows = cells.pop()
        parts = [part for part in _parts(tokens[:, at - 1], rows) if len(part) >= m] if at else []
        if parts and len(rows) - sum(map(len, parts)) <= MAX_LOST * len(rows):
            cells += [(at - 1, part) for part in parts]
        else:
            level[rows] = at
    grouped, group = np.flatnonzero(level >= 0), np.full(n, LEFT_OUT)
    group[grouped] = np.unique(tokens[grouped, level[grouped]], return_inverse=True)[1]
    return Grouping(group, level)


@dataclass(frozen=True)
class GroupSizes:
    """How many ``groups`` of at least ``m`` rows a table has by its cells, and the median of their ``rows``.

    ``cell`` is the median width of their cells in the words of their kind, ``covered`` the share of rows in any group.
    """

    m: int
    groups: int
    rows: float
    cell: str
    covered: float


def group_sizes(schema: TokenSchema, records: Any, table: str = "secondary") -> list[GroupSizes]:
    """Return how large groups by the cells of a schema's only field are, for several m.

    >>> from fedsim.linkage.direct import NumberTokens, TokenField, TokenSchema
    >>> ages = TokenSchema((TokenField(("age",), NumberTokens(width=5)),))
    >>> group_sizes(ages, {"age": [20, 21, 22, 31, 32, 33]})[0]
    GroupSizes(m=3, groups=2, rows=3.0, cell='5', covered=1.0)
    """
    (of,), kind = schema.row_tokens(records, table), schema.fields[0].kind
    cells, found = of.tokens.token.reshape(len(of.rows), -1), []
    for m in SHOWN_M:
        grouping = group_by_cells(cells, m)
        size, first = grouping.size, np.unique(grouping.group, return_index=True)[1][-len(grouping.size) :]
        width, rows = "", 0.0
        if len(size):
            width, rows = _cell(kind, int(np.median(grouping.level[first]))), float(np.median(size))
        found.append(GroupSizes(m, len(size), rows, width, float(size.sum()) / max(1, of.n)))
    return found


def _cell(kind: Any, level: int) -> str:
    """Return how wide the cells of a level are: as wide as the finest ones of a kind with this width."""
    name = next((name for name in ("metres", "width") if hasattr(kind, name)), None)
    wide = replace(kind, **{name: getattr(kind, name) * 2.0**level}) if name else kind
    return str(wide.shown).removeprefix("to ")


def _parts(token: Words, rows: Integers) -> Iterator[Integers]:
    """Yield the rows by their token."""
    order = rows[np.argsort(token[rows], kind="stable")]
    yield from np.split(order, 1 + np.flatnonzero(np.diff(token[order])))


def group_by_features(columns: Floats, m: int) -> Grouping:
    """Group rows that are close in their features (n, d): cut the widest column in half until fewer than 2m are left.

    Widest is the column with the greatest deviation, and halves are whole multiples of ``m``. On real tables this keeps
    more of what rows are worth than the maximum distance to the average vector (``docs/privacy-results.md``), in
    O(n log n) instead of O(n^2). Fewer than ``m`` rows are left out.

    >>> group_by_features(np.array([[0.0], [9.0], [0.1], [9.1], [9.2]]), m=2).group.tolist()
    [0, 1, 0, 1, 1]
    """
    n = len(columns)
    group, count = np.full(n, LEFT_OUT), 0
    # Equal rows stay together, and no result depends on the order of different ones.
    parts = [np.lexsort(columns.T)] if n >= m else []
    while parts:
        rows = parts.pop()
        if len(rows) < 2 * m:
            group[rows], count = count, count + 1
            continue
        widest = int(columns[rows].std(axis=0).argmax())
        rows = rows[np.argsort(columns[rows, widest], kind="stable")]
        half = len(rows) // m // 2 * m
        parts += [rows[half:], rows[:half]]
    return Grouping(group, np.zeros(n, np.int64))


def average_features(features: Features, gaps: Gaps, group: Integers, m: int) -> Features:
    """Return the average of every group, (G, d), of numbers only.

    Missing numbers do not count: a number is the average of at least ``m`` that are present, or missing itself, because
    an average of one would be that row's.

    Parameters
    ----------
    features
        Of all rows, without codes.
    gaps
        Which numbers count as missing where other numbers are 1.
    group
        The group of every row, (n,), or :data:`LEFT_OUT`.
    m
        The least number of values behind an average.

    Examples
    --------
    >>> rooms = Features(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]))
    >>> average_features(rooms, [((0,), (1,))], np.array([0, 0, 0]), m=2).numbers.round(2).tolist()
    [[2.0, 0.33000001311302185]]
    """
    rows = np.flatnonzero(group >= 0)
    rows = rows[np.argsort(group[rows], kind="stable")]
    numbers = features.numbers[rows].astype(np.float64)
    known = np.ones(numbers.shape, bool)
    for values, marks in gaps:
        known[:, list(values)] = ~(numbers[:, list(marks)] == 1).any(axis=1)[:, np.newaxis]
    starts = np.flatnonzero(np.diff(group[rows], prepend=LEFT_OUT))
    counts = np.add.reduceat(known, starts, axis=0, dtype=np.int64)
    enough = counts >= m
    averages = np.where(enough, np.add.reduceat(numbers * known, starts, axis=0) / np.maximum(counts, 1), 0.0)
    for values, marks in gaps:
        averages[:, list(marks)] = np.where(enough[:, values[:1]], averages[:, list(marks)], 1.0)
    return Features(averages, periodic=features.periodic)


# What owners choose from


class ShareLevel(Protocol):
    """What an encrypted table lists, and how many rows stand behind what the primary gets of each entry.

    ``M`` is the default of the least number of rows, ``LEAST`` the smallest that a job may name. ``LISTS_ROWS`` says
    whether every entry is a row.
    """

    M: ClassVar[int]
    LEAST: ClassVar[int]
    LISTS_ROWS: ClassVar[bool]

    def receives(self, m: int) -> str:
        """Say what the primary receives of a secondary's records."""
        ...

    def shows(self, m: int) -> str:
        """Say what the primary can find out about a single record, and what it cannot."""
        ...

    def check(self, schema: TokenSchema) -> None:
        """Raise ``SettingError`` if records that are linked by this schema cannot be shared so."""
        ...

    def bound(self, schema: TokenSchema) -> dict[str, Any]:
        """Return what of a schema groups depend on: no other job on the table may have anything else."""
        ...

    def group(self, fields: Sequence[FieldTokens], features: Features, m: int) -> Grouping:
        """Return groups of at least ``m`` rows, from their tokens by field and their features."""
        ...

    def list(self, schema: TokenSchema, fields: Sequence[FieldTokens], grouping: Grouping) -> Listing:
        """Return what the table lists."""
        ...


@dataclass(frozen=True, eq=False)
class Listing:
    """What an encrypted table lists: ``tokens`` by field, and the ``group`` (u,) behind each of the u entries.

    ``place`` (n,) is where every row stands among them, or :data:`LEFT_OUT`.
    """

    tokens: list[FieldTokens]
    group: Integers
    place: Integers


@dataclass(frozen=True)
class Rows:
    """A vector per row: the average of a group of at least m rows that are close in their features."""

    M: ClassVar[int] = 5
    LEAST: ClassVar[int] = 1
    LISTS_ROWS: ClassVar[bool] = True

    def receives(self, m: int) -> str:
        of = "its features" if m == 1 else f"the average features of a fixed group of at least {m} similar records"
        return f"one vector for every record that it reaches, computed from {of}"

    def shows(self, m: int) -> str:
        if m == 1:
            return "it can compute the chosen columns of every record that it reaches"
        return (
            f"it sees which records its own resemble, and the features of each to within a group of {m} close ones; no "
            "exact value leaves, unless all of a group have it"
        )

    def check(self, schema: TokenSchema) -> None:
        """Do nothing: a row may be listed by tokens of any kind."""

    def bound(self, schema: TokenSchema) -> dict[str, Any]:
        # A row shows a cell of every grid: what two of them have in common is smaller than either.
        grids = [element_to_dict(field.kind) for field in schema.fields if field.kind.shown]
        return {"cells": [{name: of[name] for name in GRID if name in of} for of in grids]}

    def group(self, fields: Sequence[FieldTokens], features: Features, m: int) -> Grouping:
        weight = np.full(features.numbers.shape[1], TWO_VALUED)
        weight[list(features.many_valued)] = 1.0
        return group_by_features(weight * features.numbers, m)

    def list(self, schema: TokenSchema, fields: Sequence[FieldTokens], grouping: Grouping) -> Listing:
        listed = np.flatnonzero(grouping.group >= 0)
        place = np.full(len(grouping.group), LEFT_OUT)
        place[listed] = np.arange(len(listed))
        return Listing([of.take(listed) for of in fields], grouping.group[listed], place)


@dataclass(frozen=True)
class Averages:
    """A vector per cell: the average of at least m rows that lie in it. No row is listed by itself."""

    M: ClassVar[int] = 10
    LEAST: ClassVar[int] = 2
    LISTS_ROWS: ClassVar[bool] = False

    def receives(self, m: int) -> str:
        return f"one average of at least {m} records for every cell, bin or code that has as many; no record by itself"

    def shows(self, m: int) -> str:
        return (
            f"it learns averages, and that a cell has at least {m} records; of a single record nothing beyond its "
            "average, unless it knows all others of the group"
        )

    def check(self, schema: TokenSchema) -> None:
        if len(schema.fields) != 1 or not schema.fields[0].kind.NESTED:
            kinds = ", ".join(field.kind.KIND for field in schema.fields)
            able = ", ".join(kind for kind in TOKENS.names() if TOKENS[kind].NESTED)
            message = (
                f"share 'averages' groups rows by the cells of one field, of kind {able}, but tokens are of {kinds}"
            )
            raise SettingError(f"{message}; choose share = 'rows', or link by one such field", code="no-cells")

    def bound(self, schema: TokenSchema) -> dict[str, Any]:
        return {"tokens": schema.to_dict()["fields"]}

    def group(self, fields: Sequence[FieldTokens], features: Features, m: int) -> Grouping:
        (of,), n = fields, len(features)
        found = group_by_cells(of.tokens.token.reshape(len(of.rows), -1), m)
        group, level = np.full(n, LEFT_OUT), np.full(n, LEFT_OUT)
        group[of.rows], level[of.rows] = found.group, found.level
        return Grouping(group, level)

    def list(self, schema: TokenSchema, fields: Sequence[FieldTokens], grouping: Grouping) -> Listing:
        (of,), kind = fields, schema.fields[0].kind
        group, first = np.unique(grouping.group[of.rows], return_index=True)
        group, first = group[group >= 0], first[group >= 0]
        level = grouping.level[of.rows[first]]
        cell = of.tokens.take(first * (len(of.tokens.token) // max(1, len(of.rows))) + level)
        u = np.arange(len(group))
        tokens = replace(cell, record=u, hint=kind.middle(cell.hint, cell.part.astype(np.int64)))
        place = np.full(len(grouping.group), LEFT_OUT)
        listed = grouping.group >= 0
        place[listed] = np.searchsorted(group, grouping.group[listed])
        return Listing([FieldTokens(tokens, of.columns, u, len(u))], group, place)


ROWS, AVERAGES = Rows(), Averages()


# Groups for life: what was shown of a row as part of an average is never shown as part of another one.
#
# Groups drawn anew after a row came or went would show the difference of two averages, which is that row. So a row
# stays in its group, a group that lost a row is shown no more, a row that changed is left out, and new rows form groups
# among themselves.


GROUPS_FORMAT = "fedsim groups 1"


@dataclass(frozen=True, eq=False)
class RecordedGroups:
    """The N rows that were ever grouped, by digests of all their cells (N,) and of their identifiers (N,).

    ``preparation`` says how features became numbers when the first groups were formed, and does so for all.

    Examples
    --------
    >>> pairs = lambda rows: Grouping(rows // 2, 0 * rows)
    >>> first, known = RecordedGroups.empty().assign(np.arange(4), np.arange(4), pairs)
    >>> known.assign(np.array([0, 1, 2, 7, 8]), np.array([0, 1, 2, 7, 8]), lambda rows: pairs(np.arange(2)))[0].group
    array([ 0,  0, -1,  2,  2])
    """

    rows: Words | Integers
    identities: Words | Integers
    grouping: Grouping
    preparation: str = ""

    @classmethod
    def empty(cls) -> RecordedGroups:
        """Return the record of a table without groups."""
        none = np.zeros(0, np.int64)
        return cls(none.astype(np.uint64), none.astype(np.uint64), Grouping(none, none))

    def assign(
        self, rows: Words | Integers, identities: Words | Integers, group: Callable[[Integers], Grouping]
    ) -> tuple[Grouping, RecordedGroups]:
        """Return the groups of the rows of a table (n,), and the record with them.

        Parameters
        ----------
        rows, identities
            Digests of all cells of every row, and of its identifiers.
        group
            Groups some rows, given by their places among the n: those that came since, if any, with those that no group
            had room for so far.
        """
        rows = mix(rows, _occurrences(rows))
        known, found, level = self._find(rows)
        new = ~known & ~np.isin(identities, self.identities)  # a known identity with other cells is a changed row
        pool = new | (known & (found == LEFT_OUT))
        kept = _without_incomplete(found, self.grouping.group)
        if not new.any():
            return Grouping(kept, level), self
        places = np.flatnonzero(pool)
        formed = group(places)
        first = int(self.grouping.group.max(initial=LEFT_OUT)) + 1
        kept[places] = np.where(formed.group < 0, LEFT_OUT, formed.group + first)
        level[places] = formed.level
        rest = ~np.isin(self.rows, rows[pool])
        return Grouping(kept, level), RecordedGroups(
            np.concatenate([self.rows[rest], rows[places]]),
            np.concatenate([self.identities[rest], identities[places]]),
            Grouping(
                np.concatenate([self.grouping.group[rest], kept[places]]),
                np.concatenate([self.grouping.level[rest], level[places]]),
            ),
            self.preparation,
        )

    def _find(self, rows: Words) -> tuple[Flags, Integers, Integers]:
        """Return which rows are known, with their groups and levels."""
        known, found, level = np.isin(rows, self.rows), np.full(len(rows), LEFT_OUT), np.full(len(rows), LEFT_OUT)
        order = np.argsort(self.rows)
        at = order[np.searchsorted(self.rows[order], rows[known])]
        found[known], level[known] = self.grouping.group[at], self.grouping.level[at]
        return known, found, level

    def save(self, path: Path) -> None:
        """Write the record to a file for its owner alone."""
        tensors: dict[str, AnyArray] = {"rows": self.rows, "identities": self.identities}
        tensors |= {"group": self.grouping.group, "level": self.grouping.level}
        save_tensors(path, GROUPS_FORMAT, tensors, {"preparation": self.preparation})

    @classmethod
    def load(cls, path: Path) -> RecordedGroups:
        """Read what :meth:`save` wrote."""
        tensors, facts = load_tensors(path, GROUPS_FORMAT)
        try:
            grouping = Grouping(tensors["group"], tensors["level"])
            return cls(tensors["rows"], tensors["identities"], grouping, facts["preparation"])
        except LookupError as error:
            raise damaged_file(path, GROUPS_FORMAT) from error


def _occurrences(values: Words | Integers) -> Integers:
    """Return how many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    count = np.empty(len(order), np.int64)
    count[order] = np.arange(len(order)) - np.searchsorted(values[order], values[order])
    return count


def _without_incomplete(found: Integers, recorded: Integers) -> Integers:
    """Return the groups that rows are in, without those of which a row is missing."""
    present, size = (np.bincount(of[of >= 0], minlength=recorded.max(initial=0) + 1) for of in (found, recorded))
    return np.where((found >= 0) & (present == size)[np.maximum(found, 0)], found, LEFT_OUT)
