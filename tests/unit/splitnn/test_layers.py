"""Layers draw from the generator they are given and from nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsim.splitnn.layers import (
    ONEDNN_PRODUCTS,
    Dropout,
    FeatureTensors,
    Local,
    Perceptron,
    Piecewise,
    Plain,
    QuantileBins,
    initialise_weights,
    linear,
    split_linear,
    uninitialised_linear,
)
from fedsim.splitnn.party_model import RandomSource
from fedsim.types import Features, derive_seed


def test_weights_are_drawn_within_torchs_default_bounds():
    layer = uninitialised_linear(50, 400)
    initialise_weights(layer, torch.Generator().manual_seed(1))
    bound = 1 / math.sqrt(50)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert layer.bias.abs().max() <= bound


def test_no_convolution_starts_with_all_channels_below_zero():
    layer = torch.nn.Conv2d(1, 2, (5, 1))
    signs = set()
    for seed in range(40):
        initialise_weights(layer, torch.Generator().manual_seed(seed))
        signs.add(tuple((layer.bias > 0).tolist()))
    assert signs == {(True, True), (True, False), (False, True)}


def test_building_and_drawing_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    network = Local(encoding=Piecewise(), dropout=0.5).build(Features(np.random.default_rng(0).normal(size=(9, 3))))
    initialise_weights(network, torch.Generator().manual_seed(1))
    network(FeatureTensors.of(Features(np.zeros((4, 3))), torch.device("cpu")), torch.Generator().manual_seed(2))
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_keeps_the_mean_and_repeats_with_its_generator():
    inputs, dropout = torch.ones(200, 500), Dropout(0.3)
    dropped = dropout(inputs, torch.Generator().manual_seed(3))
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(dropped, dropout(inputs, torch.Generator().manual_seed(3)))


def test_without_a_generator_nothing_is_dropped():
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert Dropout(0.9)(inputs) is inputs


def test_a_layer_in_parts_is_the_layer_on_all_parts():
    layer, generator = uninitialised_linear(7, 5).double(), torch.Generator().manual_seed(0)
    initialise_weights(layer, generator)
    parts = [torch.randn(4, width, generator=generator, dtype=torch.float64) for width in (3, 2, 2)]
    torch.testing.assert_close(sum(split_linear(layer, parts)), layer(torch.cat(parts, dim=1)))


def test_a_perceptron_ends_without_activation():
    network = Perceptron([3, 4, 2])
    initialise_weights(network, torch.Generator().manual_seed(0))
    assert (network(torch.randn(50, 3, generator=torch.Generator().manual_seed(1))) < 0).any()


def test_chance_differs_by_party_purpose_and_step_alone():
    seeds = {
        derive_seed(seed, party, purpose, step)
        for seed in (0, 1)
        for party in ("primary", "secondary")
        for purpose in ("dropout", "weights")
        for step in (0, 1)
    }
    assert len(seeds) == 16
    assert (
        RandomSource(0, "a").generator("x", 3).initial_seed() == RandomSource(0, "a").generator("x", 3).initial_seed()
    )


def test_bins_rise_one_after_the_other_from_zero_to_one():
    bins = QuantileBins(np.linspace(0, 4, 101)[:, None], 4)
    heights = bins(torch.tensor([[-1.0], [0.5], [2.0], [9.0]])).squeeze(1)
    expected = [[0, 0, 0, 0], [0.5, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    torch.testing.assert_close(heights, torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=0)


def test_a_column_that_was_constant_in_training_stays_silent():
    bins = QuantileBins(np.full((10, 1), 2.0), 4)
    assert (bins(torch.tensor([[2.0], [1e6], [-1e6]])) == 0).all()


def test_codes_enter_one_hot_or_as_embeddings():
    features = Features(np.zeros((4, 1)), np.array([[0], [1], [2], [1]]), (3,))
    tensors = FeatureTensors.of(features, torch.device("cpu"))
    assert Plain().build(features)(tensors)[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]
    encode = Piecewise(bins=2, code_width=5).build(features)
    initialise_weights(encode, torch.Generator().manual_seed(0))
    embedded = encode(tensors)
    assert embedded.shape == (4, encode.width) == (4, 6)
    assert torch.equal(embedded[1], embedded[3])


def test_only_many_valued_columns_are_spread_out():
    features = Features(np.array([[0, 1.0, 3], [1, 2.0, 3], [0, 3.0, 3]]))
    assert features.many_valued == (1,)


def test_periodic_columns_become_waves_instead_of_bins():
    features = Features(np.random.default_rng(0).normal(size=(7, 3)), periodic=(2,))
    encode = Piecewise(bins=2, frequencies=3, wave_width=4, sigma=0.5).build(features)
    initialise_weights(encode, torch.Generator().manual_seed(0))
    encoded = encode(FeatureTensors.of(features, torch.device("cpu")))
    assert encoded.shape == (7, encode.width) == (7, 3 + 2 * 2 + 4)
    turns = torch.from_numpy(features.numbers[:, 2:]) * encode.waves.frequency[0]
    waves = torch.cat([(2 * math.pi * turns).sin(), (2 * math.pi * turns).cos()], dim=1)
    torch.testing.assert_close(encoded[:, 7:], (waves @ encode.waves.weight[0]).clamp(min=0))


def test_frequencies_are_drawn_with_the_given_deviation():
    encode = Piecewise(frequencies=4000, sigma=0.5).build(Features(np.zeros((2, 1)), periodic=(0,)))
    initialise_weights(encode, torch.Generator().manual_seed(0))
    assert encode.waves.frequency.std().item() == pytest.approx(0.5, rel=0.05)


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(128, 9), (64, 2, 900)], ids=["small", "large"])
@pytest.mark.parametrize("part", [slice(None), slice(0, 8)], ids=["whole", "some columns"])
def test_products_and_their_gradients_equal_those_of_torch(shape, part):
    found, expected = [], []
    for product, kept in ((linear, found), (F.linear, expected)):
        inputs, weight, bias = (_drawn(*size).requires_grad_() for size in (shape, (50, shape[-1]), (50,)))
        outputs = product(inputs[..., part], weight[:, part], bias)
        kept += [outputs, *torch.autograd.grad(outputs.square().sum(), [inputs, weight, bias])]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_products_of_members_are_computed_together():
    inputs, weight = _drawn(3, 256, 100), _drawn(3, 100, 100)
    assert inputs[0].numel() * len(weight[0]) > ONEDNN_PRODUCTS
    together = torch.vmap(linear)(inputs, weight)
    torch.testing.assert_close(together, torch.einsum("mbi,moi->mbo", inputs, weight), rtol=1e-4, atol=1e-3)


def test_a_product_of_shared_matrices_inside_vmap_is_that_of_torch():
    inputs, weight = _drawn(256, 100), _drawn(100, 100).requires_grad_()
    shared = torch.vmap(lambda added: linear(inputs, weight) + added)(torch.zeros(2))
    torch.testing.assert_close(shared[1], inputs @ weight.T, rtol=1e-4, atol=1e-3)
