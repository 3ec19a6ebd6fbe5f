"""``fedsim demo``: three organisations on this machine, from two tables to what the partner is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Json, Quiet, checked_seed

Out = Annotated[Path, typer.Option(help="Folder for all of it; made anew where it holds an earlier demo.")]
Seed = Annotated[int, typer.Option(help="Another seed makes another city.")]


def demo(out: Out = Path("fedsim-demo"), seed: Seed = 7, quiet: Quiet = False, as_json: Json = False) -> None:
    """Generate a city, run coordinator, primary and secondary as processes with certificates, and tell the worth.

    Needs no data and no network beyond this machine; takes under 90 seconds on two cores. Every file it writes is one
    that you would write for a job of your own.
    """
    from fedsim.cli.demonstrating import demonstrate

    demonstrate(out, checked_seed(seed), quiet=quiet, as_json=as_json)
