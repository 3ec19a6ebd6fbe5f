from __future__ import annotations

import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from lab_fixtures import STUDY, Reproduced, reproduce


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "figure-k.toml").write_text(STUDY)
    return tmp_path


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    folder = tmp_path_factory.mktemp("study")
    (folder / "figure-k.toml").write_text(STUDY)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert reproduce(folder, "figure-k", "--seeds", "1") == 0
    return Reproduced(folder, out.getvalue(), err.getvalue())


@pytest.fixture
def reproduced(first_run: Reproduced, tmp_path: Path) -> Reproduced:
    """Return a copy of the first run that a test may continue."""
    return replace(first_run, folder=Path(shutil.copytree(first_run.folder, tmp_path / "study")))
