"""The training loop: epochs, validation, early stopping, log, checkpoints of all parties, and hooks."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import FileError, InputError, SettingError
from fedsim.splitnn import Features, gates, layers, methods, party_model, secondary_model
from fedsim.storage.files import append_durably, atomic_write, ensure_folder
from fedsim.training import data
from fedsim.training.config import Config
from fedsim.training.data import ClassTarget, Metrics, NeighbourList, PrimaryData, SecondaryData, Target
from fedsim.training.primary_steps import (
    BatchRequest,
    CudaGraphStep,
    PartnerList,
    Primary,
    PrimaryRecords,
    Rows,
    arrange_lists,
    send_array,
)
from fedsim.types import Floats, Split

# History


@dataclass(frozen=True)
class Epoch:
    """One epoch of training.

    Parameters
    ----------
    number
        Counts from 1.
    loss, validation_loss
        Mean training loss of the epoch, and validation loss after it.
    validation
        Validation metrics.
    seconds
        Duration.
    best
        Whether it is better than all epochs before.
    """

    number: int
    loss: float
    validation_loss: float
    validation: Metrics
    seconds: float
    best: bool


History = tuple[Epoch, ...]


def best_epoch(history: History) -> Epoch | None:
    """Return the last epoch that was better than all before it."""
    return next((epoch for epoch in reversed(history) if epoch.best), None)


def is_better(metrics: Metrics, history: History) -> bool:
    """Return whether an epoch with these validation metrics would be the best so far."""
    best = best_epoch(history)
    return best is None or data.selection_key(metrics) > data.selection_key(best.validation)


COOLING_SHARE = 5  # one epoch in five is kept for the end of the schedule
COOLING_PATIENCE = 2  # epochs at the end of the schedule without a better one


@dataclass(frozen=True)
class EpochPlan:
    """Which epochs of its schedule a training runs.

    Once ``patience`` epochs in a row are no better, it returns to its best weights and continues with the last
    ``cooling`` epochs of the schedule, whose small learning rates most trainings that stop early would never see.
    """

    epochs: int
    patience: int | None
    cooling: int = 0

    @classmethod
    def of(cls, config: Config) -> "EpochPlan":
        """Return the plan of a configuration; only a falling learning rate keeps epochs for the end."""
        cools = isinstance(getattr(config.optimiser, "schedule", None), party_model.WarmCosine)
        return cls(config.epochs, config.patience, config.epochs // COOLING_SHARE if cools else 0)

    def waited_until(self, history: History) -> int | None:
        """Return the epoch after which the patience had ended, if it has."""
        best = 0
        for epoch in history:
            best = epoch.number if epoch.best else best
            if self.patience is not None and epoch.number - best >= self.patience:
                return epoch.number
        return None

    def place(self, history: History) -> int:
        """Return the place in the schedule, from zero, of the epoch after these."""
        waited = self.waited_until(history)
        if waited is None:
            return len(history)
        return max(waited, self.epochs - self.cooling) + len(history) - waited

    def is_over(self, history: History) -> bool:
        """Return whether all epochs are done, or too many passed without a better one."""
        waited, best = self.waited_until(history), best_epoch(history)
        if self.place(history) >= self.epochs:
            return True
        if waited is None:
            return False
        return len(history) - max(waited, best.number if best else 0) >= COOLING_PATIENCE


@dataclass(frozen=True)
class TrainingLog:
    """A file with one JSON object per line: the start, every epoch, the end."""

    path: Path

    def begin(self, start: Mapping[str, Any], history: Sequence[Epoch]) -> None:
        """Rewrite the file up to where a resumed run continues, so that a kill neither loses nor repeats a line."""
        lines = [_json_line("start", start), *(_json_line("epoch", asdict(epoch)) for epoch in history)]
        ensure_folder(self.path.parent)
        with atomic_write(self.path) as part:
            part.write_text("".join(lines))

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one line and flush it to disk."""
        append_durably(self.path, _json_line(event, facts).encode())


def _json_line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, **facts}) + "\n"


# Hooks


@dataclass(frozen=True)
class TrainingOutline:
    """What is about to run.

    Parameters
    ----------
    epochs, steps_per_epoch
        Length of the run.
    epochs_done
        Epochs that an earlier attempt has finished.
    device
        ``"cpu"`` or ``"cuda"``.
    job
        The configuration as JSON values.
    """

    epochs: int
    steps_per_epoch: int
    epochs_done: int
    device: str
    job: Mapping[str, Any]


class Hook(Protocol):
    """Called by the training loop; inherit and override what you need. An exception ends the run.

    Examples
    --------
    >>> class PrintLoss(Hook):
    ...     def epoch_ended(self, epoch):
    ...         print(epoch.number, epoch.loss)
    """

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
        """Instead of ``ended`` if the run was interrupted."""
        return


class ProgressBar(Hook):
    """Show epochs, loss, validation metric and remaining time on a terminal; elsewhere a line per epoch."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._epochs = 0
        self._next = 1  # shown from its first step on: training may stop before it

    def started(self, outline: TrainingOutline) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        console = Console(stderr=True)
        columns = TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.fields[scores]}")
        self._epochs = outline.epochs
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(
            "training",
            total=outline.epochs * outline.steps_per_epoch,
            completed=outline.epochs_done * outline.steps_per_epoch,
            epoch=min(outline.epochs_done + 1, outline.epochs),
            scores="",
        )
        self._next = outline.epochs_done + 1
        self._bar.start()

    def stepped(self, step: int) -> None:
        self._bar.update(self._task, completed=step + 1, epoch=self._next)

    def epoch_ended(self, epoch: Epoch) -> None:
        metric, value = next(iter(epoch.validation.items()))
        scores = f"loss {epoch.loss:.4g}, validation {metric} {value:.4g}"
        self._bar.update(self._task, scores=scores)
        self._next = epoch.number + 1
        if self._bar.disable:
            print(f"epoch {epoch.number} of {self._epochs}: {scores} ({epoch.seconds:.1f} s)", file=sys.stderr)

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._bar.stop()

    def failed(self) -> None:
        self._bar.stop()


# Checkpoints of a run. Every party writes its own folder, the primary last, so whatever the primary has, all have. Two
# checkpoints are kept: if one is damaged, the one before it is used.


EPOCH_LOSS = "epoch/loss"


@dataclass(frozen=True, eq=False)
class TrainingProgress:
    """How far a run has come: full epochs, steps of the next one, and their loss summed over records.

    The sum stays a tensor, so that a resumed run adds up to the same bits.
    """

    history: History = ()
    steps: int = 0
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))


@dataclass(frozen=True, eq=False)
class RunCheckpoints:
    """The primary's checkpoints, and the secondaries that save theirs at the same steps."""

    store: party_model.CheckpointStore
    model: party_model.PartyModel
    secondaries: Sequence[secondary_model.Secondary]

    def save(self, step: int, progress: TrainingProgress) -> None:
        """Save the state after ``step`` steps at every party, then delete all but this one and the one before."""
        for secondary in self.secondaries:
            secondary.save(step)
        before = self.store.steps()
        facts = {"history": [asdict(epoch) for epoch in progress.history], "steps": progress.steps}
        self.store.save(step, {**self.model.tensors(), EPOCH_LOSS: progress.loss}, facts)
        if before:
            self.store.forget_before(before[-1])
            for secondary in self.secondaries:
                secondary.forget_before(before[-1])

    def restore(self) -> TrainingProgress:
        """Return every party to the last state that all can read; to the start if nothing was saved."""
        faults = []
        for step in reversed(self.store.steps()):
            try:
                return self._restore_step(step)
            except party_model.DamagedCheckpoint as fault:
                faults.append(str(fault))
        if faults:
            message = f"no checkpoint can be read ({'; '.join(faults)})"
            hint = f"restore them, or delete {self.store.folder} and run again: training then starts from the beginning"
            raise FileError(f"{message}; {hint}", code="no-readable-checkpoint", folder=self.store.folder)
        return TrainingProgress()

    def _restore_step(self, step: int) -> TrainingProgress:
        tensors, facts = self.store.load(step)
        for secondary in self.secondaries:
            secondary.restore(step)
        self.model.load(tensors)
        try:
            history = tuple(Epoch(**epoch) for epoch in facts["history"])
            loss = tensors.get(EPOCH_LOSS, torch.zeros(()))
            return TrainingProgress(history, facts.get("steps", 0), loss)
        except (KeyError, TypeError):
            message = f"the primary's checkpoint of step {step} has no history"
            raise party_model.DamagedCheckpoint(message) from None


# The loop


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """All parts of a run."""

    config: Config
    target: Target
    split: Split
    data: PrimaryData  # labels and weights as the user gave them
    records: PrimaryRecords
    primary: Primary
    secondaries: Sequence[secondary_model.Secondary]
    checkpoints: RunCheckpoints | None = None
    journal: TrainingLog | None = None
    hooks: Sequence[Hook] = ()
    clock: Callable[[], float] = time.perf_counter
    scaled: Tensor = field(init=False)
    descend: Callable[[BatchRequest, int], Tensor] = field(init=False)

    def __post_init__(self) -> None:
        scaled = torch.from_numpy(self.target.encode_labels(self.data.labels)).to(self.primary.model.device)
        object.__setattr__(self, "scaled", scaled)
        weights, train = self.data.weights, self.split.train
        # With a mean of one over the training records, the steps of an epoch add up to the weighted mean loss.
        on_device = None if weights is None else as_tensor(weights / weights[train].mean(), scaled)
        step = self.primary.step_function(self.records, scaled, self.config.batch, on_device)
        object.__setattr__(self, "descend", step)

    @property
    def steps_per_epoch(self) -> int:
        return self.config.steps_per_epoch(len(self.split.train))


def run_epochs(job: TrainingJob, progress: TrainingProgress) -> tuple[History, Epoch]:
    """Train from this progress to the end, and leave every party with its best weights; return which were best."""
    config, plan = job.config, EpochPlan.of(job.config)
    ended = plan.is_over(progress.history)
    while not ended:
        place = plan.place(progress.history)
        if plan.waited_until(progress.history) == len(progress.history) and not progress.steps:
            _use_best(job)
        history = (*progress.history, _run_epoch(job, progress, place))
        progress = TrainingProgress(history)
        ended = plan.is_over(history)
        if job.checkpoints and (ended or len(history) % config.save_every == 0):
            job.checkpoints.save((place + 1) * job.steps_per_epoch, progress)
        if job.journal:
            job.journal.add("epoch", asdict(history[-1]))
        for hook in job.hooks:
            hook.epoch_ended(history[-1])
    _use_best(job)
    return progress.history, best_epoch(progress.history) or progress.history[-1]


def _keep_best(job: TrainingJob) -> None:
    job.primary.model.keep_best()
    for secondary in job.secondaries:
        secondary.keep_best()


def _use_best(job: TrainingJob) -> None:
    job.primary.model.use_best()
    for secondary in job.secondaries:
        secondary.use_best()


def _run_epoch(job: TrainingJob, progress: TrainingProgress, place: int) -> Epoch:
    """Run the remaining steps of the epoch at this place of the schedule, then validate."""
    began, number, every = job.clock(), len(progress.history) + 1, job.config.save_steps
    total = progress.loss.to(job.scaled.device, copy=True)  # summed over the records of all steps
    for taken, request in enumerate(iterate_batches(job, place, progress.steps), start=progress.steps + 1):
        step = place * job.steps_per_epoch + taken - 1
        total += job.descend(request, step) * len(request.rows)
        # No checkpoint after the last step: that of the epoch follows its validation.
        if job.checkpoints and every and taken % every == 0 and taken < job.steps_per_epoch:
            job.checkpoints.save(step + 1, replace(progress, steps=taken, loss=total))
        for hook in job.hooks:
            hook.stepped(step)
    loss = float(total) / len(job.split.train)
    validation = evaluate_rows(job, job.split.validation)
    if not math.isfinite(loss + validation.loss):
        rate = job.config.optimiser.rate
        message = f"the loss is not finite in epoch {number}; choose a learning rate below {rate}"
        raise SettingError(message, code="diverged", epoch=number, learning_rate=rate)
    best = is_better(validation.metrics, progress.history)
    if best:
        _keep_best(job)
    return Epoch(number, loss, validation.loss, validation.metrics, job.clock() - began, best)


def iterate_batches(job: TrainingJob, epoch: int, first: int = 0) -> Iterator[BatchRequest]:
    """Yield the training records in this epoch's order from batch ``first`` on, with their requests to every list.

    A recorded step makes its requests itself.
    """
    generator = job.primary.model.random_source.generator("batches", epoch)
    order = torch.randperm(len(job.split.train), generator=generator)
    rows = np.asarray(job.split.train)[order.numpy()][first * job.config.batch :]
    batches = np.split(rows, range(job.config.batch, len(rows), job.config.batch))
    lists = () if isinstance(job.descend, CudaGraphStep) else job.records.lists
    requests = [partners.requests(batches) for partners in lists]
    for records in send_array(rows, job.scaled.device).split(job.config.batch):
        yield BatchRequest(records, [next(request) for request in requests])


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the model makes of some records, and how far that is from their labels."""

    outputs: Floats  # (n, T)
    scores: Tensor  # (n, M, T)
    metrics: Metrics
    loss: float


def evaluate_rows(job: TrainingJob, rows: Rows) -> Evaluation:
    """Predict some records and compare with their labels."""
    outputs, scores = job.primary.predict(job.records, rows)
    labels = job.scaled.index_select(0, torch.from_numpy(rows).to(job.scaled.device))
    weights = job.data.weights_of(rows)
    metrics = job.target.measure(job.target.decode_predictions(outputs), job.data.labels[rows], weights)
    loss = job.target.task.loss(scores, labels, None if weights is None else as_tensor(weights, scores))
    return Evaluation(outputs, scores, metrics, float(loss))


def as_tensor(values: Floats, like: Tensor) -> Tensor:
    """Return numbers in the precision of the networks, on the device of another tensor."""
    return torch.from_numpy(values.astype(np.float32)).to(like.device)


# From arrays and holders to a job


QUANTILE_RECORDS = 20_000  # quantiles of similarities need no more records


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """Where and how long a job runs."""

    config: Config
    device: torch.device
    total_steps: int
    folder: Path | None


def training_settings(config: Config, split: Split, folder: Path | str | None) -> TrainingContext:
    """Return device, number of steps and folder of a job."""
    steps = config.epochs * config.steps_per_epoch(split.train.size)
    device = party_model.resolve_device(config.device)
    return TrainingContext(config, device, steps, None if folder is None else Path(folder))


def select_lists(
    primary: PrimaryData, lists: Sequence[NeighbourList], split: Split, config: Config
) -> tuple[NeighbourList, ...]:
    """Return the lists that the method uses, after checking all that can be checked before the parties start."""
    data.check_names([primary.name, *(holder.name for entry in lists for holder in entry.holders)])
    data.check_primary(primary, split)
    if config.method.partners is methods.PartnerRequirement.NONE:
        return ()
    if not lists:
        method = type(config.method).__name__
        raise InputError(f"{method} learns from linked records; give at least one secondary", code="no-secondary")
    return tuple(lists)


def prepare_job(
    primary: PrimaryData,
    lists: Sequence[NeighbourList],
    split: Split,
    context: TrainingContext,
    hooks: Sequence[Hook] = (),
) -> TrainingJob:
    """Return a job at step 0 for holders that have begun; the primary's model is built anew."""
    config, features = context.config, data.as_features(primary.features)
    data.check_lists(lists, len(primary.labels), config.method.partners)
    rng = party_model.RandomSource(config.seed, primary.name).rng("order")
    arranged = arrange_lists(lists, config.method, rng, context.device, context.folder)
    if primary.task_type is data.TaskType.CLASSES:
        labelled = np.concatenate([split.train, split.validation, split.test])
        target: Target = ClassTarget(tuple(np.unique(primary.labels[labelled].astype(np.int64)).tolist()))
    else:
        target = config.label.fit(primary.labels[split.train].astype(np.float64))
    shapes = branch_shapes(arranged, split.train)
    model = build_primary_model(features.take(split.train), shapes, target.task, config, primary.name)
    model.start(context.total_steps)
    holders = [holder for entry in lists for holder in entry.holders]
    checkpoints = journal = None
    if context.folder:
        store = _checkpoint_store(primary, arranged, split, context.folder, config)
        checkpoints = RunCheckpoints(store, model, holders)
        journal = TrainingLog(context.folder / "log.jsonl")
    records = PrimaryRecords(layers.FeatureTensors.of(features, context.device), arranged)
    party = Primary(model, target.task, config.party_dropout)
    return TrainingJob(config, target, split, primary, records, party, holders, checkpoints, journal, hooks)


def branch_shapes(lists: Sequence[PartnerList], rows: Rows) -> tuple[gates.BranchShape, ...]:
    """Return what the network above the cut needs to know of every list."""
    sample = torch.from_numpy(rows[:: 1 + len(rows) // QUANTILE_RECORDS])
    return tuple(
        gates.BranchShape(
            partners=partners.partner.shape[1],
            widths=tuple(holder.width for holder in partners.holders),
            similarity=partners.similarity[sample].cpu().numpy(),
        )
        for partners in lists
    )


def build_primary_model(
    features: Features, branches: tuple[gates.BranchShape, ...], task: gates.PredictionTask, config: Config, name: str
) -> party_model.PartyModel:
    """Return the primary's network above and below the cut for these training rows; its weights are not drawn yet."""
    network = config.method.build(methods.NetworkSpec(features, config.local, branches, task))
    if config.members > 1:
        network = methods.Members(network, config.members)
    random, device = party_model.RandomSource(config.seed, name), party_model.resolve_device(config.device)
    return party_model.PartyModel(network, config.optimiser, random, device)


def _checkpoint_store(
    primary: PrimaryData, lists: Sequence[PartnerList], split: Split, folder: Path, config: Config
) -> party_model.CheckpointStore:
    """Return the primary's checkpoints; a checkpoint must match the configuration and the primary's data."""
    features = data.as_features(primary.features)
    arrays = [features.numbers, features.codes, primary.labels, split.train, split.validation]
    arrays += [] if primary.weights is None else [primary.weights]
    for partners in lists:  # one field is a matrix, as in checkpoints of version 0.1
        arrays += [partners.partner, partners.similarity.squeeze(2).cpu().numpy()]
    deciding = replace(config, device="any", save_every=1, save_steps=None)  # these change no weight
    job = {
        "party": primary.name,
        "config": party_model.describe(deciding),
        "lists": [[holder.name for holder in partners.holders] for partners in lists],
        "data": party_model.arrays_fingerprint(arrays),
    }
    return party_model.CheckpointStore(folder / primary.name, job)


# Secondaries in this process


def start_local_secondaries(
    secondaries: Sequence[SecondaryData], context: TrainingContext
) -> tuple[NeighbourList, ...]:
    """Return one list per secondary that has one, held by it and by those aligned with it."""
    leaders: list[str] = []
    for party in secondaries:
        if not party.aligned_with:
            if party.neighbours is None:
                message = f"{party.name} has no list of partners; give partner and similarity, or aligned_with"
                raise InputError(message, code="no-partner-list")
            leaders.append(party.name)
        elif party.aligned_with not in leaders:
            aligned = f"{party.name} is aligned with '{party.aligned_with}'"
            raise InputError(f"{aligned}, which is not an earlier secondary with a list", code="unknown-alignment")
    started = [(party.aligned_with or party.name, start_local_secondary(party, context)) for party in secondaries]
    return tuple(
        NeighbourList(party.neighbours, tuple(holder for leader, holder in started if leader == party.name))
        for party in secondaries
        if party.neighbours is not None and not party.aligned_with
    )


def start_local_secondary(party: SecondaryData, context: TrainingContext) -> secondary_model.LocalSecondary:
    """Return a secondary at step 0 of this job."""
    return secondary_model.start_secondary(
        party.name,
        data.as_features(party.features),
        context.config.secondary,
        total_steps=context.total_steps,
        device=context.device,
        folder=context.folder / party.name if context.folder else None,
    )
