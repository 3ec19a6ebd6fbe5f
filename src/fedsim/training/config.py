"""The configuration of a training run, its presets, and the registries of methods and presets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fedsim.splitnn.gates import AttentionMerge
from fedsim.splitnn.layers import Local
from fedsim.splitnn.methods import AvgSim, Combine, Exact, FeatureSim, FedSim, Method, Solo, Top1Sim
from fedsim.splitnn.optimisers import Lamb, OptimiserConfig, check_learning_rate
from fedsim.splitnn.secondary_model import LOCAL_NETWORKS, OPTIMISERS, SecondaryConfig, look_up, with_learning_rate
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
    def below(self) -> SecondaryConfig:
        """What the secondaries are told."""
        return SecondaryConfig(self.method.below(self.local), self.optimiser, self.seed)

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
        local=LOCAL_NETWORKS["paper"],
        optimiser=OPTIMISERS["paper"],
        label=MinMaxLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


def modern_preset(method: Method | None = None, *, epochs: int = 60, batch: int = 512, seed: int = 0) -> Config:
    """The product's default: encoded numbers, attention beside the convolution, AdamW with a cosine, linear output."""
    return Config(
        method=method or FedSim(hidden=128, outputs=16, similarity_bins=16, merge=AttentionMerge()),
        local=LOCAL_NETWORKS["modern"],
        optimiser=OPTIMISERS["modern"],
        label=StandardLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


# Words of training jobs as objects: method, preset, and what deviates from the preset


PRESETS: dict[str, Callable[..., Config]] = {"modern": modern_preset, "paper": paper_preset}
METHODS: dict[str, Callable[[], Method]] = {
    "fedsim": FedSim,
    "avgsim": AvgSim,
    "featuresim": FeatureSim,
    "top1sim": Top1Sim,
    "exact": Exact,
    "solo": Solo,
    "combine": Combine,
}


@dataclass(frozen=True)
class ConfigOverrides:
    """What the user sets otherwise than the preset; ``None`` leaves the preset's value."""

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = None


def build_config(preset: str, method: str | Method, deviations: ConfigOverrides, *, seed: int, device: str) -> Config:
    """The preset with this method and these deviations.

    >>> build_config("paper", "solo", ConfigOverrides(epochs=3), seed=0, device="cpu").epochs
    3
    """
    start = look_up(PRESETS, preset, "preset")
    chosen: Config = start(None if method == "fedsim" else _resolve_method(method))  # a preset brings its own FedSim
    changed: dict[str, Any] = {
        "epochs": deviations.epochs,
        "batch": deviations.batch_size,
        "patience": deviations.patience,
    }
    kept = {name: value for name, value in changed.items() if value is not None}
    optimiser = with_learning_rate(chosen.optimiser, deviations.learning_rate)
    return replace(chosen, seed=seed, device=device, optimiser=optimiser, **kept)


def _resolve_method(method: str | Method) -> Method:
    chosen: Method = look_up(METHODS, method, "method")() if isinstance(method, str) else method
    return chosen
