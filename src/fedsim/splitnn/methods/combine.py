"""Combine (paper, section 5): all features in one place, the bound that no federation can pass.

It sends features across the cut, so it is for simulations alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from fedsim.splitnn.gates.order import Neighbours, most_similar
from fedsim.splitnn.local import Bare, Local
from fedsim.splitnn.method import Blueprint, Partners
from fedsim.splitnn.one_partner import OnePartnerNetwork


@dataclass(frozen=True)
class Combine:
    """A perceptron on the features of each record and of its most similar partner."""

    hidden: tuple[int, ...] = (200, 100)
    partners: ClassVar[Partners] = Partners.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return most_similar(neighbours)

    def below(self, local: Local) -> Local | Bare:
        return Bare(local.encoding)

    def build(self, plan: Blueprint) -> nn.Module:
        return OnePartnerNetwork(Bare(plan.local.encoding).build(plan.features), plan, self.hidden)
