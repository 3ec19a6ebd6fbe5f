"""Drift of the records that are predicted against those of training, by counts per bin.

Bins are fitted to the training records and stored with the primary's model. Of predicted records only counts are kept,
and a figure changes only when ``MIN_RECORDS`` more of them have been counted, so that no two figures differ by one
record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from fedsim.types import AnyArray, Integers

MIN_RECORDS = 100
BINS, MAX_CODES = 10, 20  # of a number, and of a category
BLOCKS = 20  # of MIN_RECORDS records or more each, which the figures cover


@dataclass(frozen=True)
class InputBins:
    """The bins of one input and how many training records are in each; a category has no ``edges``."""

    counts: list[int]
    edges: list[float] | None = None

    @classmethod
    def of_numbers(cls, values: AnyArray) -> Self:
        """Return bins with about equally many training records each."""
        present = values[~np.isnan(values)]
        edges = np.unique(np.quantile(present, np.linspace(0, 1, BINS + 1)[1:-1])) if len(present) else np.zeros(0)
        empty = cls([0] * (len(edges) + 2), edges.tolist())
        return cls(empty.count(values).tolist(), empty.edges)

    @classmethod
    def of_codes(cls, codes: Integers, cardinality: int) -> Self:
        """Return one bin per category; the last ones share a bin."""
        empty = cls([0] * max(1, min(cardinality, MAX_CODES)))
        return cls(empty.count(codes).tolist())

    def count(self, values: AnyArray) -> Integers:
        """Count values per bin; missing numbers have their own."""
        last = len(self.counts) - 1
        if self.edges is None:
            places = np.minimum(values, last)
        else:
            places = np.where(np.isnan(values), last, np.searchsorted(self.edges, values, side="right"))
        return np.bincount(places.astype(np.int64), minlength=len(self.counts))


def stability_index(before: AnyArray, after: AnyArray) -> float:
    """Return the population stability index of two lists of counts; an empty bin counts as half a record.

    >>> round(stability_index(np.array([50, 50]), np.array([500, 500])), 3)
    0.0
    >>> round(stability_index(np.array([50, 50]), np.array([900, 100])), 2)
    0.88
    """
    used = (before > 0) | (after > 0)
    p, q = (np.maximum(counts, 0.5) / np.maximum(counts, 0.5).sum() for counts in (before[used], after[used]))
    return float(((q - p) * np.log(q / p)).sum())


class DriftSeries:
    """Counts several inputs of the same records; ``psi`` has the index of each, or nothing before enough records."""

    def __init__(self, bins: Sequence[InputBins]) -> None:
        self.bins, self.psi, self.records = list(bins), list[float](), 0
        self._blocks: deque[tuple[int, list[Integers]]] = deque(maxlen=BLOCKS)
        self._open: tuple[int, list[Integers]] = (0, [])
        self._lock = threading.Lock()

    def add(self, columns: Sequence[AnyArray]) -> None:
        """Count records, one array per input."""
        if not self.bins:
            return
        counts = [bins.count(column) for bins, column in zip(self.bins, columns, strict=True)]
        with self._lock:
            n_before, before = self._open
            total = [old + new for old, new in zip(before, counts, strict=True)] if before else counts
            self._open = n_before + len(columns[0]), total
            if self._open[0] >= MIN_RECORDS:
                self._blocks.append(self._open)
                self._open = (0, [])
                sums = [np.sum(column, axis=0) for column in zip(*(block for _, block in self._blocks), strict=True)]
                trained = [np.array(bins.counts) for bins in self.bins]
                self.psi = [stability_index(*pair) for pair in zip(trained, sums, strict=True)]
                self.records = sum(n for n, _ in self._blocks)


@dataclass(frozen=True, eq=False)
class DriftMonitor:
    """Follows the inputs of the primary's model, and the similarity of the best partner in every list."""

    inputs: DriftSeries
    lists: dict[str, DriftSeries]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return a monitor for a stored model."""
        lists = {name: DriftSeries([InputBins(**bins)]) for name, bins in facts["lists"].items()}
        return cls(DriftSeries([InputBins(**bins) for bins in facts["inputs"]]), lists)

    def add(self, numbers: AnyArray, codes: Integers) -> None:
        """Count the inputs of records."""
        self.inputs.add([*numbers.T, *codes.T])

    def add_similarity(self, name: str, best: AnyArray) -> None:
        """Count the similarities to the best partner in one list."""
        if name in self.lists:
            self.lists[name].add([best])


def drift_facts(
    numbers: AnyArray, codes: Integers, cardinalities: Sequence[int], best: Mapping[str, AnyArray]
) -> dict[str, Any]:
    """Return the bins of the training records, to be stored with the model.

    Parameters
    ----------
    numbers, codes, cardinalities
        The inputs of the training records.
    best
        Their similarity to the best partner, by list.
    """
    bins = [InputBins.of_numbers(column) for column in numbers.T]
    bins += [InputBins.of_codes(column, size) for column, size in zip(codes.T, cardinalities, strict=True)]
    lists = {name: asdict(InputBins.of_numbers(values)) for name, values in best.items()}
    return {"inputs": [asdict(one) for one in bins], "lists": lists}
