"""Filters that are all linked to each other, as a primary sees them."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from fedsim.linkage import fit_scale, get_metric, similarities
from fedsim.types import EncodedTable
from fedsim_audit.attacks.similarity_attacks import Codebook, PrimaryView

HAMMING = get_metric("hamming")


def filters(n_records, n_bits, seed) -> EncodedTable:
    return EncodedTable(np.random.default_rng(seed).integers(0, 256, (n_records, n_bits // 8), np.uint8), n_bits, "one")


def every_pair(n_bits, sigma, seed=0):
    """All filters of one side linked to all of the other, as a primary sees them, with codebook and true distances."""
    codes = Codebook.of(HAMMING, filters(80, n_bits, seed), filters(600, n_bits, seed + 1))
    distance = codes.distances(np.arange(80))[:, codes.truth]
    scale = fit_scale(distance)
    similarity = similarities(distance, scale, sigma=sigma, noise=np.random.default_rng(seed + 2))
    partner = np.broadcast_to(np.arange(600), distance.shape)
    return PrimaryView(partner, similarity, scale, sigma), codes, distance


def most_hits(bound, trials) -> int:
    return int(binom.ppf(0.999, trials, bound))
