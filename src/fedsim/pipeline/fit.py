"""Fit a model: the network, boosted trees beside it, and the records that explain and calibrate both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedsim.pipeline.partner_features import PartnerFeatures
from fedsim.protocol.session import PeerRestarted
from fedsim.training import Config, Hook, NeighbourList, PrimaryData, TrainingResult, explain, train_with
from fedsim.training.boosted_trees import StackedTrees, TreeInputs
from fedsim.training.data import as_features
from fedsim.training.loop import training_settings
from fedsim.types import Floats, Floats32, Integers, Split


def ignore_restart(restarted: PeerRestarted) -> None:
    """Say nothing of a restarted peer."""


@dataclass(frozen=True, eq=False)
class FitPlan:
    """How a model is fitted.

    Parameters
    ----------
    config, split
        The training of the network, and its records.
    explained, calibrated
        Records for which the partners' answers are kept: to explain the model, and to calibrate it while a secondary is
        away. They are requested before the partners are released.
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
    explained: Integers
    names: Floats32 | None = None
    log_trees: bool = False
    refit_trees: bool = True
    calibrated: Integers | None = None
    folder: Path | None = None
    hooks: Sequence[Hook] = ()
    restarted: Callable[[PeerRestarted], None] = ignore_restart


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model.

    ``network`` is the result of the network, ``result`` that of the network and the trees, if there are any.
    ``explained`` and ``calibrated`` are the linked records of the plan. ``trees`` predict new records; ``chosen_trees``
    can be judged by the validation records.
    """

    network: TrainingResult
    result: TrainingResult
    explained: explain.LinkedRecords
    calibrated: explain.LinkedRecords | None = None
    trees: StackedTrees | None = None
    chosen_trees: StackedTrees | None = None


def fit(data: PrimaryData, partners: Sequence[PartnerFeatures], plan: FitPlan) -> Fitted:
    """Train the network with the partners, release them, and fit trees beside it."""
    context = training_settings(plan.config, plan.split, plan.folder)
    while True:
        try:
            lists = [partner.open(context) for partner in partners]
            result = train_with(data, lists, plan.split, plan.config, folder=plan.folder, hooks=plan.hooks)
            explained = _request(data, result, lists, plan.explained)
            calibrated = None if plan.calibrated is None else _request(data, result, lists, plan.calibrated)
            embedded = [partner.embedded() for partner in partners] if plan.names is not None else []
            for partner in partners:
                partner.finish()
        except PeerRestarted as restarted:
            plan.restarted(restarted)
        else:
            break
    network = Fitted(result, result, explained, calibrated)
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
    before = result.predictions["validation"], result.intervals.get("validation")
    fitted = StackedTrees.fit(data, split, before, seed=plan.config.seed, log=plan.log_trees, inputs=inputs)
    if fitted is None:
        return network
    trees = fitted.final if plan.refit_trees else fitted.chosen
    both = predict_with_trees(data, split, (fitted.chosen, trees), inputs, (result.predictions, result.intervals))
    calibrated = network.calibrated
    if calibrated is not None and plan.calibrated is not None:
        calibrated = replace(calibrated, columns=trees.columns(inputs.take(plan.calibrated)))
    labels, weights, target = data.labels, data.weights_of, result.model.target
    metrics = {
        part: target.measure(both[part][0], labels[getattr(split, part)], weights(getattr(split, part)))
        for part in result.metrics
    }
    together = replace(
        result,
        predictions={part: values for part, (values, _) in both.items()},
        intervals={part: ends for part, (_, ends) in both.items() if ends is not None},
        metrics=metrics,
    )
    explained = replace(network.explained, columns=trees.columns(inputs.take(plan.explained)))
    return replace(
        network, result=together, explained=explained, calibrated=calibrated, trees=trees, chosen_trees=fitted.chosen
    )


def predict_with_trees(
    data: PrimaryData,
    split: Split,
    trees: tuple[StackedTrees, StackedTrees],
    inputs: TreeInputs,
    network: tuple[Mapping[str, Floats], Mapping[str, Floats]],
) -> dict[str, tuple[Floats, Floats | None]]:
    """Return predictions and intervals of a network, by part of the split, combined with trees.

    The validation records are predicted by the first trees, which they chose, and all others by the second.
    """
    features, (values, intervals), found = as_features(data.features), network, {}
    for part, before in values.items():
        rows, used = getattr(split, part), trees[part != "validation"]
        columns = used.columns(inputs.take(rows))
        found[part] = used.combine(before, intervals.get(part), features.take(rows), columns)
    return found
