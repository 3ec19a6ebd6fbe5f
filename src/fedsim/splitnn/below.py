"""A secondary from the words of a job: the local network, the optimiser and the chance of a party below the cut.

This is all that a secondary's own process needs; nothing here imports what is above the cut. There every secondary runs
a local network: ``Bare``, which sends the features themselves, is for simulations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import SettingError, nearest_word
from fedsim.splitnn.adamw import AdamW
from fedsim.splitnn.chance import CPU, Chance
from fedsim.splitnn.clip import Clipped
from fedsim.splitnn.description import describe, fingerprint
from fedsim.splitnn.encodings import Piecewise
from fedsim.splitnn.features import Features
from fedsim.splitnn.lamb import Lamb
from fedsim.splitnn.local import Bare, BareColumns, Local, LocalNetwork
from fedsim.splitnn.optimiser import Optimiser, check_rate
from fedsim.splitnn.part import Part
from fedsim.splitnn.schedule import WarmCosine
from fedsim.splitnn.secondary import LocalSecondary
from fedsim.splitnn.shelf import Shelf

LOCALS = {
    "modern": Local(encoding=Piecewise(), hidden=(256,), cut=128, dropout=0.1),
    "paper": Local(hidden=(200,), cut=100),
}
OPTIMISERS: dict[str, Optimiser] = {
    "modern": AdamW(rate=2e-3, decay=1e-2, schedule=WarmCosine()),
    "paper": Lamb(rate=1e-3, decay=1e-4),
}


@dataclass(frozen=True)
class Below:
    """What a job says to all its secondaries alike: what they run, how they learn, the seed of their chance."""

    local: Local | Bare
    optimiser: Optimiser
    seed: int
    clip: float | None = None  # the longest a row of the cut layer may be

    def __post_init__(self) -> None:
        check_rate(self.optimiser.rate)


def below_named(preset: str, *, seed: int, learning_rate: float | None = None, clip: float | None = None) -> Below:
    """What a preset says below the cut; ``None`` leaves its learning rate.

    >>> below_named("paper", seed=0, learning_rate=0.01).optimiser.rate
    0.01
    """
    return Below(one_of(LOCALS, preset, "preset"), at_rate(OPTIMISERS[preset], learning_rate), seed, clip)


def at_rate(optimiser: Optimiser, rate: float | None) -> Optimiser:
    """The same optimiser with another learning rate, where one is given."""
    return optimiser if rate is None else replace(optimiser, rate=rate)  # type: ignore[type-var]


def start_secondary(
    name: str,
    features: Features,
    below: Below,
    *,
    total_steps: int,
    device: torch.device = CPU,
    folder: Path | None = None,
) -> LocalSecondary:
    """A secondary at step 0; with a folder it keeps checkpoints there.

    It learns its encoding from all its rows, none of which is a test row.
    """
    party = _unlearnt(name, features, below, device)
    party.shelf = _shelf(name, features, below, folder) if folder else None
    party.begin(total_steps)
    return party


def restored_secondary(
    name: str, features: Features, below: Below, weights: Mapping[str, Tensor], *, device: torch.device = CPU
) -> LocalSecondary:
    """A secondary that has learnt these weights, ready to infer."""
    party = _unlearnt(name, features, below, device)
    party.part.fill(weights)
    return party


def one_of(words: Mapping[str, Any], word: str, parameter: str) -> Any:
    """What a word stands for, or the nearest word that stands for something."""
    if word in words:
        return words[word]
    near = nearest_word(word, words)
    hint = f"did you mean '{near}'? " if near else ""
    raise SettingError(f"{parameter}='{word}' is unknown; {hint}choose from {', '.join(words)}")


def _unlearnt(name: str, features: Features, below: Below, device: torch.device) -> LocalSecondary:
    features.check(name)
    network: LocalNetwork | BareColumns | Clipped = below.local.build(features)
    if below.clip is not None:
        network = Clipped(network, below.clip)
    part = Part(network, below.optimiser, Chance(below.seed, name), device)
    return LocalSecondary(name, network.width, part, features.on(device))


def _shelf(name: str, features: Features, below: Below, folder: Path) -> Shelf:
    job = {
        "party": name,
        "seed": below.seed,
        "local": describe(below.local),
        "optimiser": describe(below.optimiser),
        "data": fingerprint([features.numbers, features.codes]),
    }
    if below.clip is not None:
        job["clip"] = below.clip
    return Shelf(folder, job)  # the number of steps joins when an attempt begins
