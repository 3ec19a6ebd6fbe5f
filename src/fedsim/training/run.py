"""Train a method on plain arrays, with all parties in this process or with secondaries elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.splitnn.description import describe
from fedsim.splitnn.method import Partners
from fedsim.splitnn.part import Weights
from fedsim.training.checkpoint import Progress
from fedsim.training.checks import check_names
from fedsim.training.config import Config
from fedsim.training.data import HeldList, PrimaryData, SecondaryData, as_features
from fedsim.training.history import Epoch, History, best_of
from fedsim.training.hooks import Hook, Outline
from fedsim.training.local import held_here
from fedsim.training.loop import Job, measure, run
from fedsim.training.metrics import Metrics
from fedsim.training.model import Model
from fedsim.training.prepare import prepared, setting_of, taking_part
from fedsim.types import Floats, Split


@dataclass(frozen=True, eq=False)
class Result:
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
) -> Result:
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
    split = _whole_numbers(split)
    check_names([primary.name, *(secondary.name for secondary in secondaries)])
    used = () if config.method.partners is Partners.NONE else secondaries
    lists = held_here(used, setting_of(config, split, folder))
    return train_with(primary, lists, split, config, folder=folder, hooks=hooks)


def train_with(
    primary: PrimaryData,
    lists: Sequence[HeldList],
    split: Split,
    config: Config,
    *,
    folder: Path | str | None = None,
    hooks: Sequence[Hook] = (),
) -> Result:
    """Train as :func:`train` does, with secondaries wherever they are.

    Every call is a new attempt: all parties start anew and go on from the last checkpoint in the folder, which then
    every holder must keep too. The holders stay the model's: another attempt with them changes what it predicts.
    """
    split = _whole_numbers(split)
    setting = setting_of(config, split, folder)
    used = taking_part(primary, lists, split, config)
    for holder in [holder for held in used for holder in held.holders]:
        holder.begin(setting.total_steps)
    job = prepared(primary, used, split, setting, hooks)
    progress = job.checkpoints.restore() if job.checkpoints else Progress()
    _announce(job, progress.history)
    try:
        return _judged(_model(primary, job), job, run(job, progress))
    except BaseException:
        for hook in hooks:
            hook.failed()
        raise


def _whole_numbers(split: Split) -> Split:
    """Row numbers in the one form that torch takes; other numbers are left for the checks to refuse."""
    parts = [np.asarray(rows) for rows in (split.train, split.validation, split.test)]
    return Split(*(rows.astype(np.int64) if np.issubdtype(rows.dtype, np.integer) else rows for rows in parts))


def _model(primary: PrimaryData, job: Job) -> Model:
    groups = tuple(partners.holders for partners in job.records.lists)
    return Model(job.config, job.target, job.primary, groups, as_features(primary.features).columns, primary.name)


def _announce(job: Job, history: History) -> None:
    outline = Outline(
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


def _judged(model: Model, job: Job, history: History) -> Result:
    best = best_of(history) or history[-1]
    rows = {"validation": job.split.validation, "test": job.split.test}
    found = {name: measure(job, part) for name, part in rows.items() if len(part)}
    metrics = {name: seen for name, (_, seen, _) in found.items()}
    predictions = {name: values for name, (values, _, _) in found.items()}
    if job.journal:
        job.journal.add("end", {"best_epoch": best.number, "metrics": metrics})
    for hook in job.hooks:
        hook.ended(metrics)
    return Result(model, history, best, metrics, predictions)
