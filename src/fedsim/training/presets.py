"""Two presets: ``paper`` to reproduce, ``modern`` to use; ``splitnn.below`` has what they say below the cut."""

from __future__ import annotations

from fedsim.splitnn.below import LOCALS, OPTIMISERS
from fedsim.splitnn.gates.attention import AttentionMerge
from fedsim.splitnn.method import Method
from fedsim.splitnn.methods import FedSim
from fedsim.training.config import Config
from fedsim.training.labels import MinMaxLabel, StandardLabel


def paper(method: Method | None = None, *, epochs: int = 100, batch: int = 128, seed: int = 0) -> Config:
    """The paper's network, LAMB and min-max label, with the sizes of ``hdb``."""
    return Config(
        method=method or FedSim(),
        local=LOCALS["paper"],
        optimiser=OPTIMISERS["paper"],
        label=MinMaxLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


def modern(method: Method | None = None, *, epochs: int = 60, batch: int = 512, seed: int = 0) -> Config:
    """The product's default: encoded numbers, attention beside the convolution, AdamW with a cosine, linear output."""
    return Config(
        method=method or FedSim(hidden=128, outputs=16, similarity_bins=16, merge=AttentionMerge()),
        local=LOCALS["modern"],
        optimiser=OPTIMISERS["modern"],
        label=StandardLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )
