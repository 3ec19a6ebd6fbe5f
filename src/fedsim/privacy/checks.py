"""Questions that settings of the mathematics answer before it begins."""

from __future__ import annotations

import math

import numpy as np

from fedsim.errors import SettingError


def check_positive(**settings: float) -> None:
    """Every setting is a finite number above zero."""
    for name, value in settings.items():
        if not (isinstance(value, int | float | np.number) and math.isfinite(value) and value > 0):
            raise SettingError(f"{name}={value}; a number above 0 is needed")


def check_share(**settings: float) -> None:
    """Every setting is a share from zero to one."""
    for name, value in settings.items():
        if not (isinstance(value, int | float | np.number) and 0 <= value <= 1):
            raise SettingError(f"{name}={value}; a share from 0 to 1 is needed")
