"""How a party's columns enter its network: as they are, or spread out over quantiles.

A piecewise-linear encoding splits a column at quantiles of the training rows; component t rises from 0 to 1 across bin
t. It gives the first layer a tree's view of a number, its bins are data of the party alone, and a column that is
constant in the training rows stays silent for ever (Gorishniy et al., On embeddings for numerical features, 2022).

Letters: B records, d columns of numbers, m of them spread out, T bins, e columns of codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsim.splitnn.features import Features, FeatureTensors


class Encoding(Protocol):
    """A way to bring features into a network; ``build`` sees the training rows."""

    def build(self, features: Features) -> Columns: ...


@dataclass(frozen=True)
class Plain:
    """Numbers as they are, codes one-hot: the paper's input."""

    def build(self, features: Features) -> Columns:
        return PlainColumns(features)


@dataclass(frozen=True)
class Piecewise:
    """Numbers as they are and, where many-valued, also spread over ``bins`` quantiles; codes as embeddings."""

    bins: int = 24
    code_width: int = 8

    def build(self, features: Features) -> Columns:
        return PiecewiseColumns(features, self)


class PlainColumns(nn.Module):
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


class PiecewiseColumns(nn.Module):
    """Numbers, their position among quantiles, and an embedding of every code, side by side."""

    spread: Tensor

    def __init__(self, features: Features, how: Piecewise) -> None:
        super().__init__()
        spread = features.many_valued
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.int64), persistent=False)
        self.bins = Bins(features.numbers[:, spread], how.bins)
        self.tables = nn.ModuleList([Table(size, how.code_width) for size in features.cardinalities])
        self.width = features.numbers.shape[1] + len(spread) * how.bins + len(self.tables) * how.code_width

    def forward(self, features: FeatureTensors) -> Tensor:
        heights = self.bins(features.numbers.index_select(1, self.spread))  # (B, m, T)
        looked_up = [table(features.codes[:, place]) for place, table in enumerate(self.tables)]
        return torch.cat([features.numbers, heights.flatten(1), *looked_up], dim=1)


Columns = PlainColumns | PiecewiseColumns  # modules from features to one vector of ``width`` per record


class Bins(nn.Module):
    """Piecewise-linear components between quantiles: (..., m) -> (..., m, T), each within 0 and 1."""

    start: Tensor
    slope: Tensor

    def __init__(self, values: NDArray[Any], bins: int) -> None:
        super().__init__()
        start, slope = _between_quantiles(values, bins)
        self.register_buffer("start", torch.from_numpy(start))  # (m, T)
        self.register_buffer("slope", torch.from_numpy(slope))  # (m, T)

    def forward(self, values: Tensor) -> Tensor:
        return ((values.unsqueeze(-1) - self.start) * self.slope).clamp(0, 1)


def _between_quantiles(values: NDArray[Any], bins: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where each bin of each column starts and one over its width; zero for a bin without width."""
    edges = np.zeros((bins + 1, values.shape[1]))
    if values.size:
        edges = np.quantile(values.astype(np.float64), np.linspace(0, 1, bins + 1), axis=0)
    widths = np.diff(edges, axis=0)
    slope = np.divide(1.0, widths, out=np.zeros_like(widths), where=widths > 1e-6)
    return edges[:-1].T.astype(np.float32), slope.T.astype(np.float32)


class Table(nn.Module):
    """A learnt vector per category."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))

    def draw(self, generator: torch.Generator) -> None:
        nn.init.uniform_(self.weight, -0.5, 0.5, generator=generator)

    def forward(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self.weight)
