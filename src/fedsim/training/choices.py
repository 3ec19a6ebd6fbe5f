"""Words of training jobs as objects: method, preset, and what deviates from the preset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedsim.splitnn.below import at_rate, one_of
from fedsim.splitnn.method import Method
from fedsim.splitnn.methods import AvgSim, Combine, Exact, FeatureSim, FedSim, Solo, Top1Sim
from fedsim.training.config import Config
from fedsim.training.presets import modern, paper

PRESETS: dict[str, Callable[..., Config]] = {"modern": modern, "paper": paper}
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
class Deviations:
    """What the user sets otherwise than the preset; ``None`` leaves the preset's value."""

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    patience: int | None = None


def config_for(preset: str, method: str | Method, deviations: Deviations, *, seed: int, device: str) -> Config:
    """The preset with this method and these deviations.

    >>> config_for("paper", "solo", Deviations(epochs=3), seed=0, device="cpu").epochs
    3
    """
    start = one_of(PRESETS, preset, "preset")
    chosen: Config = start(None if method == "fedsim" else _method(method))  # a preset brings its own FedSim
    changed: dict[str, Any] = {
        "epochs": deviations.epochs,
        "batch": deviations.batch_size,
        "patience": deviations.patience,
    }
    kept = {name: value for name, value in changed.items() if value is not None}
    optimiser = at_rate(chosen.optimiser, deviations.learning_rate)
    return replace(chosen, seed=seed, device=device, optimiser=optimiser, **kept)


def _method(method: str | Method) -> Method:
    chosen: Method = one_of(METHODS, method, "method")() if isinstance(method, str) else method
    return chosen
