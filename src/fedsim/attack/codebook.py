"""The filters a primary can compare: it holds the parties' key, so it can encode whatever it likes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.errors import InputError
from fedsim.linkage.metric import Metric, distances
from fedsim.linkage.nearest import prepare_sides
from fedsim.linkage.search.distinct import Records, count, distinct, part
from fedsim.types import Floats, Integers


@dataclass(frozen=True, eq=False, repr=False)
class Codebook:
    """The primary's own filters, the filters a partner's record may have, and which of those is the true one.

    The primary knows the list of possible identifiers - all addresses of a town, a register of names - but not which
    partner row is which. ``truth`` (one number per partner row) is only used to count successes.
    """

    metric: Metric
    own: Records
    possible: Records
    truth: Integers

    @classmethod
    def of(cls, metric: Metric, primary_ids: Any, secondary_ids: Any) -> Codebook:
        """The hardest case for the defender: the possible identifiers are exactly those the secondary has.

        >>> from fedsim.linkage import metric_named
        >>> book = Codebook.of(metric_named("levenshtein"), ["ann"], ["ann", "bob", "ann"])
        >>> len(book), book.truth.tolist()
        (2, [0, 1, 0])
        """
        own, partners = prepare_sides(metric, primary_ids, secondary_ids, ("primary", "secondary"))
        first, kind = distinct(partners)
        return cls(metric, own, part(partners, first), kind.astype(np.int64))

    def __len__(self) -> int:
        return count(self.possible)

    def distances(self, records: Integers) -> Floats:
        """Distances from these own records to every possible filter."""
        return distances(self.metric, part(self.own, records), self.possible)

    def check_covers(self, rows: Integers, n_records: int) -> None:
        """The codebook must speak of every partner row the links name, and of every record."""
        if len(rows) and rows.max() >= len(self.truth):
            raise InputError(f"the links name partner row {rows.max()}, but the codebook has {len(self.truth)}")
        if n_records != count(self.own):
            raise InputError(f"the links are of {n_records} records, the codebook's filters of {count(self.own)}")
