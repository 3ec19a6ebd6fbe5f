"""``fedsim demo``: two linkages on generated data, checked and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Quiet, checked_seed


def demo(
    out: Annotated[Path, typer.Option(help="Folder for tables, links and pages; made if it is not there.")] = Path(
        "fedsim-demo"
    ),
    seed: Annotated[int, typer.Option(help="Another seed makes another city.")] = 7,
    quiet: Quiet = False,
) -> None:
    """Link generated tables by place and by name, check a sample by brute force, and draw the result.

    Needs no network and no data; takes under a minute.
    """
    from fedsim.cli.showing import show

    show(out, checked_seed(seed), _keep_quiet if quiet else typer.echo)


def _keep_quiet(line: str) -> None:
    """Print nothing."""
