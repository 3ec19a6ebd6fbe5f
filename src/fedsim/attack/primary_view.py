"""What the primary sees of a linkage, and what it can encode and compare by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding.filters import NumericFilter
from fedsim.linkage.metrics import Metric, RankHamming, distance_matrix
from fedsim.linkage.nearest import prepare_tables
from fedsim.linkage.search.runner import Records, count_records, distinct_records, take_records
from fedsim.types import Floats, Integers, Links, Scale

# What the primary sees of a linkage, and what follows from it for one partner
#
# Letters: n records, K partners of each, L links that name a partner.


@dataclass(frozen=True, eq=False, repr=False)
class PrimaryView:
    """Pseudonymous partner rows and scaled, noisy similarities; never a distance.

    The paper lets the attacker know the scale and the noise's sigma. -1 marks a suppressed partner.
    """

    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)
    scale: Scale | None = None
    sigma: float = 0.0

    @classmethod
    def of(cls, links: Links) -> PrimaryView:
        """What of these links reaches the primary."""
        return cls(links.partner, links.similarity, links.scale, links.sigma)

    def __post_init__(self) -> None:
        if self.partner.ndim != 2 or self.partner.shape != self.similarity.shape or not self.partner.size:
            raise InputError(
                f"partners {self.partner.shape} and similarities {self.similarity.shape} do not fit together; "
                "give both with one row per record and K columns"
            )

    def known_scale(self) -> Scale:
        """The scale, for attacks that cannot do without."""
        if self.scale is None:
            raise SettingError("this attack needs the scale of the similarities; give a view that has it")
        return self.scale

    def distinct_records(self, own: Floats) -> Integers:
        """Records that tell something new: those at one place with equal lists and equal noise count once.

        Noise that belongs to a pair of identifiers repeats for equal ones; counting copies would trust it too much.

        >>> PrimaryView(np.array([[1], [1], [1]]), np.array([[0.5], [0.5], [0.6]])).distinct_records(np.zeros((3, 2))).tolist()
        [0, 2]
        """
        first, _ = distinct_records((own, self.partner, self.similarity))
        return np.sort(first)

    def of_records(self, records: Integers) -> PrimaryView:
        """The lists of some records."""
        return PrimaryView(self.partner[records], self.similarity[records], self.scale, self.sigma)

    def __len__(self) -> int:
        return len(self.partner)

    def __repr__(self) -> str:
        return f"PrimaryView({len(self)} records x {self.partner.shape[1]} partners)"


@dataclass(frozen=True, eq=False, repr=False)
class LinksByPartner:
    """The links turned round: for every partner that is named at all, the records that name it.

    ``row`` (J,) holds the partners' row numbers, ascending; the links of partner ``row[j]`` stand from ``start[j]`` to
    ``start[j + 1]`` in ``record`` (which record), ``rank`` (its column) and ``similarity``.
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
            raise InputError("no record has a partner; there is nothing to attack")
        row, start = np.unique(flat[order], return_index=True)
        record, rank = np.divmod(order, view.partner.shape[1])
        ends = np.append(start, len(order)).astype(np.int64)
        return cls(row.astype(np.int64), ends, record, rank, view.similarity.ravel()[order])

    def __len__(self) -> int:
        return len(self.row)

    @property
    def degree(self) -> Integers:
        """How many records name each partner."""
        return np.diff(self.start)

    @property
    def owner(self) -> Integers:
        """For every link the place of its partner in ``row``."""
        return np.repeat(np.arange(len(self)), self.degree)

    def links_of(self, place: int) -> slice:
        """Where the links of one partner stand."""
        return slice(int(self.start[place]), int(self.start[place + 1]))

    def sums(self, values: Floats) -> Floats:
        """Sum of a value of links over each partner, (links, ...) -> (J, ...)."""
        return np.add.reduceat(values, self.start[:-1], axis=0)

    def medians(self, values: Floats) -> Floats:
        """Median of a value of links over each partner, (links,) -> (J,).

        >>> named = LinksByPartner.of(PrimaryView(np.array([[7], [3], [7], [7]]), np.zeros((4, 1))))
        >>> named.medians(np.array([5.0, 1.0, 9.0, 2.0])).tolist()
        [5.0, 2.0]
        """
        ordered = values[np.lexsort((values, self.owner))]
        double = self.start[:-1] + self.start[1:] - 1
        return np.asarray((ordered[double // 2] + ordered[(double + 1) // 2]) / 2.0)

    def means(self, values: Floats) -> Floats:
        """Mean of a value of links over each partner."""
        return self.sums(values) / self.degree.reshape(-1, *[1] * (values.ndim - 1))


# The filters a primary can compare: it holds the parties' key, so it can encode whatever it likes


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
        """Distances from these own records to every possible filter."""
        return distance_matrix(self.metric, take_records(self.own, records), self.possible)

    def check_covers(self, rows: Integers, n_records: int) -> None:
        """The codebook must speak of every partner row the links name, and of every record."""
        if len(rows) and rows.max() >= len(self.truth):
            raise InputError(f"the links name partner row {rows.max()}, but the codebook has {len(self.truth)}")
        if n_records != count_records(self.own):
            raise InputError(
                f"the links are of {n_records} records, the codebook's filters of {count_records(self.own)}"
            )


# Places under an encoding that the primary can apply itself, since it holds the parties' key


class PlaceEncoder(Protocol):
    """Filters of places (latitude, longitude in degrees), as ``metric`` compares them."""

    @property
    def metric(self) -> Metric: ...

    def encode(self, places: Floats) -> Records: ...


@dataclass(frozen=True, eq=False, repr=False)
class RankPlaceEncoder:
    """FEDERAL filters of both coordinates in rank form; the pivots are drawn and sorted once.

    Places beyond the agreed range count as being at its border.
    """

    pivots: tuple[Floats, Floats]
    low: Floats
    high: Floats
    threshold: Floats

    @property
    def metric(self) -> Metric:
        return RankHamming()

    @classmethod
    def of(cls, filters: tuple[NumericFilter, NumericFilter], subkeys: tuple[bytes, bytes]) -> RankPlaceEncoder:
        """From the filters of latitude and longitude.

        >>> code = NumericFilter(0.0, 10.0, threshold=1.0, bits=64)
        >>> RankPlaceEncoder.of((code, code), (bytes(32), bytes(32))).encode(np.array([[5.0, 99.0]])).shape
        (1, 4)
        """
        first, second = (np.sort(code.pivots(key)) for code, key in zip(filters, subkeys, strict=True))
        low, high, threshold = np.array([[code.low, code.high, code.threshold] for code in filters]).T
        return cls((first, second), low, high, threshold)

    def encode(self, places: Floats) -> Records:
        inside = np.clip(places, self.low, self.high)
        columns = []
        for axis, pivots in enumerate(self.pivots):
            columns.append(np.searchsorted(pivots, inside[:, axis] - self.threshold[axis], side="left"))
            columns.append(np.searchsorted(pivots, inside[:, axis] + self.threshold[axis], side="right"))
        return np.ascontiguousarray(np.column_stack(columns).astype(np.int32))
