"""Lists of partners that say less: random partners among the true ones, and none that only a few records share.

Letters: n records, K partners, L >= K columns of a list with spare partners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.errors import SettingError
from fedsim.privacy.checks import check_share
from fedsim.types import Integers
from fedsim.whole import partners_wanted, whole_number

NOBODY = -1
ROUNDS = 1_000
AT_ONCE = 0.1  # of the rare partners are suppressed in one round


@dataclass(frozen=True)
class DummyLinks:
    """Every link points, with probability ``share``, to any of ``n_candidates`` rows instead of its true partner.

    Similarities stay where they are: a dummy must carry a plausible one. No record names a partner twice.
    """

    share: float
    n_candidates: int

    def __post_init__(self) -> None:
        check_share(share=self.share)
        whole_number(self.n_candidates, "n_candidates", least=1)

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Of the links the primary sees, {self.share:.0%} on average are random, so that no single one is proof of "
            "anything; what many links of one partner say together is not bounded."
        )

    def apply(self, values: Integers, rng: np.random.Generator) -> Integers:
        """Lists with dummies, (n, K) -> (n, K)."""
        partners_wanted(values.shape[1], self.n_candidates, "the secondary table")
        replaced = (rng.random(values.shape) < self.share) & (values != NOBODY)
        lists = np.where(replaced, rng.integers(0, self.n_candidates, values.shape), values)
        for _ in range(ROUNDS):
            again = _twice(lists) & replaced
            if not again.any():
                return lists
            lists[again] = rng.integers(0, self.n_candidates, int(again.sum()))
        return _filled(lists, replaced, self.n_candidates, rng)


@dataclass(frozen=True)
class MinimumDegree:
    """Partners that fewer than ``degree`` records would name are named by none; -1 stands where nobody is left.

    Give lists longer than ``k`` and the next best partner takes the place.
    """

    degree: int
    k: int

    def __post_init__(self) -> None:
        whole_number(self.degree, "degree", least=1)
        whole_number(self.k, "k", least=1)

    @property
    def guarantee(self) -> str:
        """One sentence for a person."""
        return (
            f"Every partner row the primary sees in training is named by at least {self.degree} of its training "
            "records; those are records and not places, so that where they stand together so does the partner, and "
            "a new record at prediction may name a row alone."
        )

    def apply(self, values: Integers, rng: np.random.Generator) -> Integers:
        """Lists of K partners from lists of L, (n, L) -> (n, K); nothing is drawn.

        >>> MinimumDegree(degree=2, k=1).apply(np.array([[0, 2], [1, 2], [2, 0]]), np.random.default_rng()).tolist()
        [[2], [2], [2]]
        """
        if values.shape[1] < self.k:
            raise SettingError(f"k={self.k} partners asked for from lists of {values.shape[1]}; link with a larger k")
        allowed = np.ones(int(values.max(initial=0)) + 1, dtype=bool)
        spare = np.bincount(values[values != NOBODY], minlength=len(allowed))
        while True:
            lists = first_allowed(values, allowed, self.k)
            degree = np.bincount(lists[lists != NOBODY], minlength=len(allowed))
            rare = (degree > 0) & (degree < self.degree)
            if not rare.any():
                return lists
            # The rarest go first: their places may fall to others, who are then rare no longer.
            standing = degree * (values.size + 1) + spare
            allowed &= ~(rare & (standing <= np.quantile(standing[rare], AT_ONCE, method="lower")))


def first_allowed(lists: Integers, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]], k: int) -> Integers:
    """The first k allowed partners of each list, (n, L) -> (n, k); -1 where there are too few.

    >>> first_allowed(np.array([[0, 1, 2]]), np.array([False, True, True]), 2).tolist()
    [[1, 2]]
    """
    kept = (lists != NOBODY) & allowed[lists]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    chosen = np.take_along_axis(np.where(kept, lists, NOBODY), order, axis=1)
    return np.asarray(chosen)


def _twice(lists: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Marks every partner of a record that another column names too."""
    order = np.argsort(lists, axis=1, kind="stable")
    ordered = np.take_along_axis(lists, order, axis=1)
    equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NOBODY)
    marked = np.zeros(lists.shape, dtype=bool)
    marked[:, 1:] |= equal
    marked[:, :-1] |= equal
    twice = np.empty_like(marked)
    np.put_along_axis(twice, order, marked, axis=1)
    return twice


def _filled(lists: Integers, replaced: Integers, n_candidates: int, rng: np.random.Generator) -> Integers:
    """Lists that nearly hold every candidate: draw the dummies of a record from those it does not name."""
    for record in np.flatnonzero((_twice(lists) & replaced).any(axis=1)):
        free = np.setdiff1d(np.arange(n_candidates), lists[record][~replaced[record]])
        lists[record, replaced[record]] = rng.permutation(free)[: int(replaced[record].sum())]
    return lists
