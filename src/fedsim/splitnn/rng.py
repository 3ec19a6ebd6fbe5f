"""Reproducible random numbers, derived from the job's seed, the party, the purpose and the training step.

A generator is made anew for every step, so there is no generator state to save: a party that starts again at step 700
draws what it would have drawn, and no party needs another's draws.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import torch

CPU = torch.device("cpu")


def derive_seed(seed: int, party: str, purpose: str, step: int = 0) -> int:
    """The first 63 bits of SHA-256 over the four, written as a JSON list.

    >>> derive_seed(0, "primary", "dropout", 7)
    5529237731233410334
    """
    digest = hashlib.sha256(json.dumps([seed, party, purpose, step]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True)
class RandomSource:
    """One party's source of chance."""

    seed: int
    party: str

    def generator(self, purpose: str, step: int = 0, device: torch.device = CPU) -> torch.Generator:
        """A torch generator for this purpose at this step."""
        return torch.Generator(device).manual_seed(self.step_seed(purpose, step))

    def step_seed(self, purpose: str, step: int = 0) -> int:
        """The seed of this purpose at this step."""
        return derive_seed(self.seed, self.party, purpose, step)

    def rng(self, purpose: str) -> np.random.Generator:
        """A NumPy generator for what is drawn once, at preparation."""
        return np.random.default_rng(self.step_seed(purpose))
