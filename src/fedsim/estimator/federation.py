"""Link, prepare, train and predict with the tables of all parties."""

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
from fedsim.estimator.inputs import COORDINATOR, PRIMARY, EstimatorSettings, LinkedColumns, drop_identifiers
from fedsim.linkage import fit_scale, link, similarities
from fedsim.privacy.bounds import check_sigma, sigma_for_bound
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import PartnerRequirement
from fedsim.splitnn.party_model import RandomSource
from fedsim.training import Config, Model, PrimaryData, SecondaryData, TaskType, TrainingResult, train
from fedsim.training.loop import Hook
from fedsim.types import Floats, Links, Scale, Split
from fedsim.validation import validate_k


def record_noise(identifiers: pl.DataFrame, k: int, seed: int) -> Floats:
    """Return standard normal noise, one row per record and one column per partner.

    Equal identifiers get equal noise, in training and at prediction, so that repeated requests do not average it out.

    >>> drawn = record_noise(pl.DataFrame({"lat": [1, 2, 1]}), k=2, seed=0)
    >>> bool((drawn[0] == drawn[2]).all()), bool((drawn[0] == drawn[1]).any())
    (True, False)
    """
    # Numbers as floats: pandas converts whole numbers as soon as one is missing; -0.0 becomes 0.0.
    normalised = identifiers.with_columns(pl.selectors.numeric().cast(pl.Float64) + 0.0)
    rows = [json.dumps(row, default=str) for row in normalised.rows()]
    noise = {}
    for row in set(rows):
        digest = hashlib.sha256(f"{seed} {row}".encode()).digest()
        noise[row] = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(k)
    return np.stack([noise[row] for row in rows])


@dataclass(frozen=True)
class LinkRule:
    """The links to one secondary, as fixed in training."""

    pair: LinkedColumns
    k: int
    sigma: float
    scale: Scale

    def links(self, primary: pl.DataFrame, secondary: pl.DataFrame, random: RandomSource) -> Links:
        """Return the links of any primary records, seen in training or not (paper, section 4.2)."""
        return self.add_similarities(_nearest_links(self.pair, primary, secondary, self.k), primary, random)

    def add_similarities(self, found: Links, primary: pl.DataFrame, random: RandomSource) -> Links:
        """Return the links with similarities; the noise depends on a record's identifiers, not on its row."""
        seed = random.step_seed(f"noise for {self.pair.party}")
        noise = record_noise(self.pair.primary_identifiers(primary), self.k, seed) if self.sigma else None
        similarity = similarities(found.distance, self.scale, sigma=self.sigma, noise=noise)
        return replace(found, similarity=similarity, scale=self.scale, sigma=self.sigma)


def _nearest_links(pair: LinkedColumns, primary: pl.DataFrame, secondary: pl.DataFrame, k: int) -> Links:
    return link(
        pair.primary_identifiers(primary),
        pair.secondary_identifiers(secondary),
        metric=pair.metric,
        k=validate_k(k, len(secondary), pair.party),
        primary_name=PRIMARY,
        secondary_name=pair.party,
    )


@dataclass(frozen=True)
class FederationPlan:
    """What the constructor requested; ``identifiers`` are the primary's columns that are not features."""

    config: Config
    pairs: tuple[LinkedColumns, ...]
    settings: EstimatorSettings
    rules: FeatureRules
    identifiers: tuple[str, ...]

    def __post_init__(self) -> None:
        check_sigma(self.settings.sigma)
        if self.settings.tau is not None and self.settings.sigma:
            noise = f"sigma={self.settings.sigma} and tau={self.settings.tau}"
            raise SettingError(f"{noise} both set the noise; give one of them", code="two-noises")


@dataclass(frozen=True, eq=False)
class TrainingLabels:
    """The primary's labels, their type, and the name of their column if it has one."""

    values: NDArray[Any]
    task_type: TaskType
    name: str | None = None


@dataclass(frozen=True, eq=False)
class LinkedTable:
    """A secondary of the trained model; in a real federation its table stays with its owner."""

    rule: LinkRule
    preparation: FeaturePreprocessor
    table: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything needed to predict for new records of the primary.

    All parties are in this process, but each has its own preprocessor and network, and they are stored apart.
    """

    model: Model
    preparation: FeaturePreprocessor
    identifiers: tuple[str, ...]
    linked: tuple[LinkedTable, ...]

    def predict(self, primary: pl.DataFrame) -> Floats:
        """Link new records; return numbers in the unit of the labels, or class probabilities."""
        own = drop_identifiers(primary, self.identifiers, PRIMARY)
        random = RandomSource(self.model.config.seed, COORDINATOR)
        links = [party.rule.links(primary, party.table, random) for party in self.linked]
        lists = [_method_neighbours(found, self.model.config) for found in links]
        return self.model.predict(Features.of(self.preparation.apply(own)), lists)


def fit_federation(
    plan: FederationPlan,
    primary: pl.DataFrame,
    secondaries: Sequence[pl.DataFrame],
    labels: TrainingLabels,
    split: Split,
    hooks: Sequence[Hook] = (),
) -> tuple[Federation, list[Links], TrainingResult]:
    """Link, prepare and train; scales are fitted on the training rows and, at a secondary, on their partners only."""
    own = drop_identifiers(primary, plan.identifiers, PRIMARY)
    preparation = fit_preprocessor(own, party=PRIMARY, rows=split.train, rules=plan.rules, label=labels.name)
    random, tau = RandomSource(plan.config.seed, COORDINATOR), plan.settings.tau
    linked, links, data = [], [], []
    for pair, table in zip(plan.pairs, secondaries, strict=True):
        found = _nearest_links(pair, primary, table, plan.settings.k)
        scale = fit_scale(found.distance[split.train])
        sigma = plan.settings.sigma if tau is None else sigma_for_bound(tau, scale.deviation)
        if tau is not None and not pair.metric.whole:
            warnings.warn(
                f"tau bounds an attack on whole-number distances (Hamming); {pair.metric.name} distances are not, and "
                "the bound changes with their unit",
                UserWarning,
                stacklevel=3,
            )
        rule = LinkRule(pair, plan.settings.k, sigma, scale)
        found = rule.add_similarities(found, primary, random)
        features, partners = pair.secondary_features(table), np.unique(found.partner[split.train])
        theirs = fit_preprocessor(features, party=pair.party, rows=partners, rules=plan.rules)
        neighbours = _method_neighbours(found, plan.config)
        prepared = Features.of(theirs.apply(features))
        data.append(SecondaryData(prepared, neighbours.partner, neighbours.similarity, pair.party))
        linked.append(LinkedTable(rule, theirs, table))
        links.append(found)
    own_data = PrimaryData(Features.of(preparation.apply(own)), labels.values, labels.task_type, PRIMARY)
    result = train(own_data, data, split, plan.config, hooks=hooks)
    return Federation(result.model, preparation, plan.identifiers, tuple(linked)), links, result


def _method_neighbours(links: Links, config: Config) -> Neighbours:
    """Return the links as the method needs them; if it needs only equal records, all others become row -1."""
    equal = links.distance == 0
    some = config.method.partners is PartnerRequirement.SOME
    return Neighbours(np.where(equal, links.partner, -1) if some else links.partner, links.similarity)
