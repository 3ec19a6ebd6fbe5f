"""Below the cut: the local network of a party (paper, section 2, "SplitNN").

Letters: B records, E width of the encoded features, C width of the cut layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.splitnn.encodings import Columns, Encoding, Plain
from fedsim.splitnn.features import Features, FeatureTensors
from fedsim.splitnn.layers import Perceptron


@dataclass(frozen=True)
class Local:
    """Sizes of a local network; the cut layer has no activation, as in the paper."""

    encoding: Encoding = field(default_factory=Plain)
    hidden: tuple[int, ...] = (200,)
    cut: int = 100
    dropout: float = 0.0

    def build(self, features: Features) -> LocalNetwork:
        """A network for these columns; its weights are not drawn yet."""
        return LocalNetwork(self, self.encoding.build(features))


@dataclass(frozen=True)
class Bare:
    """No network at all: the features themselves cross the cut. Only Combine, the simulated upper bound, does this."""

    encoding: Encoding = field(default_factory=Plain)

    def build(self, features: Features) -> BareColumns:
        return BareColumns(self.encoding.build(features))


class LocalNetwork(nn.Module):
    """Features -> encoding -> perceptron -> cut layer."""

    def __init__(self, sizes: Local, encode: Columns) -> None:
        super().__init__()
        self.encode = encode
        self.width = sizes.cut
        self.perceptron = Perceptron([encode.width, *sizes.hidden, sizes.cut], sizes.dropout)

    def forward(self, features: FeatureTensors, generator: torch.Generator | None = None) -> Tensor:
        cut: Tensor = self.perceptron(self.encode(features), generator)  # (B, E) -> (B, C)
        return cut


class BareColumns(nn.Module):
    """Features -> encoding, with a cut layer as wide as that."""

    def __init__(self, encode: Columns) -> None:
        super().__init__()
        self.encode = encode
        self.width = encode.width

    def forward(self, features: FeatureTensors, generator: torch.Generator | None = None) -> Tensor:
        columns: Tensor = self.encode(features)
        return columns
