"""Output has colours in a terminal only."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedsim.cli.app import app

PLAIN = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PY_COLORS", "NO_COLOR")}


FEDSIM = [sys.executable, "-m", "fedsim"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FEDSIM, *words], capture_output=True, text=True, timeout=300, env=PLAIN, check=False)


def on_a_terminal(*words: str) -> str:
    """What a command prints where it believes that a person looks."""
    ours, theirs = pty.openpty()
    env = PLAIN | {"TERM": "xterm-256color"}
    subprocess.run([*FEDSIM, *words], stdout=theirs, stderr=theirs, stdin=theirs, timeout=300, env=env, check=False)
    os.close(theirs)
    output = os.read(ours, 1 << 16).decode()
    os.close(ours)
    return output


@pytest.mark.parametrize("words", [["--help"], ["check", "absent.toml"], ["explain", "tau"]])
def test_no_colour_goes_into_a_pipe(words):
    done = run(*words)
    assert len(done.stdout) > 100
    assert "\x1b" not in done.stdout + done.stderr


def test_a_terminal_gets_colour_unless_its_owner_wants_none(monkeypatch):
    assert "\x1b[" in on_a_terminal("check", "absent.toml")
    monkeypatch.setitem(PLAIN, "NO_COLOR", "1")
    assert "\x1b[3" not in on_a_terminal("check", "absent.toml")


def output(*words: str) -> dict[str, object]:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found
