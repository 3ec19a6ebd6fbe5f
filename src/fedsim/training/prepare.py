"""From arrays to a job: parties with their networks and features on the device, lists in the method's order.

Letters: n records, K partners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.errors import InputError
from fedsim.splitnn.chance import Chance
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.links import BranchShape
from fedsim.splitnn.method import Blueprint, Partners
from fedsim.splitnn.part import Part, start_part
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.splitnn.shelf import Shelf
from fedsim.splitnn.tasks import Task
from fedsim.training.checks import check_names, check_primary, check_secondaries
from fedsim.training.config import Config, describe, fingerprint
from fedsim.training.data import Goal, PrimaryData, SecondaryData, as_features
from fedsim.training.device import device_named
from fedsim.training.exchange import PartnerList
from fedsim.training.labels import Classes, Target
from fedsim.types import Split

Holders = tuple[LocalSecondary, ...]
RECORDS_FOR_QUANTILES = 20_000


@dataclass(frozen=True, eq=False)
class Setting:
    """What every party is built from."""

    config: Config
    device: torch.device
    total_steps: int
    folder: Path | None

    def shelf(self, party: str, job: dict[str, Any]) -> Shelf | None:
        """The party's own folder of checkpoints."""
        return Shelf(self.folder / party, job) if self.folder else None

    def part(self, network: torch.nn.Module, party: str) -> Part:
        """A party's network with weights drawn and optimiser started."""
        chance = Chance(self.config.seed, party)
        return start_part(network, self.config.optimiser, chance, total_steps=self.total_steps, device=self.device)


def setting_of(config: Config, split: Split, folder: Path | None) -> Setting:
    """Device and number of steps of a job."""
    steps_per_epoch = -(-len(split.train) // config.batch)
    return Setting(config, device_named(config.device), config.epochs * steps_per_epoch, folder)


def taking_part(
    primary: PrimaryData, secondaries: Sequence[SecondaryData], split: Split, config: Config
) -> tuple[SecondaryData, ...]:
    """The secondaries this method uses, after all have been checked."""
    check_names([primary.name, *(secondary.name for secondary in secondaries)])
    check_primary(primary, split)
    if config.method.partners is Partners.NONE:
        return ()
    if not secondaries:
        raise InputError(f"{type(config.method).__name__} learns from linked records; give at least one secondary")
    check_secondaries(secondaries, len(primary.labels), config.method.partners)
    return tuple(secondaries)


def target_of(primary: PrimaryData, split: Split, config: Config) -> Target:
    """Labels scaled by their training rows, or the classes there are."""
    if primary.goal is Goal.CLASSES:
        return Classes(tuple(np.unique(primary.labels.astype(np.int64)).tolist()))
    return config.label.fit(primary.labels[split.train].astype(np.float64))


def start_secondary(data: SecondaryData, setting: Setting) -> LocalSecondary:
    """A secondary in this process; it learns its encoding from all its rows, none of which is a test row."""
    features, config = as_features(data.features), setting.config
    below = config.method.below(config.local)
    network = below.build(features)
    job = {
        "party": data.name,
        "seed": config.seed,
        "steps": setting.total_steps,
        "local": describe(below),
        "optimiser": describe(config.optimiser),
        "data": fingerprint([features.numbers, features.codes]),
    }
    part, resident = setting.part(network, data.name), features.on(setting.device)
    return LocalSecondary(data.name, network.width, part, resident, setting.shelf(data.name, job))


def grouped(secondaries: Sequence[SecondaryData], started: Sequence[LocalSecondary]) -> tuple[Holders, ...]:
    """Secondaries by list: each that brings one, with those aligned to it."""
    leaders = [data.aligned_with or data.name for data in secondaries]
    return tuple(
        tuple(party for party, leader in zip(started, leaders, strict=True) if leader == name)
        for name in dict.fromkeys(leaders)
    )


def arranged(secondaries: Sequence[SecondaryData], name: str, config: Config) -> list[Neighbours]:
    """All lists in the method's order."""
    rng = Chance(config.seed, name).rng("order")
    lists = [data.neighbours for data in secondaries]
    return [config.method.arrange(neighbours, rng) for neighbours in lists if neighbours is not None]


def shapes(lists: Sequence[PartnerList], split: Split) -> tuple[BranchShape, ...]:
    """What the network above the cut must know of every list; quantiles need no more than some thousand records."""
    rows = torch.from_numpy(split.train[:: 1 + len(split.train) // RECORDS_FOR_QUANTILES])
    return tuple(
        BranchShape(
            partners=partners.partner.shape[1],
            widths=tuple(holder.width for holder in partners.holders),
            similarity=partners.similarity[rows].cpu().numpy(),
        )
        for partners in lists
    )


def start_primary(
    primary: PrimaryData, split: Split, branches: tuple[BranchShape, ...], task: Task, setting: Setting
) -> Part:
    """The primary's network above and below the cut."""
    features, config = as_features(primary.features), setting.config
    plan = Blueprint(features.take(split.train), config.local, branches, task)
    return setting.part(config.method.build(plan), primary.name)


def primary_shelf(primary: PrimaryData, lists: Sequence[PartnerList], split: Split, setting: Setting) -> Shelf | None:
    """The primary's folder of checkpoints; its job is the whole configuration and its own data."""
    features = as_features(primary.features)
    arrays = [features.numbers, features.codes, primary.labels, split.train, split.validation]
    arrays += [array for partners in lists for array in (partners.partner, partners.similarity.cpu().numpy())]
    job = {
        "party": primary.name,
        "config": describe(replace(setting.config, device="any", save_every=1)),
        "lists": [[holder.name for holder in partners.holders] for partners in lists],
        "data": fingerprint(arrays),
    }
    return setting.shelf(primary.name, job)
