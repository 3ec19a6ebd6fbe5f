"""Networks below and above the cut, the gates, the methods and the optimisers; requires only torch and NumPy."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports
from fedsim.types import Features

if TYPE_CHECKING:
    from fedsim.splitnn.methods import AvgSim, Exact, FeatureSim, FedSim, Solo, Top1Sim

__all__ = ["AvgSim", "Exact", "FeatureSim", "Features", "FedSim", "Solo", "Top1Sim"]

# A secondary's process must not load what is above the cut.
__getattr__ = lazy_exports(__name__, {"methods": ["AvgSim", "Exact", "FeatureSim", "FedSim", "Solo", "Top1Sim"]})
