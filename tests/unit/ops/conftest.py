"""Small tiles and chunks, so that few records make many."""

import pytest

from fedsim_ops import search_tiles


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 40 queries; chunks of 32 places, or of a few texts or filters."""
    monkeypatch.setattr(search_tiles, "RECORDS_PER_TASK", 40)
    monkeypatch.setattr(search_tiles, "CHUNK_BYTES", 512)
