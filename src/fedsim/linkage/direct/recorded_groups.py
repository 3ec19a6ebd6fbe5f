"""The groups of a table for life: what was shown of a row as part of an average is never shown as part of another one.

Groups drawn anew after a row came or went would show the difference of two averages, which is that row. So a row
stays in its group, a group that lost a row is shown no more, a row that changed is left out, and new rows form groups
among themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.linkage.direct.groups import LEFT_OUT, Grouping
from fedsim.linkage.direct.token_kinds import mix
from fedsim.storage.tensor_file import damaged_file, load_tensors, save_tensors
from fedsim.types import AnyArray, Flags, Integers, Words

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
