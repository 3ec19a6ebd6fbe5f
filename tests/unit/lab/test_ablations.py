"""Variants of the gates that the paper compares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.contribution.rungs import Rung, run_training
from fedsim.splitnn.gates import WeightedOutputs
from fedsim_lab.ablations import SortedByWeightNetwork
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.study_runner import load_sample


def test_sorting_by_weight_gives_the_merge_gate_rows_of_rising_weight() -> None:
    weight = torch.tensor([[0.9, 0.1, 0.5]])
    outputs = torch.arange(6.0).reshape(1, 3, 2)
    seen: list[WeightedOutputs] = []

    class Watch(nn.Module):
        def forward(self, lists: list[WeightedOutputs], primary: torch.Tensor, generator: object) -> torch.Tensor:
            seen.extend(lists)
            return primary

    SortedByWeightNetwork(Watch())([WeightedOutputs(outputs, weight)], torch.zeros(1), None)
    assert seen[0].weight.tolist() == [[pytest.approx(0.1), 0.5, pytest.approx(0.9)]]
    assert seen[0].outputs.tolist() == [[[2.0, 3.0], [4.0, 5.0], [0.0, 1.0]]]


@pytest.mark.parametrize("variant", ["by-weight", "mean-merge"])
def test_variants_of_the_gates_train_on_the_papers_sizes(variant: str) -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 120)).one("fixed", 0)
    rung = Rung(variant, variant, f"fedsim-{variant}", preset="paper", epochs=2, k=3)
    assert np.isfinite(run_training(rung, arrays).test["rmse"])
