"""The configuration of a training run and the built-in presets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedsim.registry import METHODS, PRESETS
from fedsim.splitnn.gates import AttentionMerge
from fedsim.splitnn.layers import Local
from fedsim.splitnn.methods import FedSim, Method
from fedsim.splitnn.party_model import Lamb, OptimiserConfig, check_learning_rate
from fedsim.splitnn.secondary_model import MODERN, PAPER, SecondaryConfig, secondary_network, with_learning_rate
from fedsim.training.labels import LabelScaler, MinMaxLabel, StandardLabel
from fedsim.validation import validate_integer

# Everything that decides a training run, in one frozen value


@dataclass(frozen=True)
class Config:
    """A job. ``patience`` is the number of epochs without a better one after which training ends; none: all epochs run.

    ``label`` scales numbers; classes need no scale. ``save_every`` counts epochs between checkpoints, ``save_steps``
    steps between those inside an epoch; none: there are none inside. ``device`` is ``cpu``, ``cuda`` or ``auto`` and
    changes nothing but speed and the last digits.
    """

    method: Method = field(default_factory=FedSim)
    local: Local = field(default_factory=Local)
    optimiser: OptimiserConfig = field(default_factory=Lamb)
    label: LabelScaler = field(default_factory=MinMaxLabel)
    epochs: int = 100
    batch: int = 128
    patience: int | None = None
    seed: int = 0
    save_every: int = 1
    save_steps: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "save_every", "save_steps"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, validate_integer(getattr(self, name), name, least=1))
        object.__setattr__(self, "seed", validate_integer(self.seed, "seed", least=0))
        check_learning_rate(self.optimiser.rate)

    @property
    def secondary(self) -> SecondaryConfig:
        """What the secondaries run."""
        local = secondary_network(METHODS.name_of(type(self.method)), self.local)
        return SecondaryConfig(local, self.optimiser, self.seed)

    def steps_per_epoch(self, n_records: int) -> int:
        """How many batches so many training records make; the last may be smaller.

        >>> Config(batch=128).steps_per_epoch(300)
        3
        """
        return -(-n_records // self.batch)


# Two presets: ``paper`` to reproduce, ``modern`` to use; ``splitnn.below`` has what they say below the cut


def paper_preset(method: Method | None = None, *, epochs: int = 100, batch: int = 128, seed: int = 0) -> Config:
    """The paper's network, LAMB and min-max label, with the sizes of ``hdb``."""
    return Config(
        method=method or FedSim(),
        local=PAPER.local,
        optimiser=PAPER.optimiser,
        label=MinMaxLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


def modern_preset(method: Method | None = None, *, epochs: int = 60, batch: int = 512, seed: int = 0) -> Config:
    """The product's default: encoded numbers, attention beside the convolution, AdamW with a cosine, linear output."""
    return Config(
        method=method or FedSim(hidden=128, outputs=16, similarity_bins=16, merge=AttentionMerge()),
        local=MODERN.local,
        optimiser=MODERN.optimiser,
        label=StandardLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


@dataclass(frozen=True)
class ConfigOverrides:
    """What the user sets otherwise than the preset; ``None`` leaves the preset's value."""

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = None


def build_config(preset: str, method: str | Method, overrides: ConfigOverrides, *, seed: int, device: str) -> Config:
    """Return the preset with this method and these overrides.

    >>> build_config("paper", "solo", ConfigOverrides(epochs=3), seed=0, device="cpu").epochs
    3
    """
    if isinstance(method, str):
        method_class = METHODS[method]
        chosen = None if method == "fedsim" else method_class()  # a preset brings its own FedSim
    else:
        chosen = method
    config: Config = PRESETS[preset].build(chosen)
    changes: dict[str, Any] = {
        "epochs": overrides.epochs,
        "batch": overrides.batch_size,
        "patience": overrides.patience,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    optimiser = with_learning_rate(config.optimiser, overrides.learning_rate)
    return replace(config, seed=seed, device=device, optimiser=optimiser, **changes)
