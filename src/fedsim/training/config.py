"""Everything that decides a training run, in one frozen value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SettingError
from fedsim.splitnn.lamb import Lamb
from fedsim.splitnn.local import Local
from fedsim.splitnn.method import Method
from fedsim.splitnn.methods import FedSim
from fedsim.splitnn.optimiser import Optimiser
from fedsim.training.labels import LabelScale, MinMaxLabel
from fedsim.whole import whole_number


@dataclass(frozen=True)
class Config:
    """A job. ``patience`` is the number of epochs without a better one after which training ends; none: all epochs run.

    ``label`` scales numbers; classes need no scale. ``save_every`` counts epochs between checkpoints. ``device`` is
    ``cpu``, ``cuda`` or ``auto`` and changes nothing but speed and the last digits.
    """

    method: Method = field(default_factory=FedSim)
    local: Local = field(default_factory=Local)
    optimiser: Optimiser = field(default_factory=Lamb)
    label: LabelScale = field(default_factory=MinMaxLabel)
    epochs: int = 100
    batch: int = 128
    patience: int | None = None
    seed: int = 0
    save_every: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "save_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(getattr(self, name), name, least=1))
        object.__setattr__(self, "seed", whole_number(self.seed, "seed", least=0))
        rate = self.optimiser.rate
        if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not rate > 0:
            raise SettingError("a learning rate is a number above zero")


def describe(value: Any) -> Any:
    """A setting as plain JSON values, so that two can be compared.

    >>> describe(MinMaxLabel())
    {'kind': 'MinMaxLabel'}
    """
    if is_dataclass(value):
        inside = {entry.name: describe(getattr(value, entry.name)) for entry in fields(value)}
        return {"kind": type(value).__name__, **inside}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    return [describe(entry) for entry in value] if isinstance(value, tuple) else value


def fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """Twelve digits that stand for these arrays; they stay with the party that holds them."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:12]
