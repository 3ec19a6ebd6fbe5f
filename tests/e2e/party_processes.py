"""Parties as real processes that are watched, stopped, killed and started again.

They are forked from a server that has imported everything, so that a party starts in a tenth of a second instead of
two to three; ``cold`` starts one as its owner would.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from job_fixtures import Place

SECONDS = 60.0  # more than any of these jobs takes on a busy machine
Before = Callable[[], object]
_warm = multiprocessing.get_context("forkserver")
_warm.set_forkserver_preload(
    ["pytest", "fedsim.cli.app", "fedsim.cli.party", "fedsim.runtime.run_local", "fedsim.training.hooks"]
)


class Running:
    """One process of a party."""

    def __init__(self, place: Place, name: str, before: Before | None = None, words: Sequence[str] = ()) -> None:
        self.name, self.log = name, place.log(name)
        arguments = ["party", str(place.job_path_of(name)), str(place.path(name)), *words]
        self._process = _warm.Process(target=_run, args=(arguments, self.log, before), daemon=True)
        self._process.start()

    def send(self, what: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, what)

    def kill(self) -> None:
        """SIGKILL: nothing is said, nothing is tidied up."""
        self.send(signal.SIGKILL)
        self._process.join()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float = SECONDS) -> int:
        self._process.join(seconds)
        if self.code is None:
            self.kill()
            raise AssertionError(f"{self.name} still ran after {seconds:.0f} s:\n{self.log.read_text()}")
        return self.code


@dataclass
class Crew:
    """The processes of one job; whoever still runs at the end of a test is killed."""

    place: Place
    before: Mapping[str, Before] = field(default_factory=dict)
    words: Sequence[str] = ()
    running: dict[str, Running] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        for name in names or self.place.names:
            self.running[name] = Running(self.place, name, self.before.get(name), self.words)

    def restart(self, name: str) -> None:
        self.running[name].kill()
        self.start(name)

    def wait(self, seconds: float = SECONDS) -> dict[str, int]:
        """The exit code of every process, once all have ended."""
        deadline = time.monotonic() + seconds
        return {name: one.wait(max(0.1, deadline - time.monotonic())) for name, one in self.running.items()}

    def finish(self, seconds: float = SECONDS) -> dict[str, str]:
        """Wait for all to end well; gives the hashes of what they learnt."""
        codes = self.wait(seconds)
        assert set(codes.values()) == {0}, f"{codes}\n{self.logs()}"
        assert "Traceback" not in self.logs(), self.logs()
        return self.place.hashes()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.said(name)}" for name in self.running)

    def said(self, name: str) -> str:
        """All that a party printed so far, in all its processes."""
        log = self.place.log(name)
        return log.read_text() if log.exists() else ""

    def until(self, happened: Callable[[], bool], seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.01)

    def until_step(self, step: int) -> None:
        """Wait until the primary has kept a checkpoint of this step or a later one."""
        self.until(lambda: self.place.checkpoint_step() >= step)


@contextmanager
def crew(place: Place, before: Mapping[str, Before] | None = None, words: Sequence[str] = ()) -> Iterator[Crew]:
    """Processes that do not outlive the test; ``before`` says what a party's process does first."""
    found = Crew(place, before or {}, words)
    try:
        yield found
    finally:
        for one in found.running.values():
            one.kill()


def cold(log: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """The command as a person types it."""
    command = Path(sys.executable).parent / "fedsim"
    with log.open("ab") as file:
        return subprocess.Popen([command, *map(str, arguments)], stdout=file, stderr=subprocess.STDOUT)


def setting(module: str, name: str, value: Any) -> Before:
    """Something to do before a process starts: give a constant another value."""
    return partial(_set, module, name, value)


def heartbeat(seconds: float) -> Before:
    """A peer that is silent for this time is taken for dead, instead of after 40 seconds."""
    return partial(_beat, seconds)


def slow_steps(seconds: float, *steps: int) -> Before:
    """A secondary that takes so much longer for some steps."""
    return partial(_slow, seconds, steps)


def fatal(moment: str) -> Before:
    """A process that kills itself as soon as a function, named as ``module:Class.method``, has returned."""
    return partial(_die_after, moment)


def few_descriptors(count: int) -> Before:
    """A process that may have so many files and connections open, and no more."""
    return partial(resource.setrlimit, resource.RLIMIT_NOFILE, (count, count))


def skewed_clock(seconds: float) -> Before:
    """A machine whose clock is ahead."""
    return partial(_skew, seconds)


def _set(module: str, name: str, value: Any) -> None:
    holder = import_module(module)
    getattr(holder, name)  # a misspelt setting must fail, or the test proves nothing
    setattr(holder, name, value)


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
    _set("fedsim.protocol.handshake", "time", wrong)


def _beat(seconds: float) -> None:
    grpc = import_module("fedsim.protocol.grpc_transport")
    pings = ("keepalive_time_ms", "keepalive_timeout_ms", "ping_timeout_ms", "ping_interval_without_data_ms")
    for options in (grpc.CLIENT_OPTIONS, grpc.SERVER_OPTIONS):
        options[:] = [(name, int(500 * seconds) if name.endswith(pings) else value) for name, value in options]


def _slow(seconds: float, steps: Sequence[int]) -> None:
    party = import_module("fedsim.splitnn.secondary_model").LocalSecondary
    activations = party.activations

    def slowly(self: Any, rows: Any, step: int) -> Any:
        time.sleep(seconds if step in steps else 0.0)
        return activations(self, rows, step)

    party.activations = slowly


def _run(arguments: list[str], log: Path, before: Before | None) -> None:
    """What the forked process does: become a party that writes to its log."""
    from fedsim.cli import main  # noqa: PLC0415

    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if before:
        before()
    main(arguments)
