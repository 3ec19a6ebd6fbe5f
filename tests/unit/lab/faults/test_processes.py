"""Processes of parties: their hooks, their output and their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.protocol import session
from fedsim_lab.faults.processes import each, set_clock, set_constant, setting, start_command
from session_fixtures import PATIENCE


def test_a_command_runs_in_a_process_that_writes_to_its_log(tmp_path: Path) -> None:
    process = start_command(["--version"], tmp_path / "log")
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert "fedsim" in (tmp_path / "log").read_text()


def test_hooks_run_in_their_order_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_LOGGED_EVENTS", session.MAX_LOGGED_EVENTS)
    hooks = [setting("fedsim.protocol.session", "MAX_LOGGED_EVENTS", value) for value in (1, 2)]
    each(*hooks)()
    assert session.MAX_LOGGED_EVENTS == 2


def test_a_misspelt_constant_is_an_error() -> None:
    with pytest.raises(AttributeError):
        set_constant("fedsim.protocol.session", "MAX_LOGED_EVENTS", 1)


def test_the_clock_file_holds_the_shift_in_seconds(tmp_path: Path) -> None:
    set_clock(tmp_path / "clock", 3600)
    set_clock(tmp_path / "clock", -60)
    assert int.from_bytes((tmp_path / "clock").read_bytes(), "little", signed=True) == -60
