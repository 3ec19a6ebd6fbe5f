"""Look into the gates of FedSim (paper, appendix "Visualization"): what weight a similarity gets, which rows count.

Letters: B records, K partners of a list, R outputs per pair, T outputs of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsim.splitnn.links import Batch
from fedsim.splitnn.methods.fedsim import FedSimNetwork

STEPS = 50


def integrated_gradients(
    function: Callable[[Sequence[Tensor]], Tensor], inputs: Sequence[Tensor], steps: int = STEPS
) -> list[Tensor]:
    """How much each input contributes to the outputs, against an input of zeros (Sundararajan et al., 2017).

    ``function`` maps the inputs to one number per record. The path integral is a Gauss-Legendre sum, so that the
    contributions of a record add up to its output less that of zeros.
    """
    places, weights = np.polynomial.legendre.leggauss(steps)
    totals = [torch.zeros_like(entry) for entry in inputs]
    for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
        scaled = [(entry.detach() * place).requires_grad_() for entry in inputs]
        with torch.enable_grad():
            slopes = torch.autograd.grad(function(scaled).sum(), scaled)
        for total, slope in zip(totals, slopes, strict=True):
            total.add_(slope, alpha=float(weight))
    return [entry.detach() * total for entry, total in zip(inputs, totals, strict=True)]


def merge_contributions(network: FedSimNetwork, batch: Batch, steps: int = STEPS) -> list[Tensor]:
    """What each weighted output contributes to the prediction, (B, K, R) per list; of classes, to the likeliest."""
    with torch.no_grad():
        primary, lists = network.weighted(batch)
        likeliest = network.task.predict(network.merge(lists, primary, None)).argmax(dim=1, keepdim=True)  # (B, 1)

    def prediction(outputs: Sequence[Tensor]) -> Tensor:
        moved = [replace(weighted, outputs=entry) for weighted, entry in zip(lists, outputs, strict=True)]
        return network.task.predict(network.merge(moved, primary, None)).gather(1, likeliest).squeeze(1)  # (B,)

    return integrated_gradients(prediction, [weighted.outputs for weighted in lists], steps)


@torch.no_grad()
def learnt_weights(network: FedSimNetwork, similarity: Tensor) -> list[Tensor]:
    """The weight of each similarity, for every list."""
    return [gates.weigh(similarity.unsqueeze(0)).squeeze(0) for gates in network.gates()]
