"""``fedsim compare``: the honest ladder of a job, before anybody signs anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Insecure, JobFile, Json, Quiet, Verbose, Wait

PartyPaths = Annotated[
    list[Path],
    typer.Argument(metavar="PARTY...", help="Files of the primary and of every secondary; or the primary's alone."),
]
Out = Annotated[
    Path, typer.Option(help="Folder for ladder.json and every training's result; a second run goes on from there.")
]
Seeds = Annotated[int, typer.Option(min=1, help="How often everything is split and trained anew.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of every network, instead of the job's.")]
Unit = Annotated[str, typer.Option(help="Unit of the label, for the sentences; left out, the label's name.")]


def compare(
    job: JobFile,
    parties: PartyPaths,
    out: Out = Path("fedsim-compare"),
    seeds: Seeds = 5,
    epochs: Epochs = None,
    unit: Unit = "",
    wait: Wait = 60.0,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Tell what a partner is worth: the primary alone, with it, and with partners that cannot help, side by side.

    All tables are read in this process and nothing is sent. Links are found, and features, activations and gradients
    are protected, as the job says. Every rung is trained for every seed under a random split and under one that keeps
    equal identifiers on one side. What is trained is kept: stop at any time and call again.

    With the primary's file alone the secondaries are asked where they are, over the network, after training: they run
    with --stay, their policy allows so many studies (max_studies), and links, split and protections are the job's.

    fedsim compare job.toml city.toml rentals.toml --seeds 5

    fedsim compare job.toml city.toml --seeds 3
    """
    from fedsim.cli.comparing import Asked, compare_and_tell

    ways = {"insecure": insecure, "quiet": quiet, "verbose": verbose, "as_json": as_json}
    compare_and_tell(job, parties, out, Asked(seeds, epochs, unit, wait), **ways)
