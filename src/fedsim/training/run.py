"""Train a method on plain arrays, all parties in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.splitnn.part import Weights
from fedsim.training.checkpoint import Checkpoints
from fedsim.training.config import Config, describe
from fedsim.training.data import PrimaryData, SecondaryData, as_features
from fedsim.training.exchange import PartnerList
from fedsim.training.history import Epoch, History, Journal, best_of
from fedsim.training.hooks import Hook, Outline
from fedsim.training.loop import Job, measure, run
from fedsim.training.metrics import Metrics
from fedsim.training.model import Model
from fedsim.training.prepare import (
    Setting,
    arranged,
    grouped,
    primary_shelf,
    setting_of,
    shapes,
    start_primary,
    start_secondary,
    taking_part,
    target_of,
)
from fedsim.training.primary import Primary, Records
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
        """Every party's weights, by party."""
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
    folder = None if folder is None else Path(folder)
    used = taking_part(primary, secondaries, split, config)
    model, job = _prepared(primary, used, split, setting_of(config, split, folder), hooks)
    history = job.checkpoints.restore() if job.checkpoints else ()
    _announce(job, history)
    try:
        return _judged(model, job, run(job, history))
    except BaseException:
        for hook in hooks:
            hook.failed()
        raise


def _whole_numbers(split: Split) -> Split:
    """Row numbers in the one form that torch takes; other numbers are left for the checks to refuse."""
    parts = [np.asarray(rows) for rows in (split.train, split.validation, split.test)]
    return Split(*(rows.astype(np.int64) if np.issubdtype(rows.dtype, np.integer) else rows for rows in parts))


def _prepared(
    primary: PrimaryData, secondaries: Sequence[SecondaryData], split: Split, setting: Setting, hooks: Sequence[Hook]
) -> tuple[Model, Job]:
    config, features = setting.config, as_features(primary.features)
    started = [start_secondary(data, setting) for data in secondaries]
    groups = grouped(secondaries, started)
    lists = tuple(
        PartnerList.of(neighbours, holders, setting.device)
        for neighbours, holders in zip(arranged(secondaries, primary.name, config), groups, strict=True)
    )
    target = target_of(primary, split, config)
    own = Primary(start_primary(primary, split, shapes(lists, split), target.task, setting), target.task)
    shelf = primary_shelf(primary, lists, split, setting)
    job = Job(
        config=config,
        target=target,
        split=split,
        labels=primary.labels,
        records=Records(features.on(setting.device), lists),
        primary=own,
        secondaries=started,
        checkpoints=Checkpoints(shelf, own.part, started) if shelf else None,
        journal=Journal(setting.folder / "log.jsonl") if setting.folder else None,
        hooks=hooks,
    )
    columns = features.numbers.shape[1], features.codes.shape[1]
    return Model(config, target, own, groups, columns, primary.name), job


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
