"""A secondary below the cut: the interface that the primary uses, and its implementation in this process.

Nothing here imports what is above the cut, because a secondary's own process runs this module.

Letters: U distinct rows, C width of the cut layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedsim.errors import SettingError
from fedsim.registry import METHODS, PRESETS
from fedsim.splitnn.checkpoint_store import CheckpointStore, arrays_fingerprint, describe
from fedsim.splitnn.layers import (
    Bare,
    ClippedNetwork,
    Features,
    FeatureTensors,
    Local,
    LocalNetwork,
    Piecewise,
    RawFeatureNetwork,
)
from fedsim.splitnn.party_model import (
    CPU,
    AdamW,
    Lamb,
    OptimiserConfig,
    PartyModel,
    RandomSource,
    WarmCosine,
    check_learning_rate,
)


class Secondary(Protocol):
    """A party below the cut, as the primary sees it."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int:
        """C; a party elsewhere may tell it, and its number of records, no sooner than in ``begin``."""

    @property
    def n_records(self) -> int: ...

    def begin(self, total_steps: int) -> None:
        """Start anew with drawn weights, whatever an earlier attempt left; ``restore`` or step 0 comes next."""

    def ask(self, rows: Tensor, step: int | None) -> None:
        """These rows are fetched next, for this training step or (none) by ``infer``: who is elsewhere begins now."""

    def activations(self, rows: Tensor, step: int) -> Tensor:
        """Cut layer of these distinct rows, (U,) -> (U, C), for training step ``step``."""

    def descend(self, gradients: Tensor, step: int) -> None:
        """Gradients (U, C) of the activations given last; the secondary finishes the step by itself."""

    def infer(self, rows: Tensor) -> Tensor:
        """Cut layer of these distinct rows with nothing dropped and nothing remembered."""

    def keep_best(self) -> None:
        """Remember the weights as they are: this epoch is the best so far."""

    def use_best(self) -> None:
        """Go back to the weights remembered last."""

    def save(self, step: int) -> None:
        """Write a checkpoint of the state after ``step`` steps; it is on the disk when this returns."""

    def restore(self, step: int) -> None:
        """Go back to the checkpoint of ``step``; raises DamagedCheckpoint where it cannot be read."""

    def forget_before(self, step: int) -> None:
        """Checkpoints older than this are no longer needed by anyone."""


# A secondary party in this process: its features, its local network, its optimiser
#
# Letters: U distinct rows, C width of the cut layer.


INFERENCE_ROWS = 65536  # of inference


@dataclass(eq=False)
class LocalSecondary:
    """Implements :class:`fedsim.splitnn.secondary_model.Secondary`; without a shelf it keeps no checkpoints."""

    name: str
    width: int
    part: PartyModel
    features: FeatureTensors
    checkpoint_store: CheckpointStore | None = None
    _pending: tuple[int, Tensor] | None = field(default=None, init=False)

    @property
    def n_records(self) -> int:
        return len(self.features)

    @property
    def pending_shape(self) -> tuple[int, ...] | None:
        """Shape (U, C) of the activations that wait for their gradients, if any do."""
        return None if self._pending is None else tuple(self._pending[1].shape)

    def begin(self, total_steps: int) -> None:
        self.part.start(total_steps)
        self._pending = None
        if self.checkpoint_store:
            self.checkpoint_store = replace(
                self.checkpoint_store, job={**self.checkpoint_store.job, "steps": total_steps}
            )

    def ask(self, rows: Tensor, step: int | None) -> None:
        """Nothing to do: whoever asks waits in this very process."""

    def activations(self, rows: Tensor, step: int) -> Tensor:
        self.part.begin(step)
        outputs: Tensor = self.part.network(self.features.take(rows), self.part.dropout)  # (U, C)
        self._pending = step, outputs
        return outputs.detach()

    def descend(self, gradients: Tensor, step: int) -> None:
        asked, outputs = self._pending or (None, gradients)
        if asked != step:
            raise SettingError(
                f"{self.name} was given gradients of step {step}, but its activations are of step {asked}; "
                "ask for activations first"
            )
        self._pending = None
        if outputs.requires_grad:
            outputs.backward(gradients)
        self.part.descend()

    @torch.no_grad()
    def infer(self, rows: Tensor) -> Tensor:
        pieces = [self.part.network(self.features.take(piece)) for piece in rows.split(INFERENCE_ROWS)]
        return torch.cat(pieces) if pieces else torch.empty(0, self.width)

    def keep_best(self) -> None:
        self.part.keep_best()

    def use_best(self) -> None:
        self.part.use_best()

    def save(self, step: int) -> None:
        self._kept().save(step, self.part.tensors(), {})

    def restore(self, step: int) -> None:
        self.part.load(self._kept().load(step)[0])

    def forget_before(self, step: int) -> None:
        self._kept().forget_before(step)

    def _kept(self) -> CheckpointStore:
        if self.checkpoint_store is None:
            raise SettingError(f"{self.name} keeps no checkpoints; give it a folder, or train without one")
        return self.checkpoint_store


# A secondary from the words of a job: the local network, the optimiser and the chance of a party below the cut
#
# This is all that a secondary's own process needs; nothing here imports what is above the cut. There every secondary
# runs a local network: ``Bare``, which sends the features themselves, is for simulations.


@dataclass(frozen=True)
class Preset:
    """Settings under one name for all parties.

    A secondary needs ``local`` and ``optimiser`` alone. ``config`` is a function from a method (or None, for the
    preset's own) to the primary's configuration, or ``"module:function"``: it is imported at the primary only, because
    it lies above the cut.
    """

    local: Local
    optimiser: OptimiserConfig
    config: Any

    def build(self, method: Any = None) -> Any:
        """Return the :class:`fedsim.training.Config` of this preset with a method, or with the preset's own."""
        if not isinstance(self.config, str):
            return self.config(method)
        module, _, function = self.config.partition(":")
        return getattr(import_module(module), function)(method)


MODERN = Preset(
    Local(encoding=Piecewise(), hidden=(256,), cut=128, dropout=0.1),
    AdamW(rate=2e-3, decay=1e-2, schedule=WarmCosine()),
    "fedsim.training.config:modern_preset",
)
PAPER = Preset(Local(hidden=(200,), cut=100), Lamb(rate=1e-3, decay=1e-4), "fedsim.training.config:paper_preset")


@dataclass(frozen=True)
class SecondaryConfig:
    """What a job says to all its secondaries alike: what they run, how they learn, the seed of their chance."""

    local: Local | Bare
    optimiser: OptimiserConfig
    seed: int
    clip: float | None = None  # the longest a row of the cut layer may be

    def __post_init__(self) -> None:
        check_learning_rate(self.optimiser.rate)


def secondary_config(
    preset: str, method: str, *, seed: int, learning_rate: float | None = None, clip: float | None = None
) -> SecondaryConfig:
    """Return what secondaries run under a preset and a method; ``None`` keeps the preset's learning rate.

    >>> secondary_config("paper", "fedsim", seed=0, learning_rate=0.01).optimiser.rate
    0.01
    """
    chosen: Preset = PRESETS[preset]
    optimiser = with_learning_rate(chosen.optimiser, learning_rate)
    return SecondaryConfig(secondary_network(method, chosen.local), optimiser, seed, clip)


def secondary_network(method: str | None, local: Local) -> Local | Bare:
    """Return what secondaries run for a registered method: the preset's local network unless the method changes it.

    The registration says so, not the method's class, because a secondary cannot import that: it lies above the cut.
    """
    change = None if method is None else METHODS.detail(method, "secondary_network")
    return local if change is None else change(local)


def with_learning_rate(optimiser: OptimiserConfig, rate: float | None) -> OptimiserConfig:
    """The same optimiser with another learning rate, where one is given."""
    return optimiser if rate is None else replace(optimiser, rate=rate)  # type: ignore[type-var]


def start_secondary(
    name: str,
    features: Features,
    below: SecondaryConfig,
    *,
    total_steps: int,
    device: torch.device = CPU,
    folder: Path | None = None,
) -> LocalSecondary:
    """A secondary at step 0; with a folder it keeps checkpoints there.

    It learns its encoding from all its rows, none of which is a test row.
    """
    party = _build_secondary(name, features, below, device)
    party.checkpoint_store = _checkpoint_store(name, features, below, folder) if folder else None
    party.begin(total_steps)
    return party


def restore_secondary(
    name: str, features: Features, below: SecondaryConfig, weights: Mapping[str, Tensor], *, device: torch.device = CPU
) -> LocalSecondary:
    """A secondary that has learnt these weights, ready to infer."""
    party = _build_secondary(name, features, below, device)
    party.part.fill(weights)
    return party


def _build_secondary(name: str, features: Features, below: SecondaryConfig, device: torch.device) -> LocalSecondary:
    features.check(name)
    network: LocalNetwork | RawFeatureNetwork | ClippedNetwork = below.local.build(features)
    if below.clip is not None:
        network = ClippedNetwork(network, below.clip)
    part = PartyModel(network, below.optimiser, RandomSource(below.seed, name), device)
    return LocalSecondary(name, network.width, part, features.on(device))


def _checkpoint_store(name: str, features: Features, below: SecondaryConfig, folder: Path) -> CheckpointStore:
    job = {
        "party": name,
        "seed": below.seed,
        "local": describe(below.local),
        "optimiser": describe(below.optimiser),
        "data": arrays_fingerprint([features.numbers, features.codes]),
    }
    if below.clip is not None:
        job["clip"] = below.clip
    return CheckpointStore(folder, job)  # the number of steps joins when an attempt begins
