"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import SettingError

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


def names(listed: str) -> list[str]:
    """Column names between commas.

    >>> names("lat, lon")
    ['lat', 'lon']
    """
    return [name.strip() for name in listed.split(",") if name.strip()]


def checked_seed(seed: int) -> int:
    """The seed, if chance can start from it."""
    if seed < 0:
        raise SettingError(f"--seed {seed} is negative; give a whole number of at least 0")
    return seed


def keep_quiet(line: str = "") -> None:
    """Print nothing."""


def checked_out(out: Path) -> Path:
    """A name to which endings can be added."""
    if not out.name:
        raise SettingError(f"--out '{out}' names no file; give a name such as audit, to which the endings are added")
    return out


def telling(*, silent: bool) -> Callable[[str], None]:
    """A way to tell of trainings, a line each."""
    return keep_quiet if silent else _tell


def _tell(words: str) -> None:
    typer.echo(f"  {words}", err=True)
