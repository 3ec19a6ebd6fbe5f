"""What the primary sees of a linkage, and what follows from it for one partner.

Letters: n records, K partners of each, L links that name a partner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.errors import InputError, SettingError
from fedsim.linkage.search.distinct import distinct
from fedsim.types import Floats, Integers, Links, Scale


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

    def fresh(self, own: Floats) -> Integers:
        """Records that tell something new: those at one place with equal lists and equal noise count once.

        Noise that belongs to a pair of identifiers repeats for equal ones; counting copies would trust it too much.

        >>> PrimaryView(np.array([[1], [1], [1]]), np.array([[0.5], [0.5], [0.6]])).fresh(np.zeros((3, 2))).tolist()
        [0, 2]
        """
        first, _ = distinct((own, self.partner, self.similarity))
        return np.sort(first)

    def of_records(self, records: Integers) -> PrimaryView:
        """The lists of some records."""
        return PrimaryView(self.partner[records], self.similarity[records], self.scale, self.sigma)

    def __len__(self) -> int:
        return len(self.partner)

    def __repr__(self) -> str:
        return f"PrimaryView({len(self)} records x {self.partner.shape[1]} partners)"


@dataclass(frozen=True, eq=False, repr=False)
class NamedPartners:
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
    def of(cls, view: PrimaryView) -> NamedPartners:
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

        >>> named = NamedPartners.of(PrimaryView(np.array([[7], [3], [7], [7]]), np.zeros((4, 1))))
        >>> named.medians(np.array([5.0, 1.0, 9.0, 2.0])).tolist()
        [5.0, 2.0]
        """
        ordered = values[np.lexsort((values, self.owner))]
        double = self.start[:-1] + self.start[1:] - 1
        return np.asarray((ordered[double // 2] + ordered[(double + 1) // 2]) / 2.0)

    def means(self, values: Floats) -> Floats:
        """Mean of a value of links over each partner."""
        return self.sums(values) / self.degree.reshape(-1, *[1] * (values.ndim - 1))
