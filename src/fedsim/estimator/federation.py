"""Link, prepare, train and predict with the tables of all parties."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.features import FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.errors import SettingError
from fedsim.estimator.parameters import COORDINATOR, PRIMARY, LinkedColumns, drop_identifiers
from fedsim.linkage import fit_scale, link, similarities
from fedsim.privacy.bounds import check_sigma, sigma_for_bound
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import PartnerRequirement
from fedsim.splitnn.party_model import RandomSource
from fedsim.training import Config, Model, PrimaryData, SecondaryData, TaskType, TrainingResult, train
from fedsim.training.loop import Hook
from fedsim.types import Floats, Integers, Links, Scale, Split
from fedsim.validation import validate_k

# Noise on similarities that belongs to a record, wherever it stands in a table and whatever stands beside it
#
# Equal identifiers get equal noise, in training as at prediction: asking again about a record averages nothing out.


def record_noise(identifiers: pl.DataFrame, k: int, seed: int) -> Floats:
    """Return standard normal noise, one row per record and one column per partner; equal identifiers get equal noise.

    >>> drawn = record_noise(pl.DataFrame({"lat": [1, 2, 1]}), k=2, seed=0)
    >>> bool((drawn[0] == drawn[2]).all()), bool((drawn[0] == drawn[1]).any())
    (True, False)
    """
    written = [json.dumps(row, default=str) for row in _normalise_numbers(identifiers).rows()]
    drawn = {text: _noise_generator(seed, text).standard_normal(k) for text in set(written)}
    return np.stack([drawn[text] for text in written])


def _normalise_numbers(identifiers: pl.DataFrame) -> pl.DataFrame:
    """Numbers as floats: pandas makes floats of whole numbers as soon as one is missing; -0.0 is 0.0."""
    return identifiers.with_columns(pl.selectors.numeric().cast(pl.Float64) + 0.0)


def _noise_generator(seed: int, text: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed} {text}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


# Soft links of training records, and of new records by the rule that training fixed


@dataclass(frozen=True)
class LinkParameters:
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

    pair: LinkedColumns
    k: int
    sigma: float
    scale: Scale

    def links(self, primary: pl.DataFrame, secondary: pl.DataFrame, chance: RandomSource) -> Links:
        """Links of any primary records, seen in training or not (paper, section 4.2)."""
        return self.scaled(_nearest_links(self.pair, primary, secondary, self.k), primary, chance)

    def scaled(self, found: Links, primary: pl.DataFrame, chance: RandomSource) -> Links:
        """Links with their similarities; the noise of a record follows from its identifiers, not from its row."""
        seed = chance.step_seed(f"noise for {self.pair.party}")
        noise = record_noise(self.pair.primary_identifiers(primary), self.k, seed) if self.sigma else None
        similarity = similarities(found.distance, self.scale, sigma=self.sigma, noise=noise)
        return replace(found, similarity=similarity, scale=self.scale, sigma=self.sigma)


def fit_links(
    pair: LinkedColumns,
    tables: tuple[pl.DataFrame, pl.DataFrame],
    asked: LinkParameters,
    rows: Integers,
    chance: RandomSource,
) -> tuple[LinkRule, Links]:
    """The rule, its scale from the training ``rows`` alone, and the links of all records."""
    found = _nearest_links(pair, *tables, asked.k)
    scale = fit_scale(found.distance[rows])
    sigma = asked.sigma if asked.tau is None else sigma_for_bound(asked.tau, scale.deviation)
    if asked.tau is not None and not pair.metric.whole:
        warnings.warn(
            f"tau bounds an attack on whole-number distances (Hamming); {pair.metric.name} distances are not, and the "
            "bound changes with their unit",
            UserWarning,
            stacklevel=5,
        )
    rule = LinkRule(pair, asked.k, sigma, scale)
    return rule, rule.scaled(found, tables[0], chance)


def _nearest_links(pair: LinkedColumns, primary: pl.DataFrame, secondary: pl.DataFrame, k: int) -> Links:
    return link(
        pair.primary_identifiers(primary),
        pair.secondary_identifiers(secondary),
        metric=pair.metric,
        k=validate_k(k, len(secondary), pair.party),
        primary_name=PRIMARY,
        secondary_name=pair.party,
    )


# Tables in, predictions out: links, each party's preparation, and the split network between them
#
# All parties live in this process; each one's preparation and network are its own and are stored apart.


@dataclass(frozen=True)
class FederationPlan:
    """What the constructor asked for; ``identifiers`` are the primary's columns that are no features."""

    config: Config
    pairs: tuple[LinkedColumns, ...]
    asked: LinkParameters
    rules: FeatureRules
    identifiers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TrainingLabels:
    """The primary's labels, what they are, and the name of their column where it has one."""

    values: NDArray[Any]
    task_type: TaskType
    name: str | None = None


@dataclass(frozen=True, eq=False)
class LinkedTable:
    """A secondary as the trained model knows it: its table stays its own, here for the simulation alone."""

    rule: LinkRule
    preparation: FeaturePreprocessor
    table: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything needed to predict for new records of the primary."""

    model: Model
    preparation: FeaturePreprocessor
    identifiers: tuple[str, ...]
    linked: tuple[LinkedTable, ...]

    def predict(self, primary: pl.DataFrame) -> Floats:
        """Numbers in the user's unit, or probabilities per class; the records are linked first."""
        own = drop_identifiers(primary, self.identifiers, PRIMARY)
        chance = RandomSource(self.model.config.seed, COORDINATOR)
        links = [party.rule.links(primary, party.table, chance) for party in self.linked]
        lists = [method_neighbours(found, self.model.config) for found in links]
        return self.model.predict(Features.of(self.preparation.apply(own)), lists)


def fit_federation(
    plan: FederationPlan,
    primary: pl.DataFrame,
    secondaries: Sequence[pl.DataFrame],
    labels: TrainingLabels,
    split: Split,
    hooks: Sequence[Hook] = (),
) -> tuple[Federation, list[Links], TrainingResult]:
    """Link, prepare and train; every scale comes from the split's training rows and, at a secondary, their partners."""
    own = drop_identifiers(primary, plan.identifiers, PRIMARY)
    preparation = fit_preprocessor(own, party=PRIMARY, rows=split.train, rules=plan.rules, label=labels.name)
    chance = RandomSource(plan.config.seed, COORDINATOR)
    linked, links = [], []
    for pair, table in zip(plan.pairs, secondaries, strict=True):
        rule, found = fit_links(pair, (primary, table), plan.asked, split.train, chance)
        trained = np.unique(found.partner[split.train])
        theirs = fit_preprocessor(pair.secondary_features(table), party=pair.party, rows=trained, rules=plan.rules)
        linked.append(LinkedTable(rule, theirs, table))
        links.append(found)
    result = train(
        PrimaryData(Features.of(preparation.apply(own)), labels.values, labels.task_type, PRIMARY),
        [secondary_data(party, found, plan.config) for party, found in zip(linked, links, strict=True)],
        split,
        plan.config,
        hooks=hooks,
    )
    return Federation(result.model, preparation, plan.identifiers, tuple(linked)), links, result


def secondary_data(party: LinkedTable, links: Links, config: Config) -> SecondaryData:
    """A secondary as the training takes it."""
    pair = party.rule.pair
    features = Features.of(party.preparation.apply(pair.secondary_features(party.table)))
    found = method_neighbours(links, config)
    return SecondaryData(features, found.partner, found.similarity, pair.party)


def method_neighbours(links: Links, config: Config) -> Neighbours:
    """The links as the method takes them; one that wants equals alone gets row -1 for everyone else."""
    equal = links.distance == 0
    some = config.method.partners is PartnerRequirement.SOME
    return Neighbours(np.where(equal, links.partner, -1) if some else links.partner, links.similarity)
