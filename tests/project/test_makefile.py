"""What a newcomer sees of ``make`` before anything of FedSim is installed, and what the two first commands print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLD = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2; exit 1\n'
NEW = '#!/bin/sh\necho "$0" "$@" >> {log}\n[ "$2" = venv ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python\nexit 0\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile and ``bin``, where ``python3`` and all newer names are too old."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        program(tmp_path / "bin" / name, OLD)
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text.replace("{log}", str(path.parents[1] / "calls")))
    path.chmod(0o755)


def make(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{project / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"}
    return subprocess.run(
        [shutil.which("make") or "make", *words],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("target", ["install", "setup"])
def test_an_old_python_is_reported_in_one_line(project: Path, target: str) -> None:
    done = make(project, target)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "Python 3.9.2" in done.stderr
    assert "3.11 or newer" in done.stderr
    assert not (project / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_used(project: Path) -> None:
    program(project / "bin" / "python3.12", NEW)
    assert make(project, "install").returncode == 0
    assert f"{project}/bin/python3.12 -m venv" in (project / "calls").read_text()


def test_an_environment_of_an_old_python_is_replaced(project: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    program(project / ".venv" / "bin" / "python", OLD)
    assert make(project, "install", f"PYTHON={sys.executable}", "PIP=true").returncode == 0
    code = "import sys; assert sys.version_info >= (3, 11)"
    subprocess.run([project / ".venv" / "bin" / "python", "-c", code], check=True)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_first_line_says_how_long_it_takes(project: Path, target: str) -> None:
    program(project / "bin" / "python3", NEW)
    make(project, "setup")
    program(project / ".venv" / "bin" / "fedsim", "#!/bin/sh\n")
    done = make(project, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "minutes" in done.stdout.splitlines()[0]


def test_both_first_commands_stand_near_the_top_of_the_readme() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert {"$ make demo", "$ make test"} <= {line.split("  ")[0] for line in lines[:40]}
