"""What the primary sees of a linkage, and what it can encode and compare by itself.

Letters: n records, K partners of each, J partners that are listed at all, L links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.metrics import Metric, distance_matrix
from fedsim.linkage.search.runner import Records, count_records, distinct_records, take_records
from fedsim.linkage.soft_linkage import prepare_tables
from fedsim.types import Floats, Integers, Links, Scale


@dataclass(frozen=True, eq=False, repr=False)
class PrimaryView:
    """What the primary receives: pseudonymous partner rows and noisy, scaled similarities, but no distances.

    Parameters
    ----------
    partner
        Partner rows, (n, K); -1 marks a suppressed partner.
    similarity
        Their similarities, (n, K).
    scale
        How distances were scaled. The paper lets the attacker know it; None if it does not.
    sigma
        Standard deviation of the noise on the similarities.

    Examples
    --------
    >>> PrimaryView(np.array([[0, 2]]), np.array([[0.9, 0.1]]))
    PrimaryView(1 records x 2 partners)
    """

    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)
    scale: Scale | None = None
    sigma: float = 0.0

    @classmethod
    def of(cls, links: Links) -> PrimaryView:
        """Return what the primary receives of these links."""
        return cls(links.partner, links.similarity, links.scale, links.sigma)

    def __post_init__(self) -> None:
        if self.partner.ndim != 2 or self.partner.shape != self.similarity.shape or not self.partner.size:
            raise InputError(
                f"partners have shape {self.partner.shape} and similarities {self.similarity.shape}; pass both with "
                "one row per record and K columns",
                code="shape-mismatch",
            )

    def known_scale(self) -> Scale:
        """Return the scale, for attacks that need it."""
        if self.scale is None:
            message = "this attack needs the scale of the similarities; pass a view with a scale"
            raise SettingError(message, code="scale-unknown")
        return self.scale

    def distinct_records(self, own: Floats) -> Integers:
        """Return one record of each group with the same place, list and noise.

        The noise of a pair of identifiers repeats for equal identifiers, so copies carry no further information.

        >>> view = PrimaryView(np.array([[1], [1], [1]]), np.array([[0.5], [0.5], [0.6]]))
        >>> view.distinct_records(np.zeros((3, 2))).tolist()
        [0, 2]
        """
        first, _ = distinct_records((own, self.partner, self.similarity))
        return np.sort(first)

    def of_records(self, records: Integers) -> PrimaryView:
        """Return the view of some records."""
        return PrimaryView(self.partner[records], self.similarity[records], self.scale, self.sigma)

    def __len__(self) -> int:
        return len(self.partner)

    def __repr__(self) -> str:
        return f"PrimaryView({len(self)} records x {self.partner.shape[1]} partners)"


@dataclass(frozen=True, eq=False, repr=False)
class LinksByPartner:
    """The links grouped by partner: for every partner that is listed, the records that list it.

    ``row`` (J,) holds the partner rows in ascending order; the links of ``row[j]`` are ``start[j]`` to ``start[j + 1]``
    of ``record``, ``rank`` (the column in the list) and ``similarity``.
    """

    row: Integers
    start: Integers
    record: Integers
    rank: Integers
    similarity: Floats

    @classmethod
    def of(cls, view: PrimaryView) -> LinksByPartner:
        """Group a view's links by partner."""
        flat = view.partner.ravel()
        order = np.argsort(flat, kind="stable")
        order = order[flat[order] >= 0]
        if not len(order):
            raise InputError("no record has a partner, so there is nothing to attack", code="no-links")
        row, start = np.unique(flat[order], return_index=True)
        record, rank = np.divmod(order, view.partner.shape[1])
        ends = np.append(start, len(order)).astype(np.int64)
        return cls(row.astype(np.int64), ends, record, rank, view.similarity.ravel()[order])

    def __len__(self) -> int:
        return len(self.row)

    @property
    def degree(self) -> Integers:
        """The number of records that list each partner, (J,)."""
        return np.diff(self.start)

    @property
    def owner(self) -> Integers:
        """The index into ``row`` of the partner of every link, (L,)."""
        return np.repeat(np.arange(len(self)), self.degree)

    def sums(self, values: Floats) -> Floats:
        """Sum link values over each partner, (L, ...) -> (J, ...)."""
        return np.add.reduceat(values, self.start[:-1], axis=0)

    def medians(self, values: Floats) -> Floats:
        """Return the median of link values over each partner, (L,) -> (J,).

        >>> named = LinksByPartner.of(PrimaryView(np.array([[7], [3], [7], [7]]), np.zeros((4, 1))))
        >>> named.medians(np.array([5.0, 1.0, 9.0, 2.0])).tolist()
        [5.0, 2.0]
        """
        ordered = values[np.lexsort((values, self.owner))]
        double = self.start[:-1] + self.start[1:] - 1
        return np.asarray((ordered[double // 2] + ordered[(double + 1) // 2]) / 2.0)

    def means(self, values: Floats) -> Floats:
        """Return the mean of link values over each partner, (L, ...) -> (J, ...)."""
        return self.sums(values) / self.degree.reshape(-1, *[1] * (values.ndim - 1))


@dataclass(frozen=True, eq=False, repr=False)
class Codebook:
    """The primary's own filters, and all filters that a partner record may have.

    The primary holds the linkage key, so it can encode any list of possible identifiers (all addresses of a town, a
    register of names); it does not know which partner row is which.

    Parameters
    ----------
    metric
        The metric between filters.
    own
        The filters of the primary's records.
    possible
        The filters that a partner record may have.
    truth
        The true index into ``possible`` of every partner row; only used to count successes.
    """

    metric: Metric
    own: Records
    possible: Records
    truth: Integers

    @classmethod
    def of(cls, metric: Metric, primary_ids: Any, secondary_ids: Any) -> Codebook:
        """Return the codebook of the worst case: the possible identifiers are exactly those of the secondary.

        >>> from fedsim.linkage import get_metric
        >>> book = Codebook.of(get_metric("levenshtein"), ["ann"], ["ann", "bob", "ann"])
        >>> len(book), book.truth.tolist()
        (2, [0, 1, 0])
        """
        own, partners = prepare_tables(metric, primary_ids, secondary_ids, ("primary", "secondary"))
        first, kind = distinct_records(partners)
        return cls(metric, own, take_records(partners, first), kind.astype(np.int64))

    def __len__(self) -> int:
        return count_records(self.possible)

    def distances(self, records: Integers) -> Floats:
        """Return the distances from some own records to every possible filter."""
        return distance_matrix(self.metric, take_records(self.own, records), self.possible)

    def check_covers(self, rows: Integers, n_records: int) -> None:
        """Check that the codebook has every partner row and every record of the links."""
        if len(rows) and rows.max() >= len(self.truth):
            message = f"the links name partner row {rows.max()}, but the codebook has {len(self.truth)} rows"
            raise InputError(message, code="codebook-mismatch", limit=len(self.truth))
        if n_records != count_records(self.own):
            message = f"the links have {n_records} records, but the codebook has {count_records(self.own)}"
            raise InputError(message, code="codebook-mismatch", limit=count_records(self.own))


class PlaceEncoder(Protocol):
    """An encoding of places (latitude and longitude in degrees) that the primary can apply itself."""

    @property
    def metric(self) -> Metric: ...

    def encode(self, places: Floats) -> Records: ...
