"""A party's features and the network it runs below the cut: input encodings, perceptron, dropout, clipped cut layer.

Layers draw no random numbers on their own: weights and dropout masks come from the generator passed to them.

Letters: n records of a table, B records of a batch, d columns of numbers, e columns of category codes, m columns
spread over T bins, p columns encoded with J frequencies and D outputs, E width of the encoded features, C width of the
cut layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.types import AnyArray, Features


@dataclass(frozen=True, eq=False)
class FeatureTensors:
    """Features on a device."""

    numbers: Tensor  # (n, d)
    codes: Tensor  # (n, e)

    @classmethod
    def of(cls, features: Features, device: torch.device) -> FeatureTensors:
        """Copy features to a device."""
        return cls(torch.from_numpy(features.numbers).to(device), torch.from_numpy(features.codes).to(device))

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Tensor) -> FeatureTensors:
        """Return the features of some records."""
        codes = self.codes.index_select(0, rows) if self.codes.shape[1] else self.codes[:0]
        return FeatureTensors(self.numbers.index_select(0, rows), codes)


# Products of matrices
#
# PyTorch multiplies with MKL, which leaves half of the vector unit unused on processors not made by Intel. oneDNN, also
# a part of PyTorch, uses all of it. The results differ by rounding alone.


ONEDNN_PRODUCTS = 1 << 20  # smaller products do not pay for the call
ONEDNN_WIDTH = 8  # narrower matrices are slower there


class _OneDnnProduct(torch.autograd.Function):
    """``x @ weight.T + bias`` for two-dimensional inputs, computed by oneDNN forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _onednn_product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (outputs,), (inputs, weight), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        return (
            _onednn_product(outputs, weight.t()) if wanted[0] else None,
            _onednn_product(outputs.t(), inputs.t()) if wanted[1] else None,
            outputs.sum(dim=0) if wanted[2] else None,
        )


def _onednn_product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(_dense(inputs), _dense(weight), bias, "none", [], "")
    return product


def _dense(matrix: Tensor) -> Tensor:
    """Return a matrix whose rows or columns follow each other in memory; oneDNN is slow for others."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``inputs @ weight.T + bias`` as :func:`torch.nn.functional.linear` does, large ones faster on a CPU."""
    if not _suits_onednn(inputs, weight):
        return F.linear(inputs, weight, bias)
    product: Tensor = _OneDnnProduct.apply(inputs.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
    return product.view(*inputs.shape[:-1], len(weight))


def _suits_onednn(inputs: Tensor, weight: Tensor) -> bool:
    if inputs.numel() * len(weight) < ONEDNN_PRODUCTS or min(weight.shape) < ONEDNN_WIDTH:
        return False
    plain = inputs.device.type == "cpu" and inputs.dtype == weight.dtype == torch.float32
    # Within vmap, which trains members side by side, PyTorch computes one product for all.
    together = torch._C._functorch.peek_interpreter_stack() is not None
    return plain and torch.backends.mkldnn.is_available() and not together


class Linear(nn.Linear):
    """A linear layer that multiplies with :func:`linear`."""

    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight, self.bias)


# Basic layers


def uninitialised_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer whose weights are not drawn yet."""
    layer: nn.Linear = nn.utils.skip_init(Linear, inputs, outputs)
    return layer


def initialise_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights from PyTorch's default distributions with this generator, in module order.

    At least one channel of a convolution starts with a positive bias.
    """
    for layer in module.modules():
        if isinstance(layer, CategoryEmbedding):
            nn.init.uniform_(layer.weight, -0.5, 0.5, generator=generator)
        elif isinstance(layer, LearntFactor):
            nn.init.zeros_(layer.logarithm)
        elif isinstance(layer, PeriodicEmbedding):
            nn.init.normal_(layer.frequency, 0.0, layer.sigma, generator=generator)
            nn.init.normal_(layer.weight, 0.0, layer.weight.shape[1] ** -0.5, generator=generator)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
                if isinstance(layer, nn.Conv2d) and (layer.bias < 0).all():
                    # With eight channels, one draw in 256 has no positive bias. For small inputs, no channel would
                    # then ever pass its rectifier.
                    layer.bias.data.neg_()


def split_linear(layer: nn.Linear, parts: Sequence[Tensor]) -> list[Tensor]:
    """Return each part's share of ``layer(cat(parts))`` without concatenating; the bias is in the first share.

    The parts may have different leading dimensions: one row per record, one per partner, one per pair.
    """
    if len(parts) == 1:
        return [layer(parts[0])]
    slices = layer.weight.split([part.shape[-1] for part in parts], dim=1)
    first = linear(parts[0], slices[0], layer.bias)
    return [first, *(linear(part, weight) for part, weight in zip(parts[1:], slices[1:], strict=True))]


class Dropout(nn.Module):
    """Dropout with masks from the given generator; without a generator (evaluation) it drops nothing."""

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise SettingError(f"dropout={share}; choose a share from 0 to below 1", code="dropout-out-of-range")
        self.share = share

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is None or self.share == 0:
            return inputs
        drawn = torch.rand(inputs.shape, generator=generator, device=inputs.device)
        return inputs * (drawn >= self.share).to(inputs.dtype).mul_(1 / (1 - self.share))  # the factor keeps the mean


class LearntFactor(nn.Module):
    """Multiplication by a learnt positive factor, initially 1."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.empty(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.logarithm.exp()


class Perceptron(nn.Module):
    """Linear layers with ReLU and optional dropout between them; nothing follows the last."""

    def __init__(self, sizes: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        if min(sizes) < 1:
            message = f"layers of {', '.join(map(str, sizes))} units; every layer needs at least one"
            raise SettingError(message, code="empty-layer")
        self.first = uninitialised_linear(sizes[0], sizes[1])
        self.others = nn.ModuleList([uninitialised_linear(*pair) for pair in pairwise(sizes[1:])])
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.rest(self.first(inputs), generator)

    def rest(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Apply all layers after the first linear layer, for callers that compute the first in parts."""
        for layer in self.others:
            outputs = layer(self.dropout(F.relu(outputs), generator))
        return outputs

    def on_parts(self, parts: Sequence[Tensor], generator: torch.Generator | None = None) -> Tensor:
        """Apply the perceptron to ``cat(parts, dim=1)`` without concatenating."""
        shares = split_linear(self.first, parts)
        return self.rest(sum(shares[1:], start=shares[0]), generator)


# Input encodings: unchanged columns, quantile bins, or sines and cosines (Gorishniy et al., On embeddings
# for numerical features, 2022).
#
# A piecewise-linear encoding splits a column at quantiles of the training rows; component t rises from 0 to 1 across
# bin t. It gives the first layer a tree's view of a number, its bins are computed from the party's own data, and a
# column that is constant in the training rows stays zero.
#
# A periodic encoding learns frequencies, a linear layer and ReLU for each column. It suits locations better than bins
# do, because the label is a smooth but intricate function of them.


class InputEncoding(Protocol):
    """A way to encode features as network inputs; ``build`` sees the training rows."""

    def build(self, features: Features) -> InputEncoder: ...


@dataclass(frozen=True)
class Plain:
    """Numbers unchanged and codes one-hot: the paper's input."""

    def build(self, features: Features) -> InputEncoder:
        return PlainEncoder(features)


@dataclass(frozen=True)
class Piecewise:
    """Numbers unchanged and, if many-valued, also spread over ``bins`` quantiles; codes as embeddings.

    Columns in ``Features.periodic`` get a periodic embedding instead of bins: ``wave_width`` outputs of ``frequencies``
    learnt frequencies, initialised with the deviation ``sigma`` in cycles per standard deviation.
    """

    bins: int = 24
    code_width: int = 8
    frequencies: int = 48
    wave_width: int = 32
    sigma: float = 1.0

    def build(self, features: Features) -> InputEncoder:
        return PiecewiseEncoder(features, self)


class PlainEncoder(nn.Module):
    """Numbers and one-hot codes, concatenated."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.cardinalities = features.cardinalities
        self.width = features.numbers.shape[1] + sum(features.cardinalities)

    def forward(self, features: FeatureTensors) -> Tensor:
        if not self.cardinalities:
            return features.numbers  # (B, d)
        hot = [F.one_hot(features.codes[:, place], size) for place, size in enumerate(self.cardinalities)]
        return torch.cat([features.numbers, *(column.to(features.numbers.dtype) for column in hot)], dim=1)  # (B, E)


class PiecewiseEncoder(nn.Module):
    """Numbers, their quantile bins or periodic embedding, and an embedding of every code, concatenated."""

    spread: Tensor
    periodic: Tensor

    def __init__(self, features: Features, sizes: Piecewise) -> None:
        super().__init__()
        periodic = features.periodic
        spread = [place for place in features.many_valued if place not in periodic]
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.int64), persistent=False)
        self.register_buffer("periodic", torch.tensor(periodic, dtype=torch.int64), persistent=False)
        self.bins = QuantileBins(features.numbers[:, spread], sizes.bins)
        self.waves = PeriodicEmbedding(len(periodic), sizes) if periodic else None
        self.tables = nn.ModuleList([CategoryEmbedding(size, sizes.code_width) for size in features.cardinalities])
        encoded = len(spread) * sizes.bins + len(periodic) * sizes.wave_width + len(self.tables) * sizes.code_width
        self.width = features.numbers.shape[1] + encoded

    def forward(self, features: FeatureTensors) -> Tensor:
        heights = self.bins(features.numbers.index_select(1, self.spread))  # (B, m, T)
        parts = [features.numbers, heights.flatten(1)]
        if self.waves is not None:
            parts.append(self.waves(features.numbers.index_select(1, self.periodic)).flatten(1))  # (B, p * D)
        parts += [table(features.codes[:, place]) for place, table in enumerate(self.tables)]
        return torch.cat(parts, dim=1)  # (B, E)


InputEncoder = PlainEncoder | PiecewiseEncoder  # modules from features to one vector of ``width`` per record


class QuantileBins(nn.Module):
    """Piecewise-linear components between quantiles: (..., m) -> (..., m, T), each from 0 to 1."""

    start: Tensor
    slope: Tensor

    def __init__(self, values: AnyArray, bins: int) -> None:
        super().__init__()
        edges = np.zeros((bins + 1, values.shape[1]))
        present = ~np.isnan(values)
        for column in np.flatnonzero(present.any(axis=0)):
            known = values[present[:, column], column].astype(np.float64)
            edges[:, column] = np.quantile(known, np.linspace(0, 1, bins + 1))
        widths = np.diff(edges, axis=0)  # (T, m)
        slope = np.divide(1.0, widths, out=np.zeros_like(widths), where=widths > 1e-6)  # 0 for a bin without width
        self.register_buffer("start", torch.from_numpy(edges[:-1].T.astype(np.float32)))  # (m, T)
        self.register_buffer("slope", torch.from_numpy(slope.T.astype(np.float32)))  # (m, T)

    def forward(self, values: Tensor) -> Tensor:
        return ((values.unsqueeze(-1) - self.start) * self.slope).clamp(0, 1)  # (..., m, T)


class PeriodicEmbedding(nn.Module):
    """Sines and cosines of learnt frequencies, a linear layer and ReLU for each column: (B, p) -> (B, p, D)."""

    def __init__(self, columns: int, sizes: Piecewise) -> None:
        super().__init__()
        self.sigma = sizes.sigma
        self.frequency = nn.Parameter(torch.empty(columns, sizes.frequencies))
        self.weight = nn.Parameter(torch.empty(columns, 2 * sizes.frequencies, sizes.wave_width))
        self.bias = nn.Parameter(torch.empty(columns, sizes.wave_width))

    def forward(self, values: Tensor) -> Tensor:
        angles = 2 * math.pi * values.unsqueeze(-1) * self.frequency  # (B, p, J)
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1)  # (B, p, 2 J)
        return F.relu(torch.einsum("bpj,pjd->bpd", waves, self.weight) + self.bias)


class CategoryEmbedding(nn.Module):
    """A learnt vector per category."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))

    def forward(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self.weight)


# The local network of a party (paper, section 2, "SplitNN")


@dataclass(frozen=True)
class Local:
    """Sizes of a local network; the cut layer has no activation, as in the paper.

    ``sent`` is the width of a secondary's cut layer, which is sent to the primary; if None, it equals ``cut``.
    """

    encoding: InputEncoding = field(default_factory=Plain)
    hidden: tuple[int, ...] = (200,)
    cut: int = 100
    dropout: float = 0.0
    sent: int | None = None

    def build(self, features: Features) -> LocalNetwork:
        """Return a network for these columns; its weights are not drawn yet."""
        return LocalNetwork(self, self.encoding.build(features))


@dataclass(frozen=True)
class Bare:
    """No network: the encoded features themselves, for a primary without partners."""

    encoding: InputEncoding = field(default_factory=Plain)

    def build(self, features: Features) -> RawFeatureNetwork:
        return RawFeatureNetwork(self.encoding.build(features))


class LocalNetwork(nn.Module):
    """Features -> encoding -> perceptron -> cut layer."""

    def __init__(self, sizes: Local, encode: InputEncoder) -> None:
        super().__init__()
        self.encode = encode
        self.width = sizes.cut
        self.perceptron = Perceptron([encode.width, *sizes.hidden, sizes.cut], sizes.dropout)

    def forward(self, features: FeatureTensors, generator: torch.Generator | None = None) -> Tensor:
        cut: Tensor = self.perceptron(self.encode(features), generator)  # (B, E) -> (B, C)
        return cut


class RawFeatureNetwork(nn.Module):
    """Features -> encoding; the cut layer has the width of the encoding."""

    def __init__(self, encode: InputEncoder) -> None:
        super().__init__()
        self.encode = encode
        self.width = encode.width

    def forward(self, features: FeatureTensors, generator: torch.Generator | None = None) -> Tensor:
        columns: Tensor = self.encode(features)  # (B, E)
        return columns
