"""What of a comparison fits into a time budget: records, members of the networks, epochs and seeds (``fedsim try``).

The cost model of ``fedsim check`` gives the ratios between plans; one short training measures how fast this machine is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedsim.contribution.ladder import (
    FEDSIM_SHUFFLED,
    FEDSIM_WITH_IDENTIFIERS,
    RUNGS,
    SOLO,
    SOLO_WITH_IDENTIFIERS,
    STACKED_SHUFFLED,
    TREES_WITH_IDENTIFIERS,
)
from fedsim.contribution.rungs import BOOSTED_TREES, STACKED, Rung, SplitArrays, run_training
from fedsim.hyperparameters import TrainingSettings
from fedsim.preflight.estimate import TRAIN_SHARE, Workload, compute_seconds
from fedsim.types import training_length

# Without the partner, with fake links and with the partner, each as a network and with trees. The placebo comes on top.
TRIAL_RUNGS = tuple(
    rung
    for rung in RUNGS
    if rung.key
    in (
        *(SOLO, SOLO_WITH_IDENTIFIERS, BOOSTED_TREES, TREES_WITH_IDENTIFIERS),
        *(FEDSIM_WITH_IDENTIFIERS, FEDSIM_SHUFFLED, STACKED, STACKED_SHUFFLED),
    )
)
LARGE_NETWORKS, SMALL_NETWORKS, SMALL_COST = 3, 2, 0.2  # cost of a network without partners, relative to one with them
USUAL_SHARE = 0.6  # of the epochs, before the patience is over
MANY_SEEDS, MIN_EPOCHS, MIN_RECORDS = 3, 12, 500
PILOT_RECORDS, PILOT_EPOCHS = 1_000, 2


@dataclass(frozen=True)
class TrialPlan:
    """How much is trained: records of the primary, members of every network, epochs at most, patience and seeds."""

    records: int
    members: int
    epochs: int
    patience: int
    seeds: int = 1

    def __str__(self) -> str:
        seeds = "1 split" if self.seeds == 1 else f"{self.seeds} splits"
        return f"{self.records:,} records, {seeds}, at most {self.epochs} epochs, {self.members} members per network"

    def reductions(self, full: TrialPlan) -> list[str]:
        """Return what is less than in a job.

        >>> TrialPlan(500, 2, 40, 8).reductions(TrialPlan(2000, 8, 40, 8))
        ['500 of 2,000 records', '2 of 8 members per network']
        """
        pairs = {"records": "records", "epochs": "epochs", "members": "members per network"}
        sizes = {text: (getattr(self, name), getattr(full, name)) for name, text in pairs.items()}
        return [f"{here:,} of {most:,} {text}" for text, (here, most) in sizes.items() if here < most]

    def settings(self, training: TrainingSettings) -> TrainingSettings:
        """Return the settings of a job's training, reduced to this plan."""
        batch = min(_batch(self), training.batch_size or _batch(self))
        return replace(training, epochs=self.epochs, patience=self.patience, members=self.members, batch_size=batch)


def sample_split(arrays: SplitArrays, records: int, rng: np.random.Generator) -> SplitArrays:
    """Return a case with that many records, in the same shares of training, validation and test."""
    parts = {name: getattr(arrays.split, name) for name in ("train", "validation", "test")}
    share = records / max(1, sum(map(len, parts.values())))
    if share >= 1:
        return arrays
    chosen = {name: np.sort(rng.permutation(rows)[: max(1, round(share * len(rows)))]) for name, rows in parts.items()}
    return replace(arrays, split=replace(arrays.split, **chosen))


def full_plan(work: Workload, patience: int | None) -> TrialPlan:
    """Return the plan that leaves nothing out."""
    return TrialPlan(work.records, work.members, work.epochs, patience or work.epochs)


def plan_seconds(work: Workload, plan: TrialPlan, speed: float = 1.0) -> float:
    """Return how long the networks of a plan train; ``speed`` is the time relative to the cost model."""
    one = compute_seconds(_workload(work, plan))
    networks = LARGE_NETWORKS + SMALL_NETWORKS * SMALL_COST
    return speed * USUAL_SHARE * networks * plan.seeds * one


def choose_plan(work: Workload, full: TrialPlan, seconds: float, speed: float) -> TrialPlan:
    """Return the first plan that fits into the time; the smallest one if none does."""
    plan = full
    for plan in _plans(full):
        if plan_seconds(work, plan, speed) <= seconds:
            break
    return plan


def _plans(full: TrialPlan) -> Iterator[TrialPlan]:
    """Yield plans from the most to the least thorough: members are left out first, then epochs and records in turn."""
    yield replace(full, seeds=MANY_SEEDS)
    yield full
    plan = full
    for members in (4, 2):
        if members < plan.members:
            plan = replace(plan, members=members)
            yield plan
    while plan.epochs > MIN_EPOCHS or plan.records > MIN_RECORDS:
        epochs = max(min(plan.epochs, MIN_EPOCHS), plan.epochs // 2)
        plan = replace(plan, epochs=epochs, patience=min(plan.patience, max(2, epochs // 4)))
        yield plan
        plan = replace(plan, records=max(min(plan.records, MIN_RECORDS), plan.records // 2))
        yield plan


def measure_speed(work: Workload, rung: Rung, arrays: SplitArrays) -> float:
    """Return how long this machine takes for an epoch, relative to the cost model."""
    plan = TrialPlan(min(work.records, PILOT_RECORDS), work.members, PILOT_EPOCHS, PILOT_EPOCHS)
    sample = sample_split(arrays, plan.records, np.random.default_rng(0))
    pilot = replace(rung, epochs=PILOT_EPOCHS, patience=PILOT_EPOCHS, batch_size=_batch(plan))
    seconds = float(run_training(pilot, sample).figures["epoch_seconds"])
    return seconds / compute_seconds(replace(_workload(work, plan), epochs=1))


def _workload(work: Workload, plan: TrialPlan) -> Workload:
    lists = tuple(replace(each, records=plan.records) for each in work.lists)
    return replace(work, lists=lists, members=plan.members, epochs=plan.epochs, batch=min(work.batch, _batch(plan)))


def _batch(plan: TrialPlan) -> int:
    return training_length(round(TRAIN_SHARE * plan.records)).batch
