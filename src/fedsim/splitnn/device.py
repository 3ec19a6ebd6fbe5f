"""Where to compute."""

from __future__ import annotations

import torch

from fedsim.errors import DeviceError, SettingError

NAMES = ("auto", "cpu", "cuda")


def device_named(name: str) -> torch.device:
    """``cpu``, ``cuda``, or whichever is there (``auto``).

    >>> device_named("cpu")
    device(type='cpu')
    """
    if name not in NAMES:
        raise SettingError(f"device '{name}' is unknown; choose {', '.join(NAMES)}")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise DeviceError("device 'cuda' was asked for, but torch sees no GPU here; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and there else "cpu")
