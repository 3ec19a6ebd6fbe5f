"""Places under an encoding that the primary can apply itself, since it holds the parties' key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedsim.linkage.encoding.numbers import NumericFilter
from fedsim.linkage.metric import Metric
from fedsim.linkage.metrics.filters import RankHamming
from fedsim.linkage.search.distinct import Records
from fedsim.types import Floats


class EncodedPlaces(Protocol):
    """Filters of places (latitude, longitude in degrees), as ``metric`` compares them."""

    @property
    def metric(self) -> Metric: ...

    def encode(self, places: Floats) -> Records: ...


@dataclass(frozen=True, eq=False, repr=False)
class RankedPlaces:
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
    def of(cls, filters: tuple[NumericFilter, NumericFilter], subkeys: tuple[bytes, bytes]) -> RankedPlaces:
        """From the filters of latitude and longitude.

        >>> code = NumericFilter(0.0, 10.0, threshold=1.0, bits=64)
        >>> RankedPlaces.of((code, code), (bytes(32), bytes(32))).encode(np.array([[5.0, 99.0]])).shape
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
