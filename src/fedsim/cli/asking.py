"""Questions to whoever sits at the terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeVar

import typer

Answer = TypeVar("Answer")


def answered(question: Callable[[], Answer]) -> Answer | None:
    """The answer; ``None`` where nobody is there to give one. Ctrl-C ends the command, here as everywhere."""
    signal.siginterrupt(signal.SIGINT, True)  # polars has the system read on after Ctrl-C, until Enter
    try:
        return question()
    except typer.Abort as abort:
        typer.echo(err=True)
        if isinstance(abort.__context__, KeyboardInterrupt):  # typer makes one of this and the end of the input
            raise KeyboardInterrupt from None
        return None
