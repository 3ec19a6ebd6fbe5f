"""The methods of the paper, one file each."""

from __future__ import annotations

from fedsim.splitnn.methods.avgsim import AvgSim
from fedsim.splitnn.methods.combine import Combine
from fedsim.splitnn.methods.exact import Exact
from fedsim.splitnn.methods.featuresim import FeatureSim
from fedsim.splitnn.methods.fedsim import FedSim
from fedsim.splitnn.methods.solo import Solo
from fedsim.splitnn.methods.top1sim import Top1Sim

__all__ = ["AvgSim", "Combine", "Exact", "FeatureSim", "FedSim", "Solo", "Top1Sim"]
