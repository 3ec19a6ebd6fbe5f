"""The software and the machine on which a party's numbers depend."""

from __future__ import annotations

import platform
import sys

import numpy as np

from fedsim.version import VERSION


def versions_here() -> dict[str, str]:
    """Releases, and where torch is loaded what decides the last bit of a sum: its threads and its instructions.

    A process that has yet to load torch says it once more, in its log, when it has.
    """
    found = {"fedsim": VERSION, "python": platform.python_version(), "numpy": np.__version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        found |= {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
        found["threads"] = str(torch.get_num_threads())
    return found
