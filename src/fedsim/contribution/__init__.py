"""What a partner's data adds: the ladder of trainings and the intervals of their differences."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.contribution.ladder import Ladder, LadderTraining, train_ladder
    from fedsim.contribution.rungs import Rung

__all__ = ["Ladder", "LadderTraining", "Rung", "train_ladder"]


def __getattr__(name: str) -> Any:
    """Import a public name, and torch with it, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'fedsim.contribution' has no attribute '{name}'")
    return getattr(import_module("fedsim.contribution.rungs" if name == "Rung" else "fedsim.contribution.ladder"), name)
