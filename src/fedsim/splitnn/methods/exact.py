"""Exact (paper, section 3): only the partner with the very same identifier counts.

The lists say row -1 where there is none. Such a record meets zeros at the cut; the paper fills in the mean features of
the secondary instead. Either way all these records see the same, and the network learns what it means.
"""

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
class Exact:
    """A plain split network on each record and its equal, if it has one."""

    hidden: int = 100
    partners: ClassVar[Partners] = Partners.SOME

    def arrange(self, neighbours: Neighbours, rng: np.random.Generator) -> Neighbours:
        there = np.where(neighbours.partner < 0, -np.inf, neighbours.similarity)
        return neighbours.reordered(there.argmax(axis=1)[:, None])

    def below(self, local: Local) -> Local | Bare:
        return local

    def build(self, plan: Blueprint) -> nn.Module:
        return OnePartnerNetwork(plan.local.build(plan.features), plan, [self.hidden])
