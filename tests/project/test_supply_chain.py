"""Two wheels of the same sources are equal."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("FEDSIM_WHEEL" not in os.environ, reason="builds two wheels; set FEDSIM_WHEEL to run it")
def test_two_wheels_of_the_same_sources_are_equal_byte_for_byte(tmp_path):
    hashes = []
    for name in ("first", "second"):
        sources = tmp_path / name
        for part in ("src", "pyproject.toml", "README.md", "LICENSE"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, sources / part if (ROOT / part).is_dir() else _folder(sources) / part)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", "."]
        subprocess.run(command, cwd=sources, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
        (wheel,) = (sources / "out").glob("*.whl")
        hashes.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert hashes[0] == hashes[1]


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
