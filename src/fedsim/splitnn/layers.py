"""A party's features and the network it runs below the cut: input encodings, perceptron, dropout, clipped cut layer.

Letters: n records of a table, B records of a batch, d columns of numbers, e columns of category codes, m columns
spread over T bins, E width of the encoded features, C width of the cut layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsim.errors import InputError, SettingError
from fedsim.types import Integers


class PreparedColumns(Protocol):
    """What a preparation of tables gives, wherever that lives."""

    @property
    def numbers(self) -> NDArray[Any]: ...

    @property
    def codes(self) -> Integers: ...

    @property
    def cardinalities(self) -> tuple[int, ...]: ...

    @property
    def spread(self) -> tuple[int, ...]: ...


def _empty_codes() -> Integers:
    return np.zeros((0, 0), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Features:
    """Columns of numbers, ready for a network (standardised), and columns of codes of categories.

    ``spread`` names the columns of ``numbers`` that take many values and deserve an embedding where the network has
    one; by default those with more than two distinct values. ``names`` (numbers first, then codes) serve messages.

    >>> Features(np.array([[0.0, 1.5], [1.0, 0.5], [0.0, -2.0]]))
    Features(3 records x 2 numbers and 0 codes)
    """

    numbers: NDArray[Any]  # (n, d)
    codes: Integers = field(default_factory=_empty_codes)  # (n, e), column j below cardinalities[j]
    cardinalities: tuple[int, ...] = ()
    spread: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", np.ascontiguousarray(self.numbers, dtype=np.float32))
        if not self.codes.size and not self.cardinalities:
            object.__setattr__(self, "codes", np.zeros((len(self.numbers), 0), dtype=np.int64))

    @classmethod
    def of(cls, prepared: PreparedColumns) -> Features:
        """Columns that a party's preparation made."""
        return cls(prepared.numbers, prepared.codes, prepared.cardinalities, prepared.spread)

    @classmethod
    def without_records(cls, n_numbers: int, cardinalities: tuple[int, ...], spread: tuple[int, ...]) -> Features:
        """The shape of a table with nobody in it."""
        codes = np.zeros((0, len(cardinalities)), dtype=np.int64)
        return cls(np.zeros((0, n_numbers), dtype=np.float32), codes, cardinalities, spread)

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return "Features({} records x {} numbers and {} codes)".format(len(self), *self.columns)

    @property
    def columns(self) -> tuple[int, int]:
        """How many columns of numbers and of codes there are."""
        return self.numbers.shape[1], self.codes.shape[1]

    @property
    def many_valued(self) -> tuple[int, ...]:
        """``spread``, or what these very records say of it."""
        return _many_valued(self.numbers) if self.spread is None else self.spread

    def take(self, rows: NDArray[Any]) -> Features:
        """The same columns of some records."""
        return replace(self, numbers=self.numbers[rows], codes=self.codes[rows])

    def on(self, device: torch.device) -> FeatureTensors:
        """The same, resident on a device."""
        return FeatureTensors(torch.from_numpy(self.numbers).to(device), torch.from_numpy(self.codes).to(device))

    def check(self, party: str) -> None:
        """Refuse what no network can learn from; names party and column, never a value."""
        if self.numbers.ndim != 2 or self.codes.shape != (len(self), len(self.cardinalities)):
            raise InputError(
                f"the features of {party} have shapes {self.numbers.shape} and {self.codes.shape} for "
                f"{len(self.cardinalities)} cardinalities; give two tables with a row per record and a cardinality "
                "per column of codes"
            )
        if not self.numbers.shape[1] + self.codes.shape[1]:
            raise InputError(f"{party} has no feature columns; give at least one")
        faulty = ~np.isfinite(self.numbers).all(axis=0)
        if faulty.any():
            raise InputError(f"{self._column(int(faulty.argmax()), party)} is not finite in every row; fill it first")
        for place, cardinality in enumerate(self.cardinalities):
            column = self.codes[:, place]
            if len(column) and (column.min() < 0 or column.max() >= cardinality):
                where = self._column(self.numbers.shape[1] + place, party)
                raise InputError(f"{where} has codes outside 0..{cardinality - 1}; the codes count from zero")

    def _column(self, place: int, party: str) -> str:
        name = f"'{self.names[place]}'" if place < len(self.names) else str(place)
        return f"feature column {name} of {party}"


def _many_valued(numbers: NDArray[np.float32]) -> tuple[int, ...]:
    """Columns with more than two values; a 0/1 column gains nothing from an embedding."""
    if numbers.ndim != 2 or not len(numbers):
        return ()
    low, high = numbers.min(axis=0), numbers.max(axis=0)
    return tuple(np.flatnonzero(((numbers != low) & (numbers != high)).any(axis=0)).tolist())


@dataclass(frozen=True, eq=False)
class FeatureTensors:
    """Features on a device."""

    numbers: Tensor  # (n, d)
    codes: Tensor  # (n, e)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Tensor) -> FeatureTensors:
        """The same columns of some records."""
        codes = self.codes.index_select(0, rows) if self.codes.shape[1] else self.codes[:0]
        return FeatureTensors(self.numbers.index_select(0, rows), codes)


# Layers that draw nothing by themselves: weights and dropout masks come from the generator they are given


@runtime_checkable
class SelfInitialised(Protocol):
    """A module that fills its own parameters."""

    def draw(self, generator: torch.Generator) -> None: ...


def uninitialised_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer whose weights are not drawn yet."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    return layer


def initialise_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights as PyTorch does by default, from this generator, in the order of the modules."""
    for part in module.modules():
        if isinstance(part, SelfInitialised):
            part.draw(generator)
        elif isinstance(part, nn.Linear | nn.Conv2d):
            _initialise_uniform(part, generator)


def _initialise_uniform(layer: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    if layer.bias is not None:
        bound = 1 / math.sqrt(layer.weight[0].numel())
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def split_linear(layer: nn.Linear, parts: Sequence[Tensor]) -> list[Tensor]:
    """Each part's share of ``layer(cat(parts))``, so that the parts never stand side by side; the bias is in the first.

    The parts may have different leading dimensions: one row per record, one per partner, one per pair.
    """
    if len(parts) == 1:
        return [layer(parts[0])]
    slices = layer.weight.split([part.shape[-1] for part in parts], dim=1)
    first = F.linear(parts[0], slices[0], layer.bias)
    return [first, *(F.linear(part, weight) for part, weight in zip(parts[1:], slices[1:], strict=True))]


class Dropout(nn.Module):
    """Dropout whose mask comes from the generator given; without one (evaluation) nothing is dropped."""

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise SettingError(f"dropout={share}; it is a share from 0 to below 1")
        self.share = share

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is None or self.share == 0:
            return inputs
        drawn = torch.empty(inputs.shape, device=inputs.device).uniform_(generator=generator)
        kept = drawn.ge_(self.share).to(inputs.dtype).mul_(1 / (1 - self.share))  # 0, or what keeps the mean
        return inputs * kept


class Perceptron(nn.Module):
    """Linear layers with ReLU, and dropout if asked for, between them; nothing after the last.

    ``rest`` is all but the first linear layer, for those who compute that one in parts.
    """

    def __init__(self, sizes: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        if min(sizes) < 1:
            raise SettingError(f"layers of {', '.join(map(str, sizes))} units; every layer needs at least one")
        self.first = uninitialised_linear(sizes[0], sizes[1])
        self.others = nn.ModuleList([uninitialised_linear(*pair) for pair in pairwise(sizes[1:])])
        self.dropout = Dropout(dropout)

    def forward(self, inputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.rest(self.first(inputs), generator)

    def rest(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        for layer in self.others:
            outputs = layer(self.dropout(F.relu(outputs), generator))
        return outputs


# How a party's columns enter its network: as they are, or spread out over quantiles
#
# A piecewise-linear encoding splits a column at quantiles of the training rows; component t rises from 0 to 1 across
# bin t. It gives the first layer a tree's view of a number, its bins are data of the party alone, and a column that
# is constant in the training rows stays silent for ever (Gorishniy et al., On embeddings for numerical features,
# 2022).
#
# Letters: B records, d columns of numbers, m of them spread out, T bins, e columns of codes.


class InputEncoding(Protocol):
    """A way to bring features into a network; ``build`` sees the training rows."""

    def build(self, features: Features) -> InputEncoder: ...


@dataclass(frozen=True)
class Plain:
    """Numbers as they are, codes one-hot: the paper's input."""

    def build(self, features: Features) -> InputEncoder:
        return PlainEncoder(features)


@dataclass(frozen=True)
class Piecewise:
    """Numbers as they are and, where many-valued, also spread over ``bins`` quantiles; codes as embeddings."""

    bins: int = 24
    code_width: int = 8

    def build(self, features: Features) -> InputEncoder:
        return PiecewiseEncoder(features, self)


class PlainEncoder(nn.Module):
    """Numbers and one-hot codes side by side."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.cardinalities = features.cardinalities
        self.width = features.numbers.shape[1] + sum(features.cardinalities)

    def forward(self, features: FeatureTensors) -> Tensor:
        if not self.cardinalities:
            return features.numbers  # (B, d)
        hot = [
            F.one_hot(features.codes[:, place], size).to(features.numbers.dtype)
            for place, size in enumerate(self.cardinalities)
        ]
        return torch.cat([features.numbers, *hot], dim=1)  # (B, d + sum of cardinalities)


class PiecewiseEncoder(nn.Module):
    """Numbers, their position among quantiles, and an embedding of every code, side by side."""

    spread: Tensor

    def __init__(self, features: Features, how: Piecewise) -> None:
        super().__init__()
        spread = features.many_valued
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.int64), persistent=False)
        self.bins = QuantileBins(features.numbers[:, spread], how.bins)
        self.tables = nn.ModuleList([CategoryEmbedding(size, how.code_width) for size in features.cardinalities])
        self.width = features.numbers.shape[1] + len(spread) * how.bins + len(self.tables) * how.code_width

    def forward(self, features: FeatureTensors) -> Tensor:
        heights = self.bins(features.numbers.index_select(1, self.spread))  # (B, m, T)
        looked_up = [table(features.codes[:, place]) for place, table in enumerate(self.tables)]
        return torch.cat([features.numbers, heights.flatten(1), *looked_up], dim=1)


InputEncoder = PlainEncoder | PiecewiseEncoder  # modules from features to one vector of ``width`` per record


class QuantileBins(nn.Module):
    """Piecewise-linear components between quantiles: (..., m) -> (..., m, T), each within 0 and 1."""

    start: Tensor
    slope: Tensor

    def __init__(self, values: NDArray[Any], bins: int) -> None:
        super().__init__()
        start, slope = _bin_starts_and_slopes(values, bins)
        self.register_buffer("start", torch.from_numpy(start))  # (m, T)
        self.register_buffer("slope", torch.from_numpy(slope))  # (m, T)

    def forward(self, values: Tensor) -> Tensor:
        return ((values.unsqueeze(-1) - self.start) * self.slope).clamp(0, 1)


def _bin_starts_and_slopes(values: NDArray[Any], bins: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where each bin of each column starts and one over its width; zero for a bin without width."""
    edges = np.zeros((bins + 1, values.shape[1]))
    if values.size:
        edges = np.quantile(values.astype(np.float64), np.linspace(0, 1, bins + 1), axis=0)
    widths = np.diff(edges, axis=0)
    slope = np.divide(1.0, widths, out=np.zeros_like(widths), where=widths > 1e-6)
    return edges[:-1].T.astype(np.float32), slope.T.astype(np.float32)


class CategoryEmbedding(nn.Module):
    """A learnt vector per category."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))

    def draw(self, generator: torch.Generator) -> None:
        nn.init.uniform_(self.weight, -0.5, 0.5, generator=generator)

    def forward(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self.weight)


# Below the cut: the local network of a party (paper, section 2, "SplitNN")
#
# Letters: B records, E width of the encoded features, C width of the cut layer.


@dataclass(frozen=True)
class Local:
    """Sizes of a local network; the cut layer has no activation, as in the paper."""

    encoding: InputEncoding = field(default_factory=Plain)
    hidden: tuple[int, ...] = (200,)
    cut: int = 100
    dropout: float = 0.0

    def build(self, features: Features) -> LocalNetwork:
        """A network for these columns; its weights are not drawn yet."""
        return LocalNetwork(self, self.encoding.build(features))


@dataclass(frozen=True)
class Bare:
    """No network at all: the features themselves cross the cut. Only Combine, the simulated upper bound, does this."""

    encoding: InputEncoding = field(default_factory=Plain)

    def build(self, features: Features) -> RawFeatureNetwork:
        return RawFeatureNetwork(self.encoding.build(features))


def send_raw_features(local: Local) -> Bare:
    """Return the secondary's "network" of Combine: the preset's encoding and nothing else."""
    return Bare(local.encoding)


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
    """Features -> encoding, with a cut layer as wide as that."""

    def __init__(self, encode: InputEncoder) -> None:
        super().__init__()
        self.encode = encode
        self.width = encode.width

    def forward(self, features: FeatureTensors, generator: torch.Generator | None = None) -> Tensor:
        columns: Tensor = self.encode(features)
        return columns


# A cut layer whose rows have a bounded length, so that noise on them can promise something
#
# Letters: B records, C width of the cut layer.


MIN_ROW_LENGTH = 1e-12


def clip_rows(rows: Tensor, clip: float) -> Tensor:
    """Rows scaled down to a length of at most ``clip``, (B, C) -> (B, C); gradients flow through it.

    >>> clip_rows(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0).norm(dim=1).tolist()
    [1.0, 0.5]
    """
    length: Tensor = rows.norm(dim=1, keepdim=True)  # (B, 1)
    return rows * (clip / length.clamp_min(MIN_ROW_LENGTH)).clamp_max(1.0)


class ClippedNetwork(nn.Module):
    """A local network with a clipped cut layer."""

    def __init__(self, network: nn.Module, clip: float) -> None:
        super().__init__()
        if not 0 < clip < float("inf"):
            raise SettingError(f"clip={clip}; the longest a row may be is a number above 0")
        self.network, self.clip = network, clip

    @property
    def width(self) -> int:
        """C."""
        return int(self.network.width)  # type: ignore[arg-type]

    def forward(self, features: FeatureTensors, generator: torch.Generator | None = None) -> Tensor:
        return clip_rows(self.network(features, generator), self.clip)
