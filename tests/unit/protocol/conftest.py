"""What the tests of the protocol share."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsim.protocol import session


@pytest.fixture
def others():
    """Somebody who waits while the test goes on."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def short_pauses(monkeypatch):
    """Retry a failed dial without delay."""
    monkeypatch.setattr(session, "RETRY_SECONDS", 0.001)


@pytest.fixture
def memory_limit():
    """Another 256 MB of memory at most."""
    before, pages = resource.getrlimit(resource.RLIMIT_AS), int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
