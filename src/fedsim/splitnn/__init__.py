"""Networks below and above the cut, the gates, the methods, the optimisers; needs torch and numpy alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.splitnn.gates import Neighbours
    from fedsim.splitnn.layers import Features
    from fedsim.splitnn.methods import AvgSim, Combine, Exact, FeatureSim, FedSim, Solo, Top1Sim

_HOMES = {"Features": "fedsim.splitnn.layers", "Neighbours": "fedsim.splitnn.gates"}

__all__ = ["AvgSim", "Combine", "Exact", "FeatureSim", "Features", "FedSim", "Neighbours", "Solo", "Top1Sim"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a secondary's process must not load what is above the cut."""
    if name not in __all__:
        raise AttributeError(f"module 'fedsim.splitnn' has no attribute '{name}'")
    return getattr(import_module(_HOMES.get(name, "fedsim.splitnn.methods")), name)
