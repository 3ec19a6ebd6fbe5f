"""While a training runs, a terminal shows which one and its epoch; nobody else is shown anything."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from fedsim.contribution.rungs import Rung, run_training
from fedsim_lab.cli.handlers import epoch_status_hooks
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.study_runner import load_sample


def shown(console: Console, *, silent: bool = False) -> str:
    arrays = DatasetCases(load_sample("firms", Path(), 60)).one("random", 0)
    hooks = epoch_status_hooks(console, silent=silent)("[1 of 2] firms, Solo")
    run_training(Rung("solo", "Solo", "solo", epochs=2), arrays, hooks)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_terminal_shows_the_training_and_its_epoch() -> None:
    output = shown(Console(file=StringIO(), force_terminal=True, width=100))
    assert "[1 of 2] firms, Solo: epoch " in output


def test_neither_a_pipe_nor_a_silent_terminal_shows_anything() -> None:
    assert not shown(Console(file=StringIO(), force_terminal=False))
    assert not shown(Console(file=StringIO(), force_terminal=True), silent=True)
