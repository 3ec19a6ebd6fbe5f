"""Link flats to rentals by place and look at the links before any training."""

from __future__ import annotations

import numpy as np

import fedsim
from fedsim.data.synthetic import city

town = city(np.random.default_rng(7))
links = fedsim.link(
    town.flats.select("lat", "lon"), town.rentals.select("lat", "lon"), metric="great-circle", k=20, sigma=0.1, seed=1
)
found = fedsim.diagnose(links)
print(links)
print(f"search: {links.plan}")
print(f"nearest partner: median {np.median(links.distance[:, 0]):.0f} m; 20th: {np.median(found.kth_distance):.0f} m")
print(f"rentals never used: {found.unused_share:.1%}; Delta over the nearest alone: {found.improvement['top1sim']:.1f}")
