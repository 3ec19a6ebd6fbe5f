"""What continuous integration does where the programs that some tests need are there, or can or cannot be installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
MAKE = '#!/bin/sh\necho "make $@, all: ${FEDSIM_TEST_ALL:-no}"\n'
APT = '#!/bin/sh\necho "apt-get $@"\n'
ROOT_USER = "#!/bin/sh\necho 0\n"
STEPS = ("format lint types imports", "test", "examples docs fuzz", "integrations", "slow")


def steps(skipping: str) -> str:
    """What ``make`` says when everything passes; ``skipping`` is no where tests may be skipped."""
    return "".join(f"make {step}, all: {skipping}\n" for step in STEPS)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with the script and ``bin``, the only programs it finds; ``make`` only says what it was asked."""
    for name in (".ci", "bin"):
        (tmp_path / name).mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci" / "run")
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    program(tmp_path, "make", MAKE)
    program(tmp_path, "id", ROOT_USER)
    program(tmp_path, "initdb")
    return tmp_path


def program(machine: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    (machine / "bin" / name).write_text(text)
    (machine / "bin" / name).chmod(0o755)


def run(machine: Path) -> tuple[str, str]:
    words, env = [machine / "bin" / "bash", machine / ".ci" / "run"], {"PATH": str(machine / "bin")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


def test_where_all_is_there_no_test_may_be_skipped(machine: Path) -> None:
    program(machine, "chromium")
    assert run(machine) == (steps("1"), "")


def test_what_is_missing_is_installed_by_root(machine: Path) -> None:
    program(machine, "apt-get", APT)
    output, _ = run(machine)
    assert "apt-get install -y -qq --no-install-recommends chromium\n" in output
    assert output.endswith(steps("1"))


def test_what_cannot_be_installed_is_said_and_skipped(machine: Path) -> None:
    output, errors = run(machine)
    assert output == steps("no")
    assert errors.startswith("ci: cannot install chromium (needs root and apt-get")


def test_a_failed_installation_is_said_and_skipped(machine: Path) -> None:
    program(machine, "apt-get", "#!/bin/sh\nexit 100\n")
    assert run(machine)[0] == steps("no")


@pytest.mark.parametrize(("retest", "status"), [("exit 0", 0), ("exit 1", 1)])
def test_tests_that_fail_run_once_more_and_fail_the_run_if_they_fail_again(
    machine: Path, retest: str, status: int
) -> None:
    program(machine, "chromium")
    program(machine, "make", f'#!/bin/sh\n[ "$1" = retest ] && {retest}\n[ "$1" != test ]\n')
    words, env = [machine / "bin" / "bash", machine / ".ci" / "run"], {"PATH": str(machine / "bin")}
    assert subprocess.run(words, env=env, timeout=300, check=False).returncode == status
