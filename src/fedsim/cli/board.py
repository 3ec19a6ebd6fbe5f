"""``fedsim board``: a live page about the parties that run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A run folder, or one above several.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Where to listen on 127.0.0.1; 0 takes any free port.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the address, and errors.")]


def board(folder: Folder = Path(), port: Port = 0, quiet: Quiet = False) -> None:
    """Serve a page that shows phases, progress, curves, messages and errors of the parties under a folder, as they run.

    It reads what each party writes into its run folder, and can be read on this machine only. Ctrl-C ends it.

    fedsim board city-run
    """
    from fedsim.report.board import Board

    with Board(folder, port) as server:
        typer.echo(server.address if quiet else f"open {server.address}\npress Ctrl-C to end")
        server.serve_forever()
