"""One thread per test process, equal examples in continuous integration, and a word on what cannot be tested here."""

from __future__ import annotations

import logging
import os

# Test processes run side by side, and waiting OpenMP threads would slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

import chromium
import postgresql

# In continuous integration the same examples every time: a failure there is the change's own.
settings.register_profile("fedsim", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("fedsim")

ALL = "FEDSIM_TEST_ALL"


def machine() -> dict[str, str | None]:
    """What is tested with programs of this machine, and why it is not."""
    return {
        "browser": None if chromium.found() else "no Chromium is installed",
        "PostgreSQL": postgresql.obstacle(),
    }


def pytest_configure(config: pytest.Config) -> None:
    """Stop at once where everything has to be tested and cannot be."""
    lacking = [reason for reason in machine().values() if reason]
    if ALL in os.environ and lacking:
        pytest.exit(f"{ALL} is set, but {'; '.join(lacking)}; Debian: apt-get install chromium postgresql", 4)


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
