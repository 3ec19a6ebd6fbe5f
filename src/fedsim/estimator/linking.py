"""Soft links of training records, and of new records by the rule that training fixed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import polars as pl

from fedsim.errors import SettingError
from fedsim.estimator.noise import noise_of
from fedsim.estimator.pairs import PRIMARY, Pair
from fedsim.linkage import fit_scale, link, similarities
from fedsim.privacy.bounds import check_sigma, noise_for
from fedsim.splitnn.chance import Chance
from fedsim.types import Integers, Links, Scale
from fedsim.whole import partners_wanted


@dataclass(frozen=True)
class Asked:
    """How many partners, and how much noise: a scale ``sigma``, or a bound ``tau`` for which a scale is found."""

    k: int
    sigma: float = 0.0
    tau: float | None = None

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        if self.tau is not None and self.sigma:
            raise SettingError(f"sigma={self.sigma} and tau={self.tau} both ask for noise; give one of them")


@dataclass(frozen=True)
class LinkRule:
    """What training fixed about the links to one secondary."""

    pair: Pair
    k: int
    sigma: float
    scale: Scale

    def links(self, primary: pl.DataFrame, secondary: pl.DataFrame, chance: Chance) -> Links:
        """Links of any primary records, seen in training or not (paper, section 4.2)."""
        return self.scaled(_search(self.pair, primary, secondary, self.k), primary, chance)

    def scaled(self, found: Links, primary: pl.DataFrame, chance: Chance) -> Links:
        """Links with their similarities; the noise of a record follows from its identifiers, not from its row."""
        seed = chance.seed_of(f"noise for {self.pair.party}")
        noise = noise_of(self.pair.our_identifiers(primary), self.k, self.sigma, seed)
        similarity = similarities(found.distance, self.scale) + noise
        return replace(found, similarity=similarity, scale=self.scale, sigma=self.sigma)


def fit_links(
    pair: Pair, tables: tuple[pl.DataFrame, pl.DataFrame], asked: Asked, rows: Integers, chance: Chance
) -> tuple[LinkRule, Links]:
    """The rule, its scale from the training ``rows`` alone, and the links of all records."""
    found = _search(pair, *tables, asked.k)
    scale = fit_scale(found.distance[rows])
    sigma = asked.sigma if asked.tau is None else noise_for(asked.tau, scale.deviation)
    if asked.tau is not None and not pair.metric.whole:
        warnings.warn(
            f"tau bounds an attack on whole-number distances (Hamming); {pair.metric.name} distances are not, and the "
            "bound changes with their unit",
            UserWarning,
            stacklevel=5,
        )
    rule = LinkRule(pair, asked.k, sigma, scale)
    return rule, rule.scaled(found, tables[0], chance)


def _search(pair: Pair, primary: pl.DataFrame, secondary: pl.DataFrame, k: int) -> Links:
    return link(
        pair.our_identifiers(primary),
        pair.their_identifiers(secondary),
        metric=pair.metric,
        k=partners_wanted(k, len(secondary), pair.party),
        primary_name=PRIMARY,
        secondary_name=pair.party,
    )
