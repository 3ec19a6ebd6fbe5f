"""A cut layer whose rows have a bounded length, so that noise on them can promise something.

Letters: B records, C width of the cut layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsim.errors import SettingError
from fedsim.splitnn.features import FeatureTensors

TINY = 1e-12


def clipped(rows: Tensor, clip: float) -> Tensor:
    """Rows scaled down to a length of at most ``clip``, (B, C) -> (B, C); gradients flow through it.

    >>> clipped(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0).norm(dim=1).tolist()
    [1.0, 0.5]
    """
    length: Tensor = rows.norm(dim=1, keepdim=True)  # (B, 1)
    return rows * (clip / length.clamp_min(TINY)).clamp_max(1.0)


class Clipped(nn.Module):
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
        return clipped(self.network(features, generator), self.clip)
