from __future__ import annotations

from pathlib import Path

import pytest

from job_fixtures import lay_out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("audit")
    lay_out(place)
    return place
