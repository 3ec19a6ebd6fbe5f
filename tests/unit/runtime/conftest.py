from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prediction_fixtures import World


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    trained = World(tmp_path, getattr(request, "param", {}))
    yield trained
    trained.close()
