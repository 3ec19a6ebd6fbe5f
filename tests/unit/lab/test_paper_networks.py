"""The paper's merge gate is the convolution of its text, and its configuration that of the dataset hdb."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedsim.errors import SettingError
from fedsim.splitnn.layers import initialise_weights
from fedsim.training.data import MinMaxLabel
from fedsim_lab.paper_networks import Convolution, ConvolutionMerge, paper_preset


@pytest.mark.parametrize("kernel", [1, 4, 7])
def test_the_convolution_is_that_of_torch_with_full_padding(kernel):
    layer, outputs = Convolution(channels=3, kernel=kernel), torch.randn(5, 6, 2)
    initialise_weights(layer, torch.Generator().manual_seed(0))
    plain = F.conv2d(outputs[:, None], layer.kernel.weight, layer.kernel.bias, padding=(kernel - 1, 0))
    assert torch.allclose(layer(outputs), F.relu(plain).flatten(1), atol=1e-6)


def test_a_convolution_without_channels_is_refused():
    with pytest.raises(SettingError) as caught:
        Convolution(channels=0, kernel=7)
    assert caught.value.code == "empty-convolution"


def test_the_preset_has_the_papers_merge_gate_and_label():
    config = paper_preset(epochs=3)
    assert config.method.merge == ConvolutionMerge(channels=8, kernel=7, hidden=400)
    assert (config.label, config.epochs, config.members) == (MinMaxLabel(), 3, 1)
