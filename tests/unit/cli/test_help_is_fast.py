"""Help answers at once because nothing heavy is imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "scipy", "sklearn", "numba", "polars", "torch", "pandas", "pyarrow", "jinja2", "grpc"}
LOADED = "import sys, fedsim.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300)


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    loaded = run("-c", LOADED)
    assert loaded.returncode == 0, loaded.stderr
    assert not HEAVY & set(loaded.stdout.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["link", "--help"]])
def test_help_and_version_end_well_and_import_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\nfrom fedsim.cli import main\n"
        f"try:\n    main({words!r})\n"
        "except SystemExit as end:\n"
        f"    heavy = {HEAVY!r} & set(sys.modules)\n"
        "    sys.exit(str(heavy) if heavy else end.code)\n"
    )
    answer = run("-c", program)
    assert answer.returncode == 0, answer.stderr
    assert "fedsim" in answer.stdout.lower()


def test_a_mistyped_command_is_corrected() -> None:
    answer = run("-c", "from fedsim.cli import main; main(['lnik'])")
    assert answer.returncode == 2
    assert "Did you mean 'link'?" in answer.stderr
