"""Options, option parsing and prompts that several commands share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from fedsim.errors import SettingError

# Options that several commands share


JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="The job file all parties share.")]
PartyPath = Annotated[Path, typer.Argument(metavar="PARTY", help="This party's own file.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No certificates, no encryption; only between processes of this machine.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")]
Wait = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a partner that is away.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object; with --quiet that object alone.")
]
Separator = Annotated[
    str | None, typer.Option(metavar="CHAR", help="What stands between the cells of a text table; or the word tab.")
]


def parse_names(listed: str) -> list[str]:
    """Column names between commas.

    >>> parse_names("lat, lon")
    ['lat', 'lon']
    """
    return [name.strip() for name in listed.split(",") if name.strip()]


def check_seed(seed: int) -> int:
    """The seed, if chance can start from it."""
    if seed < 0:
        raise SettingError(f"--seed {seed} is negative; give a whole number of at least 0")
    return seed


def print_nothing(line: str = "") -> None:
    """Print nothing."""


def check_out_name(out: Path) -> Path:
    """A name to which endings can be added."""
    if not out.name:
        raise SettingError(f"--out '{out}' names no file; give a name such as audit, to which the endings are added")
    return out


def progress_printer(*, silent: bool) -> Callable[[str], None]:
    """A way to tell of trainings, a line each."""
    return print_nothing if silent else _print_progress


def _print_progress(words: str) -> None:
    typer.echo(f"  {words}", err=True)


# Questions to whoever sits at the terminal


Answer = TypeVar("Answer")


def prompt_user(question: Callable[[], Answer]) -> Answer | None:
    """The answer; ``None`` where nobody is there to give one. Ctrl-C ends the command, here as everywhere."""
    signal.siginterrupt(signal.SIGINT, True)  # polars has the system read on after Ctrl-C, until Enter
    try:
        return question()
    except typer.Abort as abort:
        typer.echo(err=True)
        if isinstance(abort.__context__, KeyboardInterrupt):  # typer makes one of this and the end of the input
            raise KeyboardInterrupt from None
        return None
