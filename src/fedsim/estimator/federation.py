"""Tables in, predictions out: links, each party's preparation, and the split network between them.

All parties live in this process; each one's preparation and network are its own and are stored apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.data.features import Preparation, Rules, fit_preparation
from fedsim.estimator.linking import Asked, LinkRule, fit_links
from fedsim.estimator.pairs import COORDINATOR, PRIMARY, Pair, features_beside
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.method import Partners
from fedsim.training import Config, Goal, Model, PrimaryData, Result, SecondaryData, train
from fedsim.training.hooks import Hook
from fedsim.types import Floats, Links, Split


@dataclass(frozen=True)
class Plan:
    """What the constructor asked for; ``identifiers`` are the primary's columns that are no features."""

    config: Config
    pairs: tuple[Pair, ...]
    asked: Asked
    rules: Rules
    identifiers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Labels:
    """The primary's labels, what they are, and the name of their column where it has one."""

    values: NDArray[Any]
    goal: Goal
    name: str | None = None


@dataclass(frozen=True, eq=False)
class Linked:
    """A secondary as the trained model knows it: its table stays its own, here for the simulation alone."""

    rule: LinkRule
    preparation: Preparation
    table: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything needed to predict for new records of the primary."""

    model: Model
    preparation: Preparation
    identifiers: tuple[str, ...]
    linked: tuple[Linked, ...]

    def predict(self, primary: pl.DataFrame) -> Floats:
        """Numbers in the user's unit, or probabilities per class; the records are linked first."""
        own = features_beside(primary, self.identifiers, PRIMARY)
        chance = Chance(self.model.config.seed, COORDINATOR)
        links = [party.rule.links(primary, party.table, chance) for party in self.linked]
        lists = [neighbours(found, self.model.config) for found in links]
        return self.model.predict(Features.of(self.preparation.apply(own)), lists)


def fit_federation(
    plan: Plan,
    primary: pl.DataFrame,
    secondaries: Sequence[pl.DataFrame],
    labels: Labels,
    split: Split,
    hooks: Sequence[Hook] = (),
) -> tuple[Federation, list[Links], Result]:
    """Link, prepare and train; every scale comes from the split's training rows and, at a secondary, their partners."""
    own = features_beside(primary, plan.identifiers, PRIMARY)
    preparation = fit_preparation(own, party=PRIMARY, rows=split.train, rules=plan.rules, label=labels.name)
    chance = Chance(plan.config.seed, COORDINATOR)
    linked, links = [], []
    for pair, table in zip(plan.pairs, secondaries, strict=True):
        rule, found = fit_links(pair, (primary, table), plan.asked, split.train, chance)
        trained = np.unique(found.partner[split.train])
        theirs = fit_preparation(pair.their_features(table), party=pair.party, rows=trained, rules=plan.rules)
        linked.append(Linked(rule, theirs, table))
        links.append(found)
    result = train(
        PrimaryData(Features.of(preparation.apply(own)), labels.values, labels.goal, PRIMARY),
        [secondary_data(party, found, plan.config) for party, found in zip(linked, links, strict=True)],
        split,
        plan.config,
        hooks=hooks,
    )
    return Federation(result.model, preparation, plan.identifiers, tuple(linked)), links, result


def secondary_data(party: Linked, links: Links, config: Config) -> SecondaryData:
    """A secondary as the training takes it."""
    pair = party.rule.pair
    features = Features.of(party.preparation.apply(pair.their_features(party.table)))
    found = neighbours(links, config)
    return SecondaryData(features, found.partner, found.similarity, pair.party)


def neighbours(links: Links, config: Config) -> Neighbours:
    """The links as the method takes them; one that wants equals alone gets row -1 for everyone else."""
    equal = links.distance == 0
    some = config.method.partners is Partners.SOME
    return Neighbours(np.where(equal, links.partner, -1) if some else links.partner, links.similarity)
