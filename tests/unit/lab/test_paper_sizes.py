"""The networks have the paper's sizes (appendix, table "Number of parameters of each model")."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.splitnn import AvgSim, Exact, Features, FeatureSim, Top1Sim
from fedsim.splitnn.gates import BinaryClassification, BoundedRegression, BranchShape
from fedsim.splitnn.layers import Local
from fedsim.splitnn.methods import NetworkSpec
from fedsim_lab.paper_sizes import PAPER_DATA

FEDSIM = {"house": 3_469_806, "taxi": 1_846_490, "hdb": 1_869_806, "game": 1_826_506, "company": 494_474}
OTHERS = [
    ("house", FeatureSim(100), 76_201),
    ("taxi", FeatureSim(100), 116_801),
    ("hdb", FeatureSim(100), 76_201),
    ("game", FeatureSim(100), 32_801),
    ("company", FeatureSim(100), 45_201),
    ("house", AvgSim(100), 76_001),
    ("taxi", AvgSim(100), 116_701),
    ("hdb", AvgSim(400), 136_601),
    ("game", AvgSim(400), 63_301),
    ("company", AvgSim(400), 75_701),
    ("house", Top1Sim(100), 76_001),
    ("game", Top1Sim(400), 63_301),
    ("game", Exact(400), 63_301),
]


def count(name, method):
    data = PAPER_DATA[name]
    own, theirs = (Features(np.zeros((1, columns))) for columns in data.columns)
    below = data.config.local.build(theirs)
    task = BoundedRegression() if data.classes == 1 else BinaryClassification()
    branch = BranchShape(data.partners, (below.width,), np.zeros((1, data.partners)))
    above = method.build(NetworkSpec(own, data.config.local, (branch,), task))
    return sum(parameter.numel() for network in (above, below) for parameter in network.parameters())


@pytest.mark.parametrize("name", FEDSIM)
def test_fedsim_has_as_many_parameters_as_in_the_paper(name):
    assert count(name, PAPER_DATA[name].config.method) == FEDSIM[name]


@pytest.mark.parametrize(("name", "method", "expected"), OTHERS)
def test_baselines_have_as_many_parameters_as_in_the_paper(name, method, expected):
    assert count(name, method) == expected


def test_fedsim_has_the_papers_22_tensors():
    data = PAPER_DATA["hdb"]
    branch = BranchShape(50, (100,), np.zeros((1, 50)))
    above = data.config.method.build(NetworkSpec(Features(np.zeros((1, 68))), Local(), (branch,), BoundedRegression()))
    below = Local().build(Features(np.zeros((1, 8))))
    assert len([*above.parameters(), *below.parameters()]) == 22
