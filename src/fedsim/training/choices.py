"""Words of training jobs as objects: method, preset, and what deviates from the preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedsim.errors import SettingError, nearest_word
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
    changed = {
        "epochs": deviations.epochs,
        "batch": deviations.batch_size,
        "patience": deviations.patience,
        "optimiser": _optimiser(chosen, deviations.learning_rate),
    }
    kept = {name: value for name, value in changed.items() if value is not None}
    return replace(chosen, seed=seed, device=device, **kept)


def _optimiser(config: Config, rate: float | None) -> Any:
    return None if rate is None else replace(config.optimiser, rate=rate)  # type: ignore[type-var]


def _method(method: str | Method) -> Method:
    return one_of(METHODS, method, "method")() if isinstance(method, str) else method


def one_of(words: Mapping[str, Any], word: str, parameter: str) -> Any:
    """What a word stands for, or the nearest word that stands for something."""
    if word in words:
        return words[word]
    near = nearest_word(word, words)
    hint = f"did you mean '{near}'? " if near else ""
    raise SettingError(f"{parameter}='{word}' is unknown; {hint}choose from {', '.join(words)}")
