"""The training loop: epochs, validation, early stopping, log, checkpoints of all parties, and hooks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import FileError, InputError, SettingError
from fedsim.splitnn import secondary_model
from fedsim.splitnn.checkpoint_store import CheckpointStore, DamagedCheckpoint, arrays_fingerprint, describe
from fedsim.splitnn.gates import BranchShape, Neighbours, PredictionTask
from fedsim.splitnn.layers import Features
from fedsim.splitnn.methods import NetworkSpec, PartnerRequirement
from fedsim.splitnn.party_model import PartyModel, RandomSource, resolve_device
from fedsim.splitnn.secondary_model import LocalSecondary, Secondary
from fedsim.storage.files import append_durably, atomic_write, ensure_folder
from fedsim.training.config import Config
from fedsim.training.data import (
    NeighbourList,
    PrimaryData,
    SecondaryData,
    TaskType,
    as_features,
    check_lists,
    check_names,
    check_primary,
)
from fedsim.training.labels import ClassTarget, Metrics, Target, selection_key
from fedsim.training.primary import (
    BatchRequest,
    PartnerList,
    Primary,
    PrimaryRecords,
    Rows,
    StepFunction,
    arrange_lists,
    choose_step_function,
)
from fedsim.types import Floats, Split

# What happened in training, as plain records and as lines of JSON


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean training loss, validation loss and metrics, how long it took, whether it is the best so far."""

    number: int  # counts from 1
    loss: float
    validation_loss: float
    validation: Metrics
    seconds: float
    best: bool


History = tuple[Epoch, ...]


def best_epoch(history: History) -> Epoch | None:
    """The last epoch that was better than all before it."""
    return next((epoch for epoch in reversed(history) if epoch.best), None)


def is_better(metrics: Metrics, history: History) -> bool:
    """Whether an epoch with these validation metrics would be the best so far."""
    best = best_epoch(history)
    return best is None or selection_key(metrics) > selection_key(best.validation)


def should_stop(history: History, epochs: int, patience: int | None) -> bool:
    """All epochs done, or too many without a better one."""
    best = best_epoch(history)
    waited = len(history) - best.number if best else 0
    return len(history) >= epochs or (patience is not None and waited >= patience)


@dataclass(frozen=True)
class TrainingLog:
    """A file with one JSON object per line: the start, every epoch, the end."""

    path: Path

    def begin(self, start: Mapping[str, Any], history: Sequence[Epoch]) -> None:
        """Write the file anew up to where a resumed run stands: a line lost to a kill comes back, none comes twice."""
        lines = [_json_line("start", start), *(_json_line("epoch", asdict(epoch)) for epoch in history)]
        ensure_folder(self.path.parent)
        with atomic_write(self.path) as part:
            part.write_text("".join(lines))

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one line and flush it to the disk."""
        append_durably(self.path, _json_line(event, facts).encode())


def _json_line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, **facts}) + "\n"


@dataclass(frozen=True)
class TrainingOutline:
    """What is about to run; ``job`` is the configuration as plain values."""

    epochs: int
    steps_per_epoch: int
    epochs_done: int
    device: str
    job: Mapping[str, Any]


class Hook(Protocol):
    """Called by the training loop; inherit and override what you need."""

    def started(self, outline: TrainingOutline) -> None:
        """Before the first step."""
        return

    def stepped(self, step: int) -> None:
        """After every training step; steps count from zero."""
        return

    def epoch_ended(self, epoch: Epoch) -> None:
        """After validation and checkpoint."""
        return

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        """After the test, with the metrics of every part of the split."""
        return

    def failed(self) -> None:
        """Instead of ``ended`` where the run was broken off."""
        return


# Checkpoints of a whole job: every party writes its own folder, the primary last
#
# So what the primary has, all have. Two are kept: one that is damaged leaves the one before it.


EPOCH_LOSS = "epoch/loss"


@dataclass(frozen=True, eq=False)
class TrainingProgress:
    """How far a run has come: whole epochs, steps taken of the next one, and their loss summed over records.

    The sum stays the tensor it is, so that a run that goes on from it adds up to the same bits.
    """

    history: History = ()
    steps: int = 0
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))


@dataclass(frozen=True, eq=False)
class RunCheckpoints:
    """The primary's shelf, and the secondaries that follow its lead."""

    checkpoint_store: CheckpointStore
    part: PartyModel
    secondaries: Sequence[Secondary]

    def save(self, step: int, progress: TrainingProgress) -> None:
        """Write the state after ``step`` steps everywhere, then let go of all but this one and the one before."""
        for secondary in self.secondaries:
            secondary.save(step)
        before = self.checkpoint_store.steps()
        facts = {"history": [asdict(epoch) for epoch in progress.history], "steps": progress.steps}
        self.checkpoint_store.save(step, {**self.part.tensors(), EPOCH_LOSS: progress.loss}, facts)
        if before:
            self.checkpoint_store.forget_before(before[-1])
            for secondary in self.secondaries:
                secondary.forget_before(before[-1])

    def restore(self) -> TrainingProgress:
        """Bring every party back to the last state that all can read; to the start if nothing was ever kept."""
        steps, faults = self.checkpoint_store.steps(), []
        for step in reversed(steps):
            try:
                return self._restore(step)
            except DamagedCheckpoint as fault:
                faults.append(str(fault))
        if faults:
            raise FileError(f"no checkpoint can be read ({'; '.join(faults)}); start anew in another folder")
        return TrainingProgress()

    def _restore(self, step: int) -> TrainingProgress:
        tensors, facts = self.checkpoint_store.load(step)
        for secondary in self.secondaries:
            secondary.restore(step)
        self.part.load(tensors)
        try:
            history = tuple(Epoch(**epoch) for epoch in facts["history"])
            return TrainingProgress(history, facts.get("steps", 0), tensors.get(EPOCH_LOSS, torch.zeros(())))
        except (KeyError, TypeError):
            raise DamagedCheckpoint(f"the primary's checkpoint of step {step} has no history") from None


# The training loop: epochs of batches, validation, the best epoch kept, patience, checkpoints, hooks


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """All that takes part in a run."""

    config: Config
    target: Target
    split: Split
    labels: Rows  # as the user gave them
    records: PrimaryRecords
    primary: Primary
    secondaries: Sequence[Secondary]
    checkpoints: RunCheckpoints | None = None
    journal: TrainingLog | None = None
    hooks: Sequence[Hook] = ()
    clock: Callable[[], float] = time.perf_counter
    scaled: Tensor = field(init=False)
    descend: StepFunction = field(init=False)

    def __post_init__(self) -> None:
        scaled = torch.from_numpy(self.target.encode_labels(self.labels)).to(self.primary.part.device)
        object.__setattr__(self, "scaled", scaled)
        object.__setattr__(self, "descend", choose_step_function(self.primary, self.records, scaled, self.config.batch))

    @property
    def steps_per_epoch(self) -> int:
        return self.config.steps_per_epoch(len(self.split.train))

    def is_due(self, taken: int) -> bool:
        """Whether a checkpoint follows these steps of an epoch; after the last one the epoch's own does."""
        every = self.config.save_steps
        return every is not None and taken % every == 0 and taken < self.steps_per_epoch


def run_epochs(job: TrainingJob, progress: TrainingProgress) -> History:
    """Train from there to the end, and leave every party with its best weights."""
    while not should_stop(progress.history, job.config.epochs, job.config.patience):
        progress = TrainingProgress((*progress.history, _run_epoch(job, progress)))
        _save_epoch(job, progress)
        for hook in job.hooks:
            hook.epoch_ended(progress.history[-1])
    job.primary.part.use_best()
    for secondary in job.secondaries:
        secondary.use_best()
    return progress.history


def _save_epoch(job: TrainingJob, progress: TrainingProgress) -> None:
    """A checkpoint where one is due after an epoch, and a line in the journal."""
    ended = should_stop(progress.history, job.config.epochs, job.config.patience)
    if job.checkpoints and (ended or len(progress.history) % job.config.save_every == 0):
        job.checkpoints.save(len(progress.history) * job.steps_per_epoch, progress)
    if job.journal:
        job.journal.add("epoch", asdict(progress.history[-1]))


def evaluate_rows(job: TrainingJob, rows: Rows) -> tuple[Floats, Metrics, float]:
    """Predictions in the user's terms, their metrics and the loss, for some records."""
    predictions, scores = job.primary.predict(job.records, rows)
    numbers = torch.from_numpy(rows).to(job.scaled.device)
    loss = job.target.task.loss(scores, job.scaled.index_select(0, numbers))
    found = job.target.decode_predictions(predictions)
    return found, job.target.measure(found, job.labels[rows]), float(loss)


def _run_epoch(job: TrainingJob, progress: TrainingProgress) -> Epoch:
    began, history = job.clock(), progress.history
    loss = float(_run_steps(job, progress)) / len(job.split.train)
    _, metrics, validation_loss = evaluate_rows(job, job.split.validation)
    if not math.isfinite(loss + validation_loss):
        raise SettingError(
            f"the loss is no longer finite in epoch {len(history) + 1}; choose a learning rate below "
            f"{job.config.optimiser.rate}"
        )
    best = is_better(metrics, history)
    if best:
        job.primary.part.keep_best()
        for secondary in job.secondaries:
            secondary.keep_best()
    return Epoch(len(history) + 1, loss, validation_loss, metrics, job.clock() - began, best)


def _run_steps(job: TrainingJob, progress: TrainingProgress) -> Tensor:
    """The steps that are left of an epoch; gives the loss of all its steps, summed over records."""
    epoch, total = len(progress.history), progress.loss.to(job.scaled.device, copy=True)
    for taken, asked in enumerate(iterate_batches(job, epoch, progress.steps), start=progress.steps):
        step = epoch * job.steps_per_epoch + taken
        total += job.descend(asked, step) * len(asked.rows)
        if job.checkpoints and job.is_due(taken + 1):
            job.checkpoints.save(step + 1, TrainingProgress(progress.history, taken + 1, total))
        for hook in job.hooks:
            hook.stepped(step)
    return total


def iterate_batches(job: TrainingJob, epoch: int, first: int = 0) -> Iterator[BatchRequest]:
    """The training records in this epoch's order, with what each batch from the first asks of every list."""
    order = torch.randperm(len(job.split.train), generator=job.primary.part.random_source.generator("batches", epoch))
    rows = np.asarray(job.split.train)[order.numpy()][first * job.config.batch :]
    parts = np.split(rows, range(job.config.batch, len(rows), job.config.batch))
    numbers = torch.from_numpy(rows).to(job.scaled.device).split(job.config.batch)
    questions = [partners.questions(parts) for partners in job.records.lists]
    for place in numbers:
        yield BatchRequest(place, [next(question) for question in questions])


# From arrays and holders to a job: the primary's network and features on the device, lists in the method's order
#
# Letters: n records, K partners.


QUANTILE_RECORDS = 20_000


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """Where and how long a job runs."""

    config: Config
    device: torch.device
    total_steps: int
    folder: Path | None


def training_settings(config: Config, split: Split, folder: Path | str | None) -> TrainingContext:
    """Device and number of steps of a job."""
    steps = config.epochs * config.steps_per_epoch(split.train.size)
    return TrainingContext(config, resolve_device(config.device), steps, None if folder is None else Path(folder))


def select_lists(
    primary: PrimaryData, lists: Sequence[NeighbourList], split: Split, config: Config
) -> tuple[NeighbourList, ...]:
    """The lists this method uses, after all that is known before an attempt begins has been checked."""
    check_names([primary.name, *(holder.name for held in lists for holder in held.holders)])
    check_primary(primary, split)
    if config.method.partners is PartnerRequirement.NONE:
        return ()
    if not lists:
        raise InputError(f"{type(config.method).__name__} learns from linked records; give at least one secondary")
    return tuple(lists)


def prepare_job(
    primary: PrimaryData,
    lists: Sequence[NeighbourList],
    split: Split,
    setting: TrainingContext,
    hooks: Sequence[Hook] = (),
) -> TrainingJob:
    """A job at step 0 for holders that have begun; the primary's part is built anew."""
    check_lists(lists, len(primary.labels), setting.config.method.partners)
    config, features = setting.config, as_features(primary.features)
    resident = arrange_lists(lists, config.method, RandomSource(config.seed, primary.name).rng("order"), setting.device)
    target = fit_target(primary, split, config)
    part = build_primary_model(
        features.take(split.train), branch_shapes(resident, split.train), target.task, config, primary.name
    )
    part.start(setting.total_steps)
    holders = [holder for held in lists for holder in held.holders]
    shelf = _checkpoint_store(primary, resident, split, setting)
    return TrainingJob(
        config=config,
        target=target,
        split=split,
        labels=primary.labels,
        records=PrimaryRecords(features.on(setting.device), resident),
        primary=Primary(part, target.task),
        secondaries=holders,
        checkpoints=RunCheckpoints(shelf, part, holders) if shelf else None,
        journal=TrainingLog(setting.folder / "log.jsonl") if setting.folder else None,
        hooks=hooks,
    )


def fit_target(primary: PrimaryData, split: Split, config: Config) -> Target:
    """Labels scaled by their training rows, or the classes there are."""
    if primary.task_type is TaskType.CLASSES:
        return ClassTarget(tuple(np.unique(primary.labels.astype(np.int64)).tolist()))
    return config.label.fit(primary.labels[split.train].astype(np.float64))


def branch_shapes(lists: Sequence[PartnerList], rows: Rows) -> tuple[BranchShape, ...]:
    """What the network above the cut must know of every list; quantiles need no more than some thousand records."""
    some = torch.from_numpy(rows[:: 1 + len(rows) // QUANTILE_RECORDS])
    return tuple(
        BranchShape(
            partners=partners.partner.shape[1],
            widths=tuple(holder.width for holder in partners.holders),
            similarity=partners.similarity[some].cpu().numpy(),
        )
        for partners in lists
    )


def build_primary_model(
    features: Features, branches: tuple[BranchShape, ...], task: PredictionTask, config: Config, name: str
) -> PartyModel:
    """The primary's network above and below the cut, for these training rows; its weights are not drawn yet."""
    network = config.method.build(NetworkSpec(features, config.local, branches, task))
    return PartyModel(network, config.optimiser, RandomSource(config.seed, name), resolve_device(config.device))


def _checkpoint_store(
    primary: PrimaryData, lists: Sequence[PartnerList], split: Split, setting: TrainingContext
) -> CheckpointStore | None:
    """The primary's folder of checkpoints; its job is the whole configuration and its own data."""
    if setting.folder is None:
        return None
    features = as_features(primary.features)
    arrays = [features.numbers, features.codes, primary.labels, split.train, split.validation]
    arrays += [array for partners in lists for array in (partners.partner, partners.similarity.cpu().numpy())]
    job = {
        "party": primary.name,
        "config": describe(replace(setting.config, device="any", save_every=1, save_steps=None)),
        "lists": [[holder.name for holder in partners.holders] for partners in lists],
        "data": arrays_fingerprint(arrays),
    }
    return CheckpointStore(setting.folder / primary.name, job)


# Secondaries in this process, by the lists they answer for


def start_local_secondaries(
    secondaries: Sequence[SecondaryData], setting: TrainingContext
) -> tuple[NeighbourList, ...]:
    """One list per secondary that brings one, held by it and by those aligned with it."""
    leaders = [data for data in secondaries if not data.aligned_with]
    lists = {leader.name: _own_neighbours(leader) for leader in leaders}
    _check_aligned(secondaries)
    started = [(data.aligned_with or data.name, start_local_secondary(data, setting)) for data in secondaries]
    return tuple(
        NeighbourList(neighbours, tuple(party for leader, party in started if leader == name))
        for name, neighbours in lists.items()
    )


def start_local_secondary(data: SecondaryData, setting: TrainingContext) -> LocalSecondary:
    """A secondary at step 0 of this job."""
    return secondary_model.start_secondary(
        data.name,
        as_features(data.features),
        setting.config.secondary,
        total_steps=setting.total_steps,
        device=setting.device,
        folder=setting.folder / data.name if setting.folder else None,
    )


def _own_neighbours(leader: SecondaryData) -> Neighbours:
    if leader.neighbours is None:
        raise InputError(f"{leader.name} has no list of partners; give partner and similarity, or aligned_with")
    return leader.neighbours


def _check_aligned(secondaries: Sequence[SecondaryData]) -> None:
    for place, data in enumerate(secondaries):
        leaders = [other.name for other in secondaries[:place] if not other.aligned_with]
        if data.aligned_with and data.aligned_with not in leaders:
            raise InputError(
                f"{data.name} is aligned with '{data.aligned_with}', which is no earlier secondary with a list"
            )
