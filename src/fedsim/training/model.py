"""Train a model, restore one from its weights, and predict with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import InputError
from fedsim.splitnn.checkpoint_store import describe
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import PartnerRequirement
from fedsim.splitnn.party_model import RandomSource, Weights, resolve_device
from fedsim.splitnn.secondary_model import LocalSecondary, Secondary
from fedsim.training.config import Config
from fedsim.training.data import NeighbourList, PrimaryData, SecondaryData, as_features, check_lists, check_names
from fedsim.training.labels import Metrics, Target
from fedsim.training.loop import (
    Epoch,
    History,
    Hook,
    TrainingJob,
    TrainingOutline,
    TrainingProgress,
    best_epoch,
    branch_shapes,
    build_primary_model,
    evaluate_rows,
    prepare_job,
    run_epochs,
    select_lists,
    start_local_secondaries,
    training_settings,
)
from fedsim.training.primary import Primary, PrimaryRecords, arrange_lists
from fedsim.types import Floats, Split

# A trained model: the primary's part and a way to every secondary, ready to predict and to be looked into


@dataclass(frozen=True, eq=False)
class Model:
    """What training leaves; ``groups`` says which secondaries answer for which list."""

    config: Config
    target: Target
    primary: Primary
    groups: tuple[tuple[Secondary, ...], ...]
    columns: tuple[int, int]  # numbers and codes of the primary
    name: str = "primary"

    def predict(self, features: Features | NDArray[Any], lists: Sequence[Neighbours]) -> Floats:
        """Predictions for new primary records, given their partners in every list.

        Numbers in the user's unit (n,), or probabilities per class (n, classes).
        """
        features = as_features(features)
        if not len(features):
            raise InputError(f"{self.name} has no records to predict; give at least one")
        records = self.records(features, lists)
        rows = np.arange(len(records.features))
        return self.target.decode_predictions(self.primary.predict(records, rows)[0])

    def records(self, features: Features, lists: Sequence[Neighbours]) -> PrimaryRecords:
        """New records as the primary's network takes them: checked, in the method's order, on the device."""
        features.check(self.name)
        if features.columns != self.columns:
            raise InputError(
                "{} has {} columns of numbers and {} of codes; the model was trained on {} and {}".format(
                    self.name, *features.columns, *self.columns
                )
            )
        if len(lists) != len(self.groups):
            raise InputError(f"{len(lists)} lists of partners were given; the model was trained on {len(self.groups)}")
        held = [NeighbourList(neighbours, holders) for neighbours, holders in zip(lists, self.groups, strict=True)]
        check_lists(held, len(features), self.config.method.partners)
        rng, device = RandomSource(self.config.seed, self.name).rng("order of new records"), self.primary.part.device
        return PrimaryRecords(features.on(device), arrange_lists(held, self.config.method, rng, device))

    def parts(self) -> dict[str, Weights]:
        """The weights of the primary and of every secondary in this process, by party."""
        holders = [holder for group in self.groups for holder in group]
        here = {holder.name: holder.part for holder in holders if isinstance(holder, LocalSecondary)}
        return {name: part.network.state_dict() for name, part in {self.name: self.primary.part, **here}.items()}


# A trained model from its weights, without the data it was trained on


NO_ROWS = np.zeros(0, dtype=np.int64)


def restore_model(
    config: Config,
    target: Target,
    columns: Features,
    lists: Sequence[NeighbourList],
    weights: Mapping[str, Tensor],
    name: str = "primary",
) -> Model:
    """The model whose primary has learnt these weights; the holders have learnt theirs.

    Only the shapes of ``columns`` and ``lists`` count, so they need no records (``Neighbours.without_records``);
    ``columns`` must say which of its numbers are spread.
    """
    device = resolve_device(config.device)
    resident = arrange_lists(lists, config.method, RandomSource(config.seed, name).rng("order"), device)
    part = build_primary_model(columns, branch_shapes(resident, NO_ROWS), target.task, config, name)
    part.fill(weights)
    groups = tuple(held.holders for held in lists)
    return Model(config, target, Primary(part, target.task), groups, columns.columns, name)


# Train a method on plain arrays, with all parties in this process or with secondaries elsewhere


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A trained model, how it got there, and how good it is on the validation and test rows."""

    model: Model
    history: History
    best: Epoch
    metrics: dict[str, Metrics]
    predictions: dict[str, Floats]  # in the order of the split's rows

    @property
    def parts(self) -> dict[str, Weights]:
        """The weights of every party in this process, by party."""
        return self.model.parts()


def train(
    primary: PrimaryData,
    secondaries: Sequence[SecondaryData],
    split: Split,
    config: Config,
    *,
    folder: Path | str | None = None,
    hooks: Sequence[Hook] = (),
) -> TrainingResult:
    """Train, keep the best validation epoch, and only then look at the test rows.

    With a folder the run keeps a log and checkpoints there, one subfolder per party; called again after a kill it goes
    on from the last checkpoint and ends with the same weights, bit for bit.

    >>> rng = np.random.default_rng(0)
    >>> split = Split(np.arange(40), np.arange(40, 50), np.arange(50, 60))
    >>> partner, similarity = rng.integers(0, 30, (60, 3)), rng.normal(size=(60, 3))
    >>> result = train(
    ...     PrimaryData(rng.normal(size=(60, 4)), rng.normal(size=60)),
    ...     [SecondaryData(rng.normal(size=(30, 2)), partner, similarity)],
    ...     split,
    ...     Config(epochs=2, device="cpu"),
    ... )
    >>> [epoch.number for epoch in result.history], sorted(result.metrics)
    ([1, 2], ['test', 'validation'])
    """
    split = _integer_rows(split)
    check_names([primary.name, *(secondary.name for secondary in secondaries)])
    used = () if config.method.partners is PartnerRequirement.NONE else secondaries
    lists = start_local_secondaries(used, training_settings(config, split, folder))
    return train_with(primary, lists, split, config, folder=folder, hooks=hooks)


def train_with(
    primary: PrimaryData,
    lists: Sequence[NeighbourList],
    split: Split,
    config: Config,
    *,
    folder: Path | str | None = None,
    hooks: Sequence[Hook] = (),
) -> TrainingResult:
    """Train as :func:`train` does, with secondaries wherever they are.

    Every call is a new attempt: all parties start anew and go on from the last checkpoint in the folder, which then
    every holder must keep too. The holders stay the model's: another attempt with them changes what it predicts.
    """
    split = _integer_rows(split)
    setting = training_settings(config, split, folder)
    used = select_lists(primary, lists, split, config)
    for holder in [holder for held in used for holder in held.holders]:
        holder.begin(setting.total_steps)
    job = prepare_job(primary, used, split, setting, hooks)
    progress = job.checkpoints.restore() if job.checkpoints else TrainingProgress()
    _announce_start(job, progress.history)
    try:
        return _evaluate_model(_trained_model(primary, job), job, run_epochs(job, progress))
    except BaseException:
        for hook in hooks:
            hook.failed()
        raise


def _integer_rows(split: Split) -> Split:
    """Row numbers in the one form that torch takes; other numbers are left for the checks to refuse."""
    parts = [np.asarray(rows) for rows in (split.train, split.validation, split.test)]
    return Split(*(rows.astype(np.int64) if np.issubdtype(rows.dtype, np.integer) else rows for rows in parts))


def _trained_model(primary: PrimaryData, job: TrainingJob) -> Model:
    groups = tuple(partners.holders for partners in job.records.lists)
    return Model(job.config, job.target, job.primary, groups, as_features(primary.features).columns, primary.name)


def _announce_start(job: TrainingJob, history: History) -> None:
    outline = TrainingOutline(
        epochs=job.config.epochs,
        steps_per_epoch=job.steps_per_epoch,
        epochs_done=len(history),
        device=job.primary.part.device.type,
        job=describe(job.config),
    )
    if job.journal:
        job.journal.begin({"device": outline.device, "config": outline.job}, history)
    for hook in job.hooks:
        hook.started(outline)


def _evaluate_model(model: Model, job: TrainingJob, history: History) -> TrainingResult:
    best = best_epoch(history) or history[-1]
    rows = {"validation": job.split.validation, "test": job.split.test}
    found = {name: evaluate_rows(job, part) for name, part in rows.items() if len(part)}
    metrics = {name: seen for name, (_, seen, _) in found.items()}
    predictions = {name: values for name, (values, _, _) in found.items()}
    if job.journal:
        job.journal.add("end", {"best_epoch": best.number, "metrics": metrics})
    for hook in job.hooks:
        hook.ended(metrics)
    return TrainingResult(model, history, best, metrics, predictions)
