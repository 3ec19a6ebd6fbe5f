"""Everything that decides a training run, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsim.splitnn.below import Below
from fedsim.splitnn.lamb import Lamb
from fedsim.splitnn.local import Local
from fedsim.splitnn.method import Method
from fedsim.splitnn.methods import FedSim
from fedsim.splitnn.optimiser import Optimiser, check_rate
from fedsim.training.labels import LabelScale, MinMaxLabel
from fedsim.whole import whole_number


@dataclass(frozen=True)
class Config:
    """A job. ``patience`` is the number of epochs without a better one after which training ends; none: all epochs run.

    ``label`` scales numbers; classes need no scale. ``save_every`` counts epochs between checkpoints, ``save_steps``
    steps between those inside an epoch; none: there are none inside. ``device`` is ``cpu``, ``cuda`` or ``auto`` and
    changes nothing but speed and the last digits.
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
    save_steps: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "save_every", "save_steps"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(getattr(self, name), name, least=1))
        object.__setattr__(self, "seed", whole_number(self.seed, "seed", least=0))
        check_rate(self.optimiser.rate)

    @property
    def below(self) -> Below:
        """What the secondaries are told."""
        return Below(self.method.below(self.local), self.optimiser, self.seed)

    def steps_per_epoch(self, n_records: int) -> int:
        """How many batches so many training records make; the last may be smaller.

        >>> Config(batch=128).steps_per_epoch(300)
        3
        """
        return -(-n_records // self.batch)
