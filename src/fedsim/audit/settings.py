"""How hard an audit tries, and what counts as too much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedsim.errors import SettingError
from fedsim.whole import whole_number

FEWEST_RECORDS = 20
DEFAULT_MEMORY = 4 << 30
EPOCHS, TARGETS = 3, 500  # of an audit that others may rely on


@dataclass(frozen=True)
class Settings:
    """``limit`` is the largest advantage over blind guessing that may pass, on a scale from 0 to 1 (certainty).

    A place counts as found within ``metres``. Tables beyond ``most_records`` are sampled; ``targets`` is the number of
    records the slow attacks try, ``tries`` that of settings the advice tries for one finding; no attack runs that
    needs more than ``memory`` bytes.
    """

    limit: float = 0.01
    metres: float = 500.0
    seed: int = 0
    most_records: int = 5_000
    epochs: int = EPOCHS
    targets: int = TARGETS
    tries: int = 4
    memory: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        if not 0 <= self.limit < 1:
            raise SettingError(f"limit={self.limit}; an advantage over guessing lies from 0 to below 1")
        if not (math.isfinite(self.metres) and self.metres > 0):
            raise SettingError(f"metres={self.metres}; how near a guess must be is a number above 0")
        whole_number(self.seed, "seed", least=0)
        whole_number(self.most_records, "most_records", least=FEWEST_RECORDS)
        whole_number(self.epochs, "epochs", least=1)
        whole_number(self.targets, "targets", least=10)
        whole_number(self.tries, "tries", least=0)

    @property
    def quick(self) -> bool:
        """Whether attacks had less to go by than usual: a first look, which an owner should not rely on."""
        return self.targets < TARGETS or self.epochs < EPOCHS

    def as_dict(self) -> dict[str, Any]:
        """What a reader must know to judge the figures, in types that JSON has."""
        return {
            "quick": self.quick,
            "most_records": self.most_records,
            "metres": self.metres,
            "epochs": self.epochs,
            "targets": self.targets,
            "seed": self.seed,
        }
