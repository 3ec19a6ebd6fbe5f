"""What a linkage came to, in a dozen figures; page, terminal and JSON all show these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.linkage import Diagnostics
from fedsim.types import Links

BASELINES = {"top1sim": "Top1Sim", "exact": "Exact", "avgsim": "AvgSim"}


@dataclass(frozen=True)
class Summary:
    """Distances are in the metric's own unit; shares are of one; ``None`` where the value is not known."""

    records: int
    candidates: int
    k: int
    metric: str
    plan: str
    sigma: float
    seconds: float | None
    nearest_median: float
    kth_median: float
    boundary_tie_share: float | None
    candidates_used: int
    busiest_use: int
    improvement: dict[str, float]
    warnings: tuple[str, ...]


def summarise(links: Links, diagnostics: Diagnostics, seconds: float | None = None) -> Summary:
    """The figures of one linkage."""
    return Summary(
        records=len(links),
        candidates=links.n_candidates,
        k=links.k,
        metric=links.metric,
        plan=links.plan,
        sigma=links.sigma,
        seconds=seconds,
        nearest_median=float(np.median(links.distance[:, 0])),
        kth_median=float(np.median(diagnostics.kth_distance)),
        boundary_tie_share=diagnostics.boundary_tie_share,
        candidates_used=int((diagnostics.hubness > 0).sum()),
        busiest_use=int(diagnostics.hubness.max()),
        improvement={BASELINES.get(name, name): float(value) for name, value in diagnostics.improvement.items()},
        warnings=tuple(diagnostics.warnings),
    )
