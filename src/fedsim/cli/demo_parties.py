"""The parties of the demo as processes of their own, watched through the files they write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsim.cli.demo_folder import Scene
from fedsim.cli.exit_codes import STOPPING
from fedsim.errors import PeerError
from fedsim.party.run_progress import FILE

LONGEST = 240.0  # seconds until the parties are stopped
LOOK = 0.2
GRACE = 5.0  # seconds in which those that are stopped may end by themselves
Process = subprocess.Popen[bytes]
Watch = Callable[[dict[str, Any]], None]


def run_parties(scene: Scene, watch: Watch) -> None:
    """Start all parties and stay until they have ended well; ``watch`` is told what the primary wrote last."""
    running: dict[str, Process] = {}
    with _signals_noted() as signals:
        try:
            for name in scene.parties:
                running[name] = _start(scene, name)
            _wait(scene, running, watch, signals)
        finally:
            _stop(running)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Note what would end this process: raised where it arrives, it could lose a party that has just been started."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals come to the main thread alone
        return
    before = {number: signal.signal(number, lambda seen, _: noted.append(seen)) for number in STOPPING}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def progress_of(folder: Path) -> dict[str, Any]:
    """What a party wrote last; nothing before its first word."""
    try:
        return dict(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _start(scene: Scene, name: str) -> Process:
    role = str(scene.parties[name].role)
    words = [sys.executable, "-m", "fedsim.cli", role, "job.toml", f"{name}.toml"]
    with _log(scene, name).open("wb") as out:
        return subprocess.Popen(words, cwd=scene.folder, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603


def _wait(scene: Scene, running: Mapping[str, Process], watch: Watch, signals: Sequence[int]) -> None:
    deadline = time.monotonic() + LONGEST
    while True:
        ends = {name: process.poll() for name, process in running.items()}
        if signals:
            raise KeyboardInterrupt
        failed = [name for name, end in ends.items() if end]
        if failed:
            raise PeerError(_last_words(scene, failed[0]))
        if None not in ends.values():
            return
        if time.monotonic() > deadline:
            raise PeerError(f"the parties were not done after {LONGEST:.0f} seconds; look at {_log(scene, 'city')}")
        watch(progress_of(scene.run_of("city")))
        time.sleep(LOOK)


def _last_words(scene: Scene, name: str) -> str:
    lines = _log(scene, name).read_text(encoding="utf-8", errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "nothing")
    return f"{name} failed and said '{said.removeprefix('error: ')}'; all of it is in {_log(scene, name)}"


def _log(scene: Scene, name: str) -> Path:
    return scene.folder / f"{name}.log"


def _stop(running: Mapping[str, Process]) -> None:
    for process in running.values():
        if process.poll() is None:
            process.terminate()
    for process in running.values():
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
