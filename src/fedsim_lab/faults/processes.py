"""Parties as real processes that are monitored, stopped, killed and restarted.

They are forked from a server that has imported everything, so that a party starts in a tenth of a second instead of two
to three seconds; ``cold`` starts one as its owner would.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.context
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

from fedsim.errors import FedSimError
from fedsim_lab.faults.local_job import RELAY, LocalJob

SECONDS = 300.0  # more than any of these jobs takes on a busy machine
CLOCK_SHIM = Path(__file__).with_name("clock_shim.c")
Before = Callable[[], object]
_warm = multiprocessing.get_context("forkserver")
# Everything a party imports before and while it runs, except gRPC, which must not be loaded before a fork.
_warm.set_forkserver_preload(
    [
        "pytest",
        "fedsim.cli.app",
        "fedsim.cli.party",
        "fedsim.report.run_report",
        "fedsim.runtime.run_local",
        "fedsim_ops.tracking",
        "numba.core.typing.cffi_utils",
        "torch._dynamo",
    ]
)


class ProcessError(FedSimError):
    """A party's process did not do what it should; the message has its log."""


class PartyProcess:
    """One process of a party, or the relay."""

    def __init__(self, place: LocalJob, name: str, before: Before | None = None, words: Sequence[str] = ()) -> None:
        self.name, self.log = name, place.log(name)
        self._process = start_command([*place.command(name), *words], self.log, before)

    def send(self, what: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._process.is_alive():
            os.kill(self.pid, what)

    def kill(self) -> None:
        """Send SIGKILL: the process cannot report or clean up anything."""
        self.send(signal.SIGKILL)
        self._process.join()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        """The exit code; ``None`` while the process runs."""
        return self._process.exitcode

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for the end and return the exit code; kill a process that takes longer."""
        self._process.join(seconds)
        if self.code is None:
            self.kill()
            fault = f"{self.name} still ran after {seconds:.0f} s:\n{self.log.read_text()}"
            raise ProcessError(fault, code="still-running")
        return self.code


@dataclass
class PartyProcesses:
    """The processes of one job; those still running at the end of a test are killed."""

    place: LocalJob
    before: Mapping[str, Before] = field(default_factory=dict)
    words: Sequence[str] = ()
    running: dict[str, PartyProcess] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, PartyProcess]:
        """The processes that end on their own: all except the relay."""
        return {name: one for name, one in self.running.items() if name != RELAY}

    def start(self, *names: str) -> None:
        """Start these parties, or all parties and the relay."""
        everybody = [RELAY, *self.place.names] if self.place.relay_address else self.place.names
        for name in names or everybody:
            self.running[name] = PartyProcess(self.place, name, self.before.get(name), self.words)

    def restart(self, name: str) -> None:
        """Kill a party and start it again."""
        self.running[name].kill()
        self.start(name)

    def wait(self, seconds: float = SECONDS) -> dict[str, int]:
        """Wait for all processes to end and return their exit codes."""
        deadline = time.monotonic() + seconds
        return {name: one.wait(max(0.1, deadline - time.monotonic())) for name, one in self.members.items()}

    def finish(self, seconds: float = SECONDS) -> dict[str, str]:
        """Wait for all to finish successfully; return the hashes of what they learnt."""
        codes = self.wait(seconds)
        if set(codes.values()) != {0} or "Traceback" in self.logs():
            raise ProcessError(f"{codes}\n{self.logs()}", code="party-failed")
        return self.place.hashes()

    def logs(self) -> str:
        """Return all logs as one text."""
        return "\n".join(f"--- {name}\n{self.output_of(name)}" for name in self.running)

    def output_of(self, name: str) -> str:
        """Return everything that a party has printed so far, in all its processes."""
        log = self.place.log(name)
        return log.read_text() if log.exists() else ""

    def until(self, happened: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait until something has happened."""
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                raise ProcessError(self.logs(), code="too-slow")
            time.sleep(0.01)

    def until_step(self, step: int, seconds: float = SECONDS) -> None:
        """Wait until the primary has saved a checkpoint of this step or a later one."""
        checkpoints = self.place.checkpoints()
        self.until(lambda: max(checkpoints.steps(), default=-1) >= step, seconds)


@contextmanager
def party_processes(
    place: LocalJob, before: Mapping[str, Before] | None = None, words: Sequence[str] = ()
) -> Iterator[PartyProcesses]:
    """Yield processes that do not outlive the test; ``before`` is what a party's process does first."""
    found = PartyProcesses(place, before or {}, words)
    try:
        yield found
    finally:
        for one in found.running.values():
            one.kill()


def start_command(
    words: Sequence[str], log: Path, before: Before | None = None
) -> multiprocessing.context.ForkServerProcess:
    """Start the command in the current folder, in a separate process that writes to a log."""
    process = _warm.Process(target=_run, args=(list(words), Path.cwd(), log, before), daemon=True)
    process.start()
    return process


def cold(log: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """Start the command as a user would type it."""
    command = Path(sys.executable).parent / "fedsim"
    with log.open("ab") as file:
        return subprocess.Popen([command, *map(str, arguments)], stdout=file, stderr=subprocess.STDOUT)  # noqa: S603


def setting(module: str, name: str, value: Any) -> Before:
    """Return a hook that sets a constant before a process starts."""
    return partial(set_constant, module, name, value)


def heartbeat(seconds: float) -> Before:
    """Return a hook that declares a silent peer dead after this time instead of 40 seconds."""
    return partial(_beat, seconds)


def each(*hooks: Before) -> Before:
    """Combine several hooks that run before a process starts."""
    return partial(_do_each, hooks)


def shifted_clock(path: Path) -> Before:
    """Return a hook that shifts the wall clock by the seconds in a :func:`set_clock` file; needs the preloaded shim."""
    return partial(_shift_clock, str(path))


def set_clock(path: Path, seconds: int) -> None:
    """Shift the clock of the processes that use this file."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("=q", seconds))


def can_shift_clock() -> bool:
    """Return whether this machine can compile the shim that shifts clocks."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def preload_clock_shim(folder: Path) -> None:
    """Compile the shim into a folder and start the server of all later processes with it.

    libfaketime would do, but version 0.9.10 breaks the sleep of Python 3.11 unless it shifts the monotonic clock too.
    """
    library = folder.resolve() / "clock_shim.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK_SHIM), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own words
    os.environ["LD_PRELOAD"] = str(library)
    try:
        ensure_running()
    finally:
        del os.environ["LD_PRELOAD"]


def set_constant(module: str, name: str, value: Any) -> None:
    """Give a constant of a module another value in this process."""
    holder = import_module(module)
    getattr(holder, name)  # a misspelt setting must fail, or the test proves nothing
    setattr(holder, name, value)


def _do_each(hooks: Sequence[Before]) -> None:
    for hook in hooks:
        hook()


def _shift_clock(path: str) -> None:
    if ctypes.CDLL(None).shift_clock_by(path.encode()):
        raise ProcessError(f"cannot read the clock file {path}", code="no-clock-file")


def _beat(seconds: float) -> None:
    grpc = import_module("fedsim.protocol.grpc_transport")
    pings = ("keepalive_time_ms", "keepalive_timeout_ms", "ping_timeout_ms", "ping_interval_without_data_ms")
    for options in (grpc.CLIENT_OPTIONS, grpc.SERVER_OPTIONS):
        options[:] = [(name, int(500 * seconds) if name.endswith(pings) else value) for name, value in options]


def _run(arguments: list[str], folder: Path, log: Path, before: Before | None) -> None:
    """Run a command in the forked process, with its output in the log."""
    from fedsim.cli import main  # noqa: PLC0415

    os.chdir(folder)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if before:
        before()
    main(arguments)
