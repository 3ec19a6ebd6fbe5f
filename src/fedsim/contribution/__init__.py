"""What a partner's data adds: the ladder of trainings and the intervals of their differences."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim.contribution.ladder import Ladder, train_ladder
    from fedsim.contribution.rungs import Rung

__all__ = ["Ladder", "Rung", "train_ladder"]

__getattr__ = lazy_exports(__name__, {"ladder": ["Ladder", "train_ladder"], "rungs": ["Rung"]})
