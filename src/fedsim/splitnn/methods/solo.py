"""Solo (paper, section 5): the primary alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.local import Bare, Local
from fedsim.splitnn.method import Blueprint, Partners
from fedsim.splitnn.one_partner import OnePartnerNetwork


@dataclass(frozen=True)
class Solo:
    """A perceptron on the primary's own features."""

    hidden: tuple[int, ...] = (400, 200)
    partners: ClassVar[Partners] = Partners.NONE

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return neighbours

    def below(self, local: Local) -> Local | Bare:
        return local

    def build(self, plan: Blueprint) -> nn.Module:
        return OnePartnerNetwork(Bare(plan.local.encoding).build(plan.features), plan, self.hidden)
