"""From arrays and holders to a job: the primary's network and features on the device, lists in the method's order.

Letters: n records, K partners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedsim.errors import InputError
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.description import describe, fingerprint
from fedsim.splitnn.device import device_named
from fedsim.splitnn.features import Features
from fedsim.splitnn.links import BranchShape
from fedsim.splitnn.method import Blueprint, Partners
from fedsim.splitnn.part import Part
from fedsim.splitnn.shelf import Shelf
from fedsim.splitnn.tasks import Task
from fedsim.training.checkpoint import Checkpoints
from fedsim.training.checks import check_lists, check_names, check_primary
from fedsim.training.config import Config
from fedsim.training.data import Goal, HeldList, PrimaryData, as_features
from fedsim.training.exchange import PartnerList, Rows, arranged
from fedsim.training.history import Journal
from fedsim.training.hooks import Hook
from fedsim.training.labels import Classes, Target
from fedsim.training.loop import Job
from fedsim.training.primary import Primary, Records
from fedsim.types import Split

RECORDS_FOR_QUANTILES = 20_000


@dataclass(frozen=True, eq=False)
class Setting:
    """Where and how long a job runs."""

    config: Config
    device: torch.device
    total_steps: int
    folder: Path | None


def setting_of(config: Config, split: Split, folder: Path | str | None) -> Setting:
    """Device and number of steps of a job."""
    steps = config.epochs * config.steps_per_epoch(split.train.size)
    return Setting(config, device_named(config.device), steps, None if folder is None else Path(folder))


def taking_part(primary: PrimaryData, lists: Sequence[HeldList], split: Split, config: Config) -> tuple[HeldList, ...]:
    """The lists this method uses, after all that is known before an attempt begins has been checked."""
    check_names([primary.name, *(holder.name for held in lists for holder in held.holders)])
    check_primary(primary, split)
    if config.method.partners is Partners.NONE:
        return ()
    if not lists:
        raise InputError(f"{type(config.method).__name__} learns from linked records; give at least one secondary")
    return tuple(lists)


def prepared(
    primary: PrimaryData, lists: Sequence[HeldList], split: Split, setting: Setting, hooks: Sequence[Hook] = ()
) -> Job:
    """A job at step 0 for holders that have begun; the primary's part is built anew."""
    check_lists(lists, len(primary.labels), setting.config.method.partners)
    config, features = setting.config, as_features(primary.features)
    resident = arranged(lists, config.method, Chance(config.seed, primary.name).rng("order"), setting.device)
    target = target_of(primary, split, config)
    part = unlearnt(features.take(split.train), shapes(resident, split.train), target.task, config, primary.name)
    part.start(setting.total_steps)
    holders = [holder for held in lists for holder in held.holders]
    shelf = _shelf(primary, resident, split, setting)
    return Job(
        config=config,
        target=target,
        split=split,
        labels=primary.labels,
        records=Records(features.on(setting.device), resident),
        primary=Primary(part, target.task),
        secondaries=holders,
        checkpoints=Checkpoints(shelf, part, holders) if shelf else None,
        journal=Journal(setting.folder / "log.jsonl") if setting.folder else None,
        hooks=hooks,
    )


def target_of(primary: PrimaryData, split: Split, config: Config) -> Target:
    """Labels scaled by their training rows, or the classes there are."""
    if primary.goal is Goal.CLASSES:
        return Classes(tuple(np.unique(primary.labels.astype(np.int64)).tolist()))
    return config.label.fit(primary.labels[split.train].astype(np.float64))


def shapes(lists: Sequence[PartnerList], rows: Rows) -> tuple[BranchShape, ...]:
    """What the network above the cut must know of every list; quantiles need no more than some thousand records."""
    some = torch.from_numpy(rows[:: 1 + len(rows) // RECORDS_FOR_QUANTILES])
    return tuple(
        BranchShape(
            partners=partners.partner.shape[1],
            widths=tuple(holder.width for holder in partners.holders),
            similarity=partners.similarity[some].cpu().numpy(),
        )
        for partners in lists
    )


def unlearnt(features: Features, branches: tuple[BranchShape, ...], task: Task, config: Config, name: str) -> Part:
    """The primary's network above and below the cut, for these training rows; its weights are not drawn yet."""
    network = config.method.build(Blueprint(features, config.local, branches, task))
    return Part(network, config.optimiser, Chance(config.seed, name), device_named(config.device))


def _shelf(primary: PrimaryData, lists: Sequence[PartnerList], split: Split, setting: Setting) -> Shelf | None:
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
        "data": fingerprint(arrays),
    }
    return Shelf(setting.folder / primary.name, job)
