"""Noise on what crosses the cut: on activations at the secondary, on gradients at the primary.

It comes from a secret of the party that sends, never from the job's seed, which the receiver knows. The noise of a row
is a function of the secret, the occasion and the row: a party that started anew sends what it would have sent, and
whoever asks for the same row on the same occasion again gets the same noise again, so asking twice averages nothing
away. An occasion is the weights that answer, or the values that are sent: what differs never shares its noise.

Letters: U rows, C width of the cut layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.privacy.keyed import BLOCK_KEY_BYTES, WORD, random_words, subkey
from fedsim.privacy.pair_noise import normal
from fedsim.splitnn.clip import clipped

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, repr=False)
class CutNoise:
    """Rows of length ``clip`` at most, with noise of deviation ``noise * clip`` on every number."""

    clip: float
    noise: float
    secret: bytes

    def __repr__(self) -> str:
        return f"CutNoise(clip={self.clip}, noise={self.noise})"

    def noisy(self, values: Tensor, rows: NDArray[Any], occasion: str) -> Tensor:
        """Values (U, C) of these rows with the noise of this occasion."""
        if self.noise == 0:
            return values
        key = subkey(self.secret, f"cut noise: {occasion}", BLOCK_KEY_BYTES)
        noise = np.empty(tuple(values.shape), np.float32)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            tile = slice(first, first + ROWS_AT_ONCE)
            noise[tile] = normal(random_words(key, _blocks(rows[tile], values.shape[1])))
        return values + (self.noise * self.clip) * torch.from_numpy(noise)

    def protected(self, values: Tensor, rows: NDArray[Any], occasion: str) -> Tensor:
        """Clipped as well, where the network does not do it by itself."""
        return self.noisy(clipped(values, self.clip), rows, occasion)


def of_step(purpose: str, step: int) -> str:
    """The occasion of a training step."""
    return f"{purpose} of step {step}"


def of_values(purpose: str, values: Tensor) -> str:
    """The occasion of sending these very values: two trainings, or two receivers, must not share their noise."""
    return f"{purpose}: {hashlib.sha256(values.detach().contiguous().numpy().tobytes()).hexdigest()}"


def of_weights(weights: Mapping[str, Tensor], asked: bytes = b"") -> str:
    """The occasion of an answer outside training: these very weights, and what was asked beside the rows."""
    digest = hashlib.sha256(asked)
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()}"


def _blocks(rows: NDArray[Any], width: int) -> NDArray[np.uint64]:
    """A block of two words for every number: its row and its column."""
    blocks = np.empty((len(rows), width, 2), WORD)
    blocks[..., 0] = rows.astype(np.uint64)[:, None]
    blocks[..., 1] = np.arange(width, dtype=np.uint64)
    return blocks
