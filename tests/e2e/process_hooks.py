"""What a process does before it becomes a party, so that it is slow, short of descriptors, late, or dies."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Sequence
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedsim_lab.faults.processes import Before, set_constant


def slow_steps(seconds: float, *steps: int) -> Before:
    """A secondary that takes so much longer for some steps."""
    return partial(_slow, seconds, steps)


def held_step(step: int, until: Path) -> Before:
    """A secondary that answers this step as soon as the file exists."""
    return partial(_hold, step, until)


def fatal(moment: str) -> Before:
    """A process that kills itself as soon as a function, named as ``module:Class.method``, has returned."""
    return partial(_die_after, moment)


def few_descriptors(count: int) -> Before:
    """Limit the number of files and connections that this process may have open."""
    return partial(resource.setrlimit, resource.RLIMIT_NOFILE, (count, count))


def skewed_clock(seconds: float) -> Before:
    """A machine whose clock is ahead."""
    return partial(_skew, seconds)


def _die_after(moment: str) -> None:
    module, _, name = moment.partition(":")
    *above, last = name.split(".")
    holder = reduce(getattr, above, import_module(module))
    function = getattr(holder, last)

    def once(*given: Any, **named: Any) -> None:
        function(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(holder, last, once)


def _skew(seconds: float) -> None:
    """Only what a party says of its clock: gRPC would stumble over one that differs from the kernel's."""
    wrong = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic, sleep=time.sleep)
    set_constant("fedsim.protocol.handshake", "time", wrong)


def _slow(seconds: float, steps: Sequence[int]) -> None:
    party = import_module("fedsim.splitnn.secondary_model").LocalSecondary
    activations = party.activations

    def slowly(self: Any, rows: Any, step: int) -> Any:
        time.sleep(seconds if step in steps else 0.0)
        return activations(self, rows, step)

    party.activations = slowly


def _hold(held: int, until: Path) -> None:
    party = import_module("fedsim.splitnn.secondary_model").LocalSecondary
    activations = party.activations

    def patiently(self: Any, rows: Any, step: int) -> Any:
        while step == held and not until.exists():
            time.sleep(0.01)
        return activations(self, rows, step)

    party.activations = patiently
