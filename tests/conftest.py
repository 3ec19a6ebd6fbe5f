"""One thread per test process, equal examples in continuous integration, and a word on what cannot be tested here."""

from __future__ import annotations

import logging
import os
import tomllib
from functools import cache
from importlib.metadata import entry_points
from itertools import chain, zip_longest
from pathlib import Path

# Test processes run side by side, and waiting OpenMP threads would slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import typer.main
import typer.testing
from hypothesis import settings

import chromium
import fedsim.protocol  # noqa: F401 - before anybody imports gRPC, which reads its settings then
import postgresql

# In continuous integration the same examples every time: a failure there is the change's own.
settings.register_profile("fedsim", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedsim")

# A process of its own builds the tree of commands once; here hundreds of commands share it.
typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)

ALL = "FEDSIM_TEST_ALL"


def machine() -> dict[str, str | None]:
    """What is tested with programs of this machine, and why it is not."""
    return {
        "browser": None if chromium.found() else "no Chromium is installed",
        "PostgreSQL": postgresql.obstacle(),
    }


def pytest_configure(config: pytest.Config) -> None:
    """Stop at once where packages would not be found, or where everything has to be tested and cannot be."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    plugins = {plugin.name: plugin.value for plugin in entry_points(group="fedsim.plugins")}
    if not project["entry-points"]["fedsim.plugins"].items() <= plugins.items():
        command = "python -m pip install --no-deps --no-build-isolation --no-index --editable ."
        pytest.exit(f"the entry points of pyproject.toml are not installed; run: {command}", 4)
    lacking = [reason for reason in machine().values() if reason]
    if ALL in os.environ and lacking:
        pytest.exit(f"{ALL} is set, but {'; '.join(lacking)}; Debian: apt-get install chromium postgresql", 4)


SLOW_FOLDERS = ("docs", "unit/audit", "unit/lab", "unit/cli")  # the files that take longest, first to start
WAITING_FOLDER = "e2e"  # whose tests take long as well, but leave the processor to others while they wait


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the slow files first: each is run by one process, which should not be the last to finish.

    Files that wait take turns with files that compute, so that neither processors nor workers are idle.
    """
    root = Path(__file__).parent
    rank = {root / folder: position for position, folder in enumerate(SLOW_FOLDERS)}
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    computing = sorted(files, key=lambda path: min(rank.get(parent, len(rank)) for parent in path.parents))
    waiting = [path for path in computing if root / WAITING_FOLDER in path.parents]
    computing = [path for path in computing if path not in waiting]
    turns = chain.from_iterable(zip_longest(waiting, computing))
    items[:] = [item for path in turns if path for item in files[path]]


def pytest_runtest_teardown() -> None:
    """A command sets up the log of its whole process; the next test finds it as it was."""
    log = logging.getLogger("fedsim")
    log.handlers = []
    log.setLevel(logging.NOTSET)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a run say what was left out for want of a program."""
    for what, reason in machine().items():
        if reason:
            terminalreporter.write_line(f"{what}: NOT TESTED, {reason}", yellow=True)
        else:
            terminalreporter.write_line(f"{what}: found on this machine")
