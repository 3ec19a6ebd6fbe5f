"""The coordinator reads names off string filters by how frequent they are (after Christen et al., PAKDD 2017).

Equal names have equal filters, so the commonest filter is probably the commonest name of a public list. From a few such
pairs the attacker learns which bits each q-gram sets, names more filters with that, learns from all of them, and so on.
It needs names that repeat: a salt, or several fields in one filter, takes that away. Five per cent of flipped bits do
not; ten stop this way of finding copies, which is not the best there is.

Letters: D distinct filters, V names of the list, N bits, G q-grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fedsim.attack.finding import Adversary, Finding, check_flip, share, timed
from fedsim.attack.grams import Grams, gram_table
from fedsim.errors import InputError, SettingError
from fedsim.linkage.search.distinct import distinct
from fedsim.types import Bits, Floats, Integers

FIRST = (6, 10, 15, 25, 40)  # commonest filters named by frequency alone, to be tried
GROWTH = 1.3  # of the filters named, from round to round
RIDGE = 10.0
WEIGHT = 20.0  # of a correlation beside a log-likelihood
LEAST = -20.0  # log-likelihood of a count
MOST_PAIRS = 100_000_000  # filters times names held at once


@dataclass(frozen=True, eq=False, repr=False)
class NameList:
    """Names and how often each occurs in public, as the coordinator may find them."""

    names: Sequence[str]
    count: Floats
    grams: Grams

    def incidence(self) -> Floats:
        """Which q-grams each name has, (V, G)."""
        return gram_table(self.names, self.grams)


@timed
def frequency_attack(filters: Bits, public: NameList, truth: Integers, *, flip_probability: float = 0.0) -> Finding:
    """Name every record's filter, (n, bytes); ``truth`` (n,) is its true place in the list, -1 if it is not there.

    Where bits were flipped at random, filters as near as two copies of one name would be count as equal.
    """
    _check(filters, public, truth)
    ones, kind = _copies(filters, flip_probability)
    sight = _Sight.of(ones, np.bincount(kind), public)
    attempts = [sight.named(begin) for begin in FIRST]
    name, _ = max(attempts, key=lambda attempt: attempt[1])
    hits, blind = int((name[kind] == truth).sum()), float((truth == int(np.argmax(public.count))).mean())
    figures = {"distinct filters": float(len(ones))}
    return Finding(
        "frequency of string filters",
        Adversary.COORDINATOR,
        "share of records named",
        share(hits, len(truth)),
        blind,
        len(truth),
        "the filters of one party, and a public list of names with their frequencies",
        figures,
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Sight:
    """What the coordinator sees and knows, made ready for comparing."""

    bits: Floats  # (D, N), centred
    grams: Floats  # (V, G), centred
    frequency: Floats  # (D, V), log-likelihood of the counts
    commonest: Integers  # (D,), filters by how common they are

    @classmethod
    def of(cls, ones: Floats, count: Integers, public: NameList) -> _Sight:
        grams = public.incidence()
        expected = count.sum() * (public.count + 0.5) / (public.count.sum() + 0.5 * len(public.count))
        # Roots of counts have a variance of a quarter, whatever the count; both sides' counts are chance.
        apart = np.sqrt(count + 0.375)[:, None] - np.sqrt(expected + 0.375)
        likelihood = -2.0 * apart**2 / (1.0 + count.sum() / public.count.sum())
        order = np.argsort(-count, kind="stable")
        return cls(ones - ones.mean(axis=0), grams - grams.mean(axis=0), np.maximum(likelihood, LEAST), order)

    def named(self, begin: int) -> tuple[Integers, float]:
        """A name for every filter (-1 for those left over), and how well the names explain the bits.

        The ``begin`` commonest filters are named by frequency alone; then ever more are, by bits and frequency.
        """
        known = min(begin, len(self.commonest), len(self.grams))
        row, name = self._assigned(self.commonest[:known], self.frequency)
        while True:
            likeness = self._likeness(row, name)
            if known >= len(self.commonest):
                break
            known = int(known * GROWTH) + 1
            row, name = self._assigned(self.commonest[:known], WEIGHT * likeness + self.frequency / 2.0)
        found = np.full(len(self.bits), -1)
        found[row] = name
        return found, float(likeness[row, name].mean())

    def _assigned(self, rows: Integers, gain: Floats) -> tuple[Integers, Integers]:
        """Each of these filters its own name, best in sum."""
        row, name = linear_sum_assignment(gain[rows], maximize=True)
        return rows[row], name

    def _likeness(self, row: Integers, name: Integers) -> Floats:
        """Correlation of every filter with the bits every name should have, (D, V).

        Which bits a q-gram sets is learnt from the pairs so far by ridge regression, which bears wrong pairs.
        """
        taught = self.grams[name]
        weights = taught.T @ np.linalg.solve(taught @ taught.T + RIDGE * np.eye(len(taught)), self.bits[row])  # (G, N)
        return _correlation(self.bits, self.grams @ weights)


def _copies(filters: Bits, flip: float) -> tuple[Floats, Integers]:
    """The mean bits of every kind of filter (D, N), and the kind of every record (n,)."""
    check_flip(flip)
    first, kind = distinct(filters)
    ones = np.unpackbits(filters, axis=1).astype(np.float32)
    if flip == 0:
        return ones[first].astype(np.float64), kind
    if len(ones) ** 2 > MOST_PAIRS:
        raise SettingError(f"{len(ones)} noisy filters are too many to compare all pairs; sample {MOST_PAIRS**0.5:.0f}")
    size = ones.sum(axis=1)
    apart = size[:, None] + size - 2.0 * ones @ ones.T
    differing = 2.0 * flip * (1.0 - flip) * ones.shape[1]  # bits of two copies
    n_kinds, kind = connected_components(csr_array(apart < differing + 4.0 * differing**0.5), directed=False)
    total = np.zeros((n_kinds, ones.shape[1]))
    np.add.at(total, kind, ones)
    return total / np.bincount(kind)[:, None], kind.astype(np.int64)


def _correlation(left: Floats, right: Floats) -> Floats:
    length = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    return np.asarray(left @ right.T / np.maximum(length, 1e-12))


def _check(filters: Bits, public: NameList, truth: Integers) -> None:
    if len(filters) != len(truth) or len(public.names) != len(public.count) or len(public.names) < 2:
        raise InputError(
            f"{len(filters)} filters with {len(truth)} true names, {len(public.names)} names with {len(public.count)} "
            "counts; give as many of one as of the other, and a list of at least two names"
        )
    if len(filters) * len(public.names) > MOST_PAIRS:
        raise SettingError(
            f"{len(filters)} filters times {len(public.names)} names is more than {MOST_PAIRS}; sample some filters"
        )
