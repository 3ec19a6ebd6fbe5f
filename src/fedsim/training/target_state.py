"""How labels reach the network and predictions come back, as plain JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsim.errors import FileError, SettingError
from fedsim.splitnn.tasks import BoundedRegression, Regression
from fedsim.training.labels import Classes, Numbers, Target


def target_state(target: Target) -> dict[str, Any]:
    """What :func:`target_from` needs.

    >>> target_state(Classes((5, 6, 7)))
    {'classes': [5, 6, 7]}
    """
    if isinstance(target, Numbers):
        return {"shift": target.shift, "scale": target.scale, "bounded": isinstance(target.task, BoundedRegression)}
    if isinstance(target, Classes):
        return {"classes": list(target.classes)}
    raise SettingError(f"labels scaled by {type(target).__name__} cannot be saved")


def target_from(state: Mapping[str, Any]) -> Target:
    """The target that :func:`target_state` described."""
    try:
        if "classes" in state:
            classes = state["classes"]  # earlier models say how many there are
            return Classes(tuple(range(classes) if isinstance(classes, int) else classes))
        return Numbers(state["shift"], state["scale"], BoundedRegression() if state["bounded"] else Regression())
    except (LookupError, TypeError) as error:
        raise FileError(f"the labels' scale cannot be read ({type(error).__name__}); save the model again") from error
