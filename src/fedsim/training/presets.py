"""Two presets: ``paper`` to reproduce, ``modern`` to use."""

from __future__ import annotations

from fedsim.splitnn.adamw import AdamW
from fedsim.splitnn.encodings import Piecewise
from fedsim.splitnn.gates.attention import AttentionMerge
from fedsim.splitnn.lamb import Lamb
from fedsim.splitnn.local import Local
from fedsim.splitnn.method import Method
from fedsim.splitnn.methods import FedSim
from fedsim.splitnn.schedule import WarmCosine
from fedsim.training.config import Config
from fedsim.training.labels import MinMaxLabel, StandardLabel


def paper(method: Method | None = None, *, epochs: int = 100, batch: int = 128, seed: int = 0) -> Config:
    """The paper's network, LAMB and min-max label, with the sizes of ``hdb``."""
    return Config(
        method=method or FedSim(),
        local=Local(hidden=(200,), cut=100),
        optimiser=Lamb(rate=1e-3, decay=1e-4),
        label=MinMaxLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


def modern(method: Method | None = None, *, epochs: int = 60, batch: int = 512, seed: int = 0) -> Config:
    """The product's default: encoded numbers, attention beside the convolution, AdamW with a cosine, linear output."""
    return Config(
        method=method or FedSim(hidden=128, outputs=16, similarity_bins=16, merge=AttentionMerge()),
        local=Local(encoding=Piecewise(), hidden=(256,), cut=128, dropout=0.1),
        optimiser=AdamW(rate=2e-3, decay=1e-2, schedule=WarmCosine()),
        label=StandardLabel(),
        epochs=epochs,
        batch=batch,
        seed=seed,
    )
