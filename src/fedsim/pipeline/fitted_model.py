"""Fit a model, a network and boosted trees beside it; predict new records with it, and explain the predictions.

What the primary gets of the partners in one list are rows that it holds, or activations at every step. ``LocalRows``
are those of an estimator's tables, or those that a job fetched once. With ``RemoteRows`` in the runtime, the paper's
way, rows stay with the secondary, which answers at every step. Both pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedsim.protocol.session import PeerRestarted
from fedsim.splitnn import Features
from fedsim.splitnn.secondary_model import Secondary
from fedsim.training import (
    Config,
    Hook,
    Model,
    NeighbourList,
    PrimaryData,
    SecondaryData,
    TrainingResult,
    explain,
    train_with,
)
from fedsim.training.boosted_trees import EmbeddedPartners, StackedTrees, TreeColumns, TreeInputs
from fedsim.training.data import LogTarget, as_features, stretch_intervals
from fedsim.training.explain import Combine
from fedsim.training.loop import TrainingContext, start_local_secondaries, training_settings
from fedsim.types import Explanation, Floats, Floats32, Integers, Links, Split


class PartnerFeatures(Protocol):
    """The partners of all primary records in one list, as training uses them."""

    def open(self, context: TrainingContext) -> NeighbourList:
        """Return the list and the holders of its rows, at step 0; after a restart of a party it is called again."""
        ...

    def embedded(self) -> EmbeddedPartners | None:
        """Return what trees may see of the partners, or None if that is nothing."""
        ...

    def finish(self) -> None:
        """Release the holders: training and everything that explains the model has been computed."""
        ...


@dataclass(frozen=True, eq=False)
class PartnerInputs:
    """The partners of new records in one list: links, the holders of the rows, and what trees see of these."""

    links: Links
    holders: tuple[Secondary, ...]
    embedded: EmbeddedPartners | None = None


class NewPartners(Protocol):
    """The partners of new records in one list, while a model predicts."""

    def absent(self, queries: Any) -> tuple[str, ...]:
        """Wait for the holders that these records require, and name those that stay away and may be missing."""
        ...

    def inputs(self, links: Links) -> PartnerInputs | None:
        """Return what a model takes of linked records, or None if their rows must be requested and may be missing."""
        ...


@dataclass(frozen=True, eq=False)
class LocalRows:
    """Rows in this process, of one secondary and of those that are aligned with it.

    ``embedding`` is what trees see of every row; None hides the rows from them.
    """

    parties: Sequence[SecondaryData]  # the first has the list
    embedding: Floats32 | None = None  # (m, W)

    def open(self, context: TrainingContext) -> NeighbourList:
        """Return the list with new local networks over the rows."""
        return start_local_secondaries(self.parties, context)[0]

    def embedded(self) -> EmbeddedPartners | None:
        """Return the embedded rows with the list."""
        neighbours: Links | None = self.parties[0].neighbours
        if self.embedding is None or neighbours is None:
            return None
        return EmbeddedPartners(self.embedding, neighbours)

    def finish(self) -> None:
        """Do nothing: nobody waits."""


def ignore_restart(restarted: PeerRestarted) -> None:
    """Say nothing of a restarted peer."""


@dataclass(frozen=True, eq=False)
class FitPlan:
    """How a model is fitted.

    Parameters
    ----------
    config, split
        The training of the network, and its records.
    requested
        Records for which the partners' answers are kept, by what they are for, such as to explain the model. They are
        requested before the partners are released.
    names
        What trees see of the primary's names, see ``data.features.name_trigrams``; None fits no trees.
    log_trees
        Whether the trees learn the logarithm of the label.
    refit_trees
        Whether the trees that predict have learnt the validation records, too, once these have chosen them.
    folder, hooks
        As in :func:`fedsim.training.train`.
    restarted
        Called whenever a party has restarted and training goes back to the last common checkpoint.
    """

    config: Config
    split: Split
    requested: Mapping[str, Integers] = field(default_factory=dict)
    names: Floats32 | None = None
    log_trees: bool = False
    refit_trees: bool = True
    folder: Path | None = None
    hooks: Sequence[Hook] = ()
    restarted: Callable[[PeerRestarted], None] = ignore_restart


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model.

    ``network`` is the result of the network, ``result`` that of the network and the trees, if there are any.
    ``linked`` are the requested records of the plan. ``trees`` predict new records; ``chosen_trees`` can be judged by
    the validation records.
    """

    network: TrainingResult
    result: TrainingResult
    linked: Mapping[str, explain.LinkedRecords]
    trees: StackedTrees | None = None
    chosen_trees: StackedTrees | None = None


def fit(data: PrimaryData, partners: Sequence[PartnerFeatures], plan: FitPlan) -> Fitted:
    """Train the network with the partners, release them, and fit trees beside it."""
    context = training_settings(plan.config, plan.split, plan.folder)
    while True:
        try:
            lists = [partner.open(context) for partner in partners]
            result = train_with(data, lists, plan.split, plan.config, folder=plan.folder, hooks=plan.hooks)
            linked = {name: _request(data, result, lists, rows) for name, rows in plan.requested.items()}
            embedded = [partner.embedded() for partner in partners] if plan.names is not None else []
            for partner in partners:
                partner.finish()
        except PeerRestarted as restarted:
            plan.restarted(restarted)
        else:
            break
    network = Fitted(result, result, linked)
    if plan.names is None:
        return network
    seen = [one for one in embedded if one is not None]
    inputs = TreeInputs(plan.names, seen if len(seen) == len(embedded) else [], plan.config.party_dropout)
    return _add_trees(network, data, inputs, plan)


def _request(
    data: PrimaryData, result: TrainingResult, lists: Sequence[NeighbourList], rows: Integers
) -> explain.LinkedRecords:
    """Request what the partners send for some records; a method without partners has no groups of holders."""
    used = [one.neighbours.take(rows) for one in lists] if result.model.groups else []
    return explain.request_records(result.model, as_features(data.features).take(rows), used)


def _add_trees(network: Fitted, data: PrimaryData, inputs: TreeInputs, plan: FitPlan) -> Fitted:
    """Fit boosted trees beside the network; without weight they are dropped."""
    split, result = plan.split, network.result
    beside = fit_trees_beside(
        (result.predictions, result.intervals),
        data,
        split,
        inputs,
        seed=plan.config.seed,
        log=plan.log_trees,
        refit=plan.refit_trees,
    )
    if beside is None:
        return network
    metrics = {
        part: result.model.target.measure(values, data.labels[rows], data.weights_of(rows))
        for part, values in beside.predictions.items()
        if part in result.metrics
        for rows in [getattr(split, part)]
    }
    together = replace(result, predictions=beside.predictions, intervals=beside.intervals, metrics=metrics)
    linked = {
        name: replace(records, columns=beside.trees.columns(inputs.take(plan.requested[name])))
        for name, records in network.linked.items()
    }
    return replace(network, result=together, linked=linked, trees=beside.trees, chosen_trees=beside.chosen)


@dataclass(frozen=True, eq=False)
class TreesBeside:
    """Trees beside a network, with the predictions and intervals of both together, by part of the split.

    The validation records are predicted by ``chosen``, which they chose, and all others by ``trees``.
    """

    chosen: StackedTrees
    trees: StackedTrees
    predictions: dict[str, Floats]
    intervals: dict[str, Floats]


def fit_trees_beside(  # noqa: PLR0913 - the last three are options by name
    network: tuple[Mapping[str, Floats], Mapping[str, Floats]],
    data: PrimaryData,
    split: Split,
    inputs: TreeInputs,
    *,
    seed: int,
    log: bool = False,
    refit: bool = True,
) -> TreesBeside | None:
    """Fit boosted trees beside the predictions and intervals of a network, by part of the split.

    Returns None if the validation records give the trees no weight. With ``refit`` the trees that predict all other
    records have learnt these, too.
    """
    features, (before, intervals) = as_features(data.features), network
    on_validation = before["validation"], intervals.get("validation")
    fitted = StackedTrees.fit(data, split, on_validation, seed=seed, log=log, inputs=inputs)
    if fitted is None:
        return None
    chosen, trees = fitted.chosen, fitted.final if refit else fitted.chosen
    together = {}
    for part, values in before.items():
        rows, used = getattr(split, part), chosen if part == "validation" else trees
        columns = used.columns(inputs.take(rows))
        together[part] = used.combine(values, intervals.get(part), features.take(rows), columns)
    ends = {part: both for part, (_, both) in together.items() if both is not None}
    return TreesBeside(chosen, trees, {part: values for part, (values, _) in together.items()}, ends)


# Predictions for new records


@dataclass(frozen=True, eq=False)
class LinkedInputs:
    """Records as a model takes them: features, partners in every list, and what trees see beside these.

    ``away`` names the secondaries whose lists are missing.
    """

    features: Features
    lists: Sequence[Links]
    names: Floats32 | None = None
    embedded: Sequence[EmbeddedPartners | None] = ()
    away: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A network and the trees beside it, if there are any.

    Parameters
    ----------
    model, trees
        The network, and the trees.
    typical
        What explanations compare with, see ``TypicalInputs.state``; None in models of earlier releases.
    classes
        The classes, where the label is one.
    absence
        By which factor intervals are wider while the named secondaries are away.
    """

    model: Model
    trees: StackedTrees | None = None
    typical: Mapping[str, Any] | None = None
    classes: Sequence[Any] = ()
    absence: Sequence[tuple[Sequence[str], float]] = ()

    def predict(self, records: LinkedInputs) -> tuple[Floats, Floats | None]:
        """Return numbers in the unit of the labels with intervals, or class probabilities."""
        values, intervals = self.model.predict_with_intervals(records.features, records.lists)
        return self._combine(records.away)(values, intervals, records.features, self._columns(records))

    def explain(self, records: LinkedInputs) -> tuple[Floats, Floats | None, list[Explanation]]:
        """Return the same, and the explanation of every prediction."""
        combine, typical = self._combine(records.away), explain.typical_from_state(self.typical)
        linked = explain.request_records(self.model, records.features, records.lists, self._columns(records))
        values, intervals = combine(*explain.predict_records(self.model, linked), records.features, linked.columns)
        found = explain.explain_records(self.model, linked, typical, combine=combine, classes=self.classes)
        return values, intervals, found

    def _columns(self, records: LinkedInputs) -> TreeColumns:
        if self.trees is None or records.names is None:
            return TreeColumns.none(len(records.features))
        return self.trees.columns(TreeInputs(records.names, records.embedded))

    def _combine(self, away: Sequence[str]) -> Combine:
        """Return what turns predictions of the network into those of the model while some secondaries are away."""
        # While some of several are away, the intervals are those without all of them.
        factors = self.absence or [((), 1.0)]
        stretch = next((factor for names, factor in factors if set(names) == set(away)), factors[-1][1])
        log, trees = isinstance(self.model.target, LogTarget), self.trees

        def combined(
            values: Floats, intervals: Floats | None, features: Features, columns: TreeColumns
        ) -> tuple[Floats, Floats | None]:
            if trees is not None:
                values, intervals = trees.combine(values, intervals, features, columns)
            if away and intervals is not None:
                intervals = stretch_intervals(values, intervals, stretch, log=log)
            return np.asarray(values), intervals

        return combined
