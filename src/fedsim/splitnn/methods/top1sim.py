"""Top1Sim (paper, section 3): only the most similar partner counts, as in ordinary record linkage."""

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
class Top1Sim:
    """A plain split network on each record and its most similar partner of every secondary."""

    hidden: int = 100
    partners: ClassVar[Partners] = Partners.EVERY

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        return most_similar(neighbours)

    def below(self, local: Local) -> Local | Bare:
        return local

    def build(self, plan: Blueprint) -> nn.Module:
        return OnePartnerNetwork(plan.local.build(plan.features), plan, [self.hidden])
