"""What a generated label holds that its owner's features do not tell, part by part.

Every part is independent of the others and of the owner's features, so variances add up. The best error anybody can
reach then follows from which parts are known, and a partner's worth is the error it takes away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedsim.errors import SettingError


@dataclass(frozen=True)
class Truth:
    """``total``: variance of the label that the primary's features leave open; ``told``: what each part tells of it.

    ``own`` names the parts that the primary's own identifiers tell. A partner's entry in ``told`` already counts
    everything that keeps even the best method from the whole: the partner's own noise, and links that miss.

    >>> truth = Truth(total=100.0, told={"place": 19.0, "rentals": 32.0}, own=("place",))
    >>> truth.error(), truth.error("place"), truth.error("place", "rentals"), truth.worth("rentals")
    (10.0, 9.0, 7.0, 2.0)
    """

    total: float
    told: Mapping[str, float]
    own: tuple[str, ...] = ()

    def error(self, *known: str) -> float:
        """Root mean square error of the best prediction from the primary's features and the parts ``known``."""
        for part in known:
            if part not in self.told:
                raise SettingError(f"part '{part}' is unknown; the parts are {', '.join(self.told)}")
        return math.sqrt(self.total - sum(self.told[part] for part in set(known)))

    def worth(self, *partners: str) -> float:
        """By how much these partners lower the best error of a primary that uses its own identifiers too."""
        return self.error(*self.own) - self.error(*self.own, *partners)
