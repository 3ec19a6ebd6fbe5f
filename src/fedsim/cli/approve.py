"""``fedsim approve``: the owner reads what a job takes out of the party, and says yes or no."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.asking import answered
from fedsim.cli.options import Json, Quiet, keep_quiet
from fedsim.errors import SettingError


def approve(
    job: Annotated[Path, typer.Argument(help="The job file, shared by all parties.")],
    party: Annotated[Path, typer.Argument(help="The party file, your own.")],
    yes: Annotated[bool, typer.Option("--yes", help="Approve without being asked.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show what leaves this party in a job, and to whom; then approve it.

    Nothing is sent. A party takes part only in jobs its owner has approved; a job or columns that change need it anew.
    """
    from fedsim.cli.approving import approve_job

    if quiet and not yes:
        raise SettingError("--quiet shows nothing to say yes to; add --yes, or leave --quiet away")
    aloud = partial(typer.echo, err=as_json)
    say = keep_quiet if quiet or (as_json and yes) else aloud
    found = approve_job(job, party, ask=(lambda: True) if yes else partial(_ask, as_json), say=say)
    if as_json:
        typer.echo(json.dumps(asdict(found), ensure_ascii=False))
    if not found.approved:
        aloud("not approved; nothing was written but a line in the audit log")
        raise typer.Exit(2)


def _ask(aside: bool) -> bool:
    answer = answered(lambda: typer.confirm("Approve?", default=False, err=aside))
    if answer is None:
        typer.echo("no answer; say --yes to approve without being asked", err=aside)
    return bool(answer)
