"""Networks below and above the cut, the gates, the methods and the optimisers; requires only torch and NumPy."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim.splitnn.layers import Features
    from fedsim.splitnn.methods import AvgSim, Exact, FeatureSim, FedSim, Solo, Top1Sim

__all__ = ["AvgSim", "Exact", "FeatureSim", "Features", "FedSim", "Solo", "Top1Sim"]

# A secondary's process must not load what is above the cut.
_METHODS = ["AvgSim", "Exact", "FeatureSim", "FedSim", "Solo", "Top1Sim"]
__getattr__ = lazy_exports(__name__, {"layers": ["Features"], "methods": _METHODS})
