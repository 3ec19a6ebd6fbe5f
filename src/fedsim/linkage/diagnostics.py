"""What to look at before training: are the links any good?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fedsim.linkage.delta import improvement_of
from fedsim.types import Floats, Integers, Links

QUANTILES = (0.05, 0.25, 0.50, 0.75, 0.95)
MANY_TIES = 0.25
HUB = 20  # times the average use
MUCH_SATURATION = 0.05


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Similarity and distance by rank (one row per rank, a column per quantile), ties, reuse and warnings in words."""

    similarity_by_rank: Floats
    distance_by_rank: Floats
    kth_distance: Floats
    boundary_tie_share: float
    hubness: Integers
    unused_share: float
    improvement: dict[str, float]
    warnings: tuple[str, ...]


def diagnose(links: Links) -> Diagnostics:
    """Figures and warnings of a linkage; ``hubness`` counts how often each candidate is a partner."""
    kth = links.distance[:, -1]
    hubness = np.bincount(links.partner.ravel(), minlength=links.n_candidates)
    tie_share = float((kth == links.next_distance).mean())
    return Diagnostics(
        similarity_by_rank=np.quantile(links.similarity, QUANTILES, axis=0).T,
        distance_by_rank=np.quantile(links.distance, QUANTILES, axis=0).T,
        kth_distance=kth,
        boundary_tie_share=tie_share,
        hubness=hubness,
        unused_share=float((hubness == 0).mean()),
        improvement=asdict(improvement_of(links)),
        warnings=tuple(_warnings(links, hubness, tie_share)),
    )


def _warnings(links: Links, hubness: Integers, tie_share: float) -> list[str]:
    found = []
    if tie_share > MANY_TIES:
        found.append(
            f"for {100 * tie_share:.0f} % of the records a candidate just as near as the last partner was left out; "
            "the lower row number decided - a larger k or a finer metric would not need that rule"
        )
    if links.distance.min() == links.distance.max():
        found.append("all distances are equal, so the similarities say nothing; check the identifier columns")
    if links.saturated is not None and links.saturated > MUCH_SATURATION:
        found.append(
            f"for {100 * links.saturated:.0f} % of the records the last partner's filter has nothing in common with "
            "theirs: the distance has gone flat - a wider threshold, or several, would tell far candidates apart again"
        )
    average = hubness.mean()
    if links.k < links.n_candidates and hubness.max() > max(HUB * average, HUB):
        found.append(
            f"one candidate is a partner of {hubness.max():,} records, {hubness.max() / average:.0f} times the "
            "average; such hubs blur what the partner can add"
        )
    return found
