"""One training of an experiment: which method, on which inputs, with which settings."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.errors import SettingError

PARTNERS = ("real", "placebo", "shuffled")
INPUTS = ("features", "identifiers", "secondary")


@dataclass(frozen=True)
class Rung:
    """``preset`` and ``method`` are words of ``choices.py``; what is ``None`` is as the preset has it.

    ``partner``: ``placebo`` has the partner's feature rows shuffled and its links kept, ``shuffled`` gives every record
    the links of another. ``inputs``: the primary's features, these and its own ``identifiers``, or, for a method
    without partners, the features of the most similar record of the ``secondary`` alone. ``pieces``, such as ``13``:
    the secondary's columns are cut into three parties, and these take part (paper, appendix "Multi-Party FedSim").
    ``hidden`` is the width of the hidden layer of every party's local network.
    """

    key: str
    name: str
    method: str
    preset: str = "modern"
    partner: str = "real"
    inputs: str = "features"
    pieces: str = ""
    k: int | None = None
    epochs: int | None = None
    batch: int | None = None
    rate: float | None = None
    patience: int | None = None
    hidden: int | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        for setting, known in (("partner", PARTNERS), ("inputs", INPUTS)):
            if getattr(self, setting) not in known:
                raise SettingError(f"{setting} '{getattr(self, setting)}' is unknown; choose {' or '.join(known)}")
