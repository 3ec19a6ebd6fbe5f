"""What commands that train for long tell meanwhile: the epoch on a terminal, and how to go on after Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from fedsim.cli.exit_codes import ExitCode
from fedsim.experiment.study_run import Watch, unwatched
from fedsim.training.history import Epoch
from fedsim.training.hooks import Hook, Outline
from fedsim.training.metrics import Metrics

STOPPED = "stopped; what was trained is kept: the same command goes on"


class Ticker(Hook):
    """One line that names the training and its epoch, and vanishes with it."""

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._epochs = title, 0
        self._line: Any = console.status("")

    def started(self, outline: Outline) -> None:
        self._epochs = outline.epochs
        self._show(outline.epochs_done + 1)
        self._line.start()

    def epoch_ended(self, epoch: Epoch) -> None:
        self._show(min(epoch.number + 1, self._epochs))

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._line.stop()

    def failed(self) -> None:
        self._line.stop()

    def _show(self, epoch: int) -> None:
        self._line.update(Text(f"{self._title}: epoch {epoch}/{self._epochs}"))


def watching(console: Console, *, silent: bool) -> Watch:
    """A ticker for every training, where somebody looks."""
    if silent or not console.is_terminal:
        return unwatched

    def watch(title: str) -> Sequence[Hook]:
        return [Ticker(title, console)]

    return watch


@contextmanager
def going_on_later() -> Iterator[None]:
    """Ctrl-C is answered with a sentence about what was trained."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(STOPPED, err=True)
        raise typer.Exit(ExitCode.STOPPED) from None
