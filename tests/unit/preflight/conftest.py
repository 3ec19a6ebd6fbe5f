"""A job with all files in place, as a folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from job_fixtures import PARTIES, approve_now, change, fill


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ready")
    fill(folder)
    change(folder / "job.toml", "batch_size = 256", "batch_size = 2")  # enough steps for so few records
    for name in PARTIES:
        approve_now(folder, name)
    return folder


@pytest.fixture
def folder(ready, tmp_path) -> Path:
    return Path(shutil.copytree(ready, tmp_path / "job"))
