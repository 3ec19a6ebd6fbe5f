"""Words of experiments become methods and configurations here; needs torch and numpy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedsim.errors import SettingError, nearest_word
from fedsim.experiment.rung import Rung
from fedsim.splitnn.below import at_rate
from fedsim.splitnn.gates.merge import PerceptronMerge
from fedsim.splitnn.gates.order import Shuffled
from fedsim.splitnn.gates.weight import SimilarityAsWeight
from fedsim.splitnn.method import Method
from fedsim.splitnn.methods import FedSim
from fedsim.training import Config
from fedsim.training.choices import METHODS, PRESETS, Deviations, config_for
from fedsim.training.paper_sizes import PAPER_DATA
from fedsim.whole import whole_number

TREES = "trees"
PAPER = "paper:"  # with the sizes of that data set, such as paper:house
WITHOUT: dict[str, Callable[[FedSim], FedSim]] = {
    "fedsim-without-weight": lambda fedsim: replace(fedsim, weight=SimilarityAsWeight()),
    "fedsim-without-sort": lambda fedsim: replace(fedsim, order=Shuffled()),
    "fedsim-without-cnn": lambda fedsim: replace(fedsim, merge=PerceptronMerge()),
}


def check_rung(rung: Rung) -> None:
    """Refuse words that stand for nothing."""
    _known(rung.method, [TREES, *METHODS, *WITHOUT], "method")
    _known(rung.preset, [*PRESETS, *(PAPER + name for name in PAPER_DATA)], "preset")


def config_of(rung: Rung, seed: int, device: str = "auto") -> Config:
    """The rung's preset with its method and settings put in.

    >>> config_of(Rung("x", "X", "fedsim-without-sort", preset="paper:game"), seed=0).batch
    32
    """
    check_rung(rung)
    return _reshaped(_learning(rung, seed, device), rung)


def _learning(rung: Rung, seed: int, device: str) -> Config:
    deviations = Deviations(rung.epochs, rung.batch, rung.rate, rung.patience)
    if rung.preset.startswith(PAPER):
        return _deviating(_sized(rung), deviations, seed, device)
    method: str | Method = rung.method
    if rung.method in WITHOUT:
        method = WITHOUT[rung.method](_fedsim_of(PRESETS[rung.preset]()))
    return config_for(rung.preset, method, deviations, seed=seed, device=device)


def _sized(rung: Rung) -> Config:
    """The paper's configuration for a data set; other methods take its local networks and optimiser."""
    config = PAPER_DATA[rung.preset.removeprefix(PAPER)].config
    if rung.method == "fedsim":
        return config
    if rung.method in WITHOUT:
        return replace(config, method=WITHOUT[rung.method](_fedsim_of(config)))
    return replace(config, method=METHODS[rung.method]())


def _deviating(config: Config, wanted: Deviations, seed: int, device: str) -> Config:
    changed = {"epochs": wanted.epochs, "batch": wanted.batch_size, "patience": wanted.patience}
    kept: dict[str, Any] = {name: value for name, value in changed.items() if value is not None}
    optimiser = at_rate(config.optimiser, wanted.learning_rate)
    return replace(config, seed=seed, device=device, optimiser=optimiser, **kept)


def _reshaped(config: Config, rung: Rung) -> Config:
    """With the rung's width of the local networks and its weight decay."""
    if rung.hidden is not None:
        width = whole_number(rung.hidden, "hidden", least=1)
        config = replace(config, local=replace(config.local, hidden=(width,)))
    if rung.decay is not None:
        if not 0 <= rung.decay < 1:
            raise SettingError(f"decay={rung.decay} is no weight decay; choose one from 0 to below 1, such as 1e-4")
        config = replace(config, optimiser=replace(config.optimiser, decay=rung.decay))  # type: ignore[type-var]
    return config


def _fedsim_of(config: Config) -> FedSim:
    if not isinstance(config.method, FedSim):
        raise SettingError(f"{type(config.method).__name__} has no gates to leave out; choose FedSim")
    return config.method


def _known(word: str, known: list[str], setting: str) -> None:
    if word not in known:
        near = nearest_word(word, known)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(known)}"
        raise SettingError(f"{setting} '{word}' is unknown; {hint}")
