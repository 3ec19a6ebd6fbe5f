"""Networks below and above the cut, the gates, the methods, the optimisers; needs torch and numpy alone."""

from __future__ import annotations

from fedsim.splitnn.features import Features
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.methods import AvgSim, Combine, Exact, FeatureSim, FedSim, Solo, Top1Sim

__all__ = ["AvgSim", "Combine", "Exact", "FeatureSim", "Features", "FedSim", "Neighbours", "Solo", "Top1Sim"]
