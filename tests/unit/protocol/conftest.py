"""What the tests of the protocol share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fedsim.protocol import handshake


@pytest.fixture
def others():
    """Somebody who waits while the test goes on."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def short_pauses(monkeypatch):
    """Retry a failed dial without delay."""
    monkeypatch.setattr(handshake, "BACK_OFF", 0.001)
