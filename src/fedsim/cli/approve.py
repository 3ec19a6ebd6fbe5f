"""``fedsim approve``: the owner reads what a job takes out of the party, and says yes or no."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Quiet, keep_quiet
from fedsim.errors import SettingError


def approve(
    job: Annotated[Path, typer.Argument(help="The job file, shared by all parties.")],
    party: Annotated[Path, typer.Argument(help="The party file, your own.")],
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show what leaves this party in a job, and to whom; then approve it.

    Nothing is sent. A party takes part only in jobs its owner has approved; a job or columns that change need it anew.
    """
    from fedsim.cli.approving import approve_job

    if quiet and not yes:
        raise SettingError("--quiet shows nothing to say yes to; add --yes, or leave --quiet away")
    if not approve_job(job, party, ask=(lambda: True) if yes else _ask, say=keep_quiet if quiet else typer.echo):
        typer.echo("not approved; nothing was written but a line in the audit log")
        raise typer.Exit(2)


def _ask() -> bool:
    try:
        return typer.confirm("Approve?", default=False)
    except typer.Abort:  # nobody is there to answer
        typer.echo("\nno answer; say --yes to approve without being asked")
        return False
