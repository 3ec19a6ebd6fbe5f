"""``fedsim key``: a new secret for the parties to share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Json, Quiet


def key(
    out: Annotated[Path, typer.Option(help="File to write; it must not exist yet.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a key for `fedsim encode`, readable by you alone.

    Give it to the other parties over a safe way, never to the coordinator.
    """
    from fedsim.data.files import check_writable
    from fedsim.linkage.encoding import Key

    check_writable(out)
    Key.generate().write(out)
    if as_json:
        typer.echo(json.dumps({"file": str(out)}, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"key in {out}; share it with the other parties over a safe way, never with the coordinator")
