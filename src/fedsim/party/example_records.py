"""A few test records taken apart: how similar their best partners are, and what the model makes of them.

They stay in the primary's folder. A record is known by its row in the primary's own table, which a report leaves out
unless its owner asks; a partner by a number that counts from one: the pseudonyms of a job mean something to the
secondary, these numbers to nobody.

Letters: n records, K partners.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from fedsim.party.run_record import Example, PartnerSeen
from fedsim.splitnn.gates.order import Neighbours
from fedsim.training.explain import Attribution
from fedsim.types import Floats, Integers

EXAMPLES = 5
MOST_PARTNERS = 5


@dataclass(frozen=True, eq=False)
class Parts:
    """The partners of records in one list; weight and share are no numbers where the method has no gates."""

    secondary: str
    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)
    weight: Floats  # (n, K)
    share: Floats  # (n, K), of all contributions to a prediction


def parts_of(attributions: Sequence[Attribution]) -> list[Parts]:
    """What every partner contributes, beside those of all lists."""
    sizes = [np.abs(one.values).sum(axis=2) for one in attributions]  # (n, K)
    whole = np.maximum(sum(size.sum(axis=1) for size in sizes), np.finfo(float).tiny)  # (n,)
    return [
        Parts(one.party, one.partner, one.similarity, one.weight, size / whole[:, None])
        for one, size in zip(attributions, sizes, strict=True)
    ]


def parts_without_gates(names: Sequence[str], lists: Sequence[Neighbours]) -> list[Parts]:
    """Similarities alone."""
    return [
        Parts(name, one.partner, one.similarity, *[np.full(one.similarity.shape, math.nan)] * 2)
        for name, one in zip(names, lists, strict=True)
    ]


def examples_of(rows: Integers, parts: Sequence[Parts]) -> list[Example]:
    """Some of these records, from the best linked to the worst linked one; ``rows`` are their rows in the table."""
    if not parts or not len(rows):
        return []
    order = np.argsort(-parts[0].similarity.max(axis=1), kind="stable")
    places = order[np.unique(np.linspace(0, len(order) - 1, EXAMPLES).round().astype(np.int64))]
    found = []
    for one in parts:
        fresh = count(1)
        number: defaultdict[int, int] = defaultdict(fresh.__next__)
        found += [Example(int(rows[place]), one.secondary, _partners(one, place, number)) for place in places]
    return found


def _partners(one: Parts, place: int, number: defaultdict[int, int]) -> list[PartnerSeen]:
    """The most similar first; one that comes again keeps its number, and a gap in the list is nobody."""
    best = np.argsort(-one.similarity[place], kind="stable")[:MOST_PARTNERS]
    return [
        PartnerSeen(
            number[int(one.partner[place, at])],
            float(one.similarity[place, at]),
            _if_known(one.weight[place, at]),
            _if_known(one.share[place, at]),
        )
        for at in best
        if one.partner[place, at] >= 0
    ]


def _if_known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
