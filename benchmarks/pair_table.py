"""The baseline: a straightforward FedSim on a table of pairs, sorted in every batch, with LAMB tensor by tensor.

The table holds every record K times next to its partners, in float64, and a batch is cast to float32, as in the
authors' code; there are no loader processes and no further copies. It was written from the paper and shares no code
with ``fedsim``.

Letters: B records, K partners, R outputs per pair, T outputs of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Layers of the network."""

    columns: tuple[int, int]
    hidden: int
    cut: int
    aggregate: int
    outputs: int
    partners: int
    classes: int  # 1: regression, 2: binary
    merge: tuple[int, int, int, float] | None  # channels, kernel, hidden, dropout; none: weighted mean


def perceptron(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PairNetwork(nn.Module):
    """All parties in one module, fed with pairs."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.primary = perceptron(sizes.columns[0], sizes.hidden, sizes.cut)
        self.secondary = perceptron(sizes.columns[1], sizes.hidden, sizes.cut)
        self.aggregate = perceptron(2 * sizes.cut, sizes.aggregate, sizes.outputs)
        self.weigh = perceptron(1, 10, 1)
        if sizes.merge:
            channels, kernel, hidden, dropout = sizes.merge
            flat = channels * (sizes.partners + kernel - 1) * sizes.outputs
            last = 1 if sizes.classes <= 2 else sizes.classes
            self.convolution = nn.Conv2d(1, channels, (kernel, 1), padding=(kernel - 1, 0))
            self.merge = nn.Sequential(
                nn.Dropout(dropout), nn.Linear(flat, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, last)
            )

    def forward(self, own: Tensor, theirs: Tensor, similarity: Tensor) -> Tensor:
        """``own`` and ``theirs`` have one row per pair, (B * K, columns); ``similarity`` is (B, K)."""
        cut = torch.cat([self.primary(own), self.secondary(theirs)], dim=1)  # (B * K, 2 C)
        outputs = self.aggregate(cut)
        if self.sizes.classes <= 2:
            outputs = outputs.sigmoid()
        outputs = outputs.view(*similarity.shape, -1)  # (B, K, R)
        ordered, order = similarity.sort(dim=1)
        outputs = outputs.gather(1, order.unsqueeze(-1).expand_as(outputs))
        weight = self.weigh(ordered.unsqueeze(-1)).sigmoid() + 1e-7  # (B, K, 1)
        if not self.sizes.merge:
            return (outputs * weight / weight.sum(dim=1, keepdim=True)).sum(dim=1)
        merged: Tensor = self.merge(F.relu(self.convolution((outputs * weight).unsqueeze(1))).flatten(1))
        return merged.sigmoid() if self.sizes.classes <= 2 else merged

    def loss(self, predictions: Tensor, labels: Tensor) -> Tensor:
        if self.sizes.classes == 1:
            return F.mse_loss(predictions.squeeze(1), labels)
        if self.sizes.classes == 2:
            return F.binary_cross_entropy(predictions.squeeze(1).clamp(0, 1), labels)
        return F.cross_entropy(predictions, labels.long())


@dataclass(frozen=True, eq=False)
class PairTable:
    """All pairs of all records: (n, K, columns) of either party, similarities (n, K), labels (n,)."""

    own: Tensor
    theirs: Tensor
    similarity: Tensor
    labels: Tensor

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the pairs of some records, one row each, in float32."""
        own, theirs = (table[rows].flatten(0, 1).float() for table in (self.own, self.theirs))
        return own, theirs, self.similarity[rows].float(), self.labels[rows].float()


class PlainLamb:
    """LAMB as it is usually written: one tensor after the other, norms read back to the host."""

    def __init__(self, parameters: list[nn.Parameter], rate: float, decay: float) -> None:
        self.parameters, self.rate, self.decay = parameters, rate, decay
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            gradient = parameter.grad
            assert gradient is not None
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            move = mean / square.sqrt().add(1e-6)
            move.add_(parameter, alpha=self.decay)
            weight_norm, move_norm = float(parameter.norm().clamp(0, 10)), float(move.norm())
            ratio = weight_norm / move_norm if weight_norm > 0 and move_norm > 0 else 1.0
            parameter.add_(move, alpha=-self.rate * ratio)
            parameter.grad = None
