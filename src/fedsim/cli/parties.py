"""``fedsim coordinator``, ``primary``, ``secondary``: one party of a job as a process; ``train``: all in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import Insecure, JobFile, Json, PartyPath, Quiet, Verbose

PartyPaths = Annotated[list[Path], typer.Argument(metavar="PARTY...", help="The file of every party.")]
Stay = Annotated[bool, typer.Option("--stay", help="Stay after training and answer predictions.")]


def coordinator(
    job: JobFile,
    party: PartyPath,
    insecure: Insecure = False,
    stay: Stay = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run the coordinator: it receives encoded identifiers, finds the partners, and sees no table."""
    from fedsim.cli.party_run import run_party

    run_party("coordinator", job, party, insecure=insecure, stay=stay, quiet=quiet, verbose=verbose, as_json=as_json)


def primary(
    job: JobFile,
    party: PartyPath,
    insecure: Insecure = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run the primary: it has the labels, leads the training, and prints how good the model is."""
    from fedsim.cli.party_run import run_party

    run_party("primary", job, party, insecure=insecure, quiet=quiet, verbose=verbose, as_json=as_json)


def secondary(
    job: JobFile,
    party: PartyPath,
    insecure: Insecure = False,
    stay: Stay = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Run a secondary: its features stay here, only its cut layer leaves. It dials out and needs no open port."""
    from fedsim.cli.party_run import run_party

    run_party("secondary", job, party, insecure=insecure, stay=stay, quiet=quiet, verbose=verbose, as_json=as_json)


def train(job: JobFile, parties: PartyPaths, quiet: Quiet = False, as_json: Json = False) -> None:
    """Run all parties of a job in this one process, with the same messages and the same weights as apart."""
    from fedsim.cli.party_run import run_all

    run_all(job, parties, quiet=quiet, as_json=as_json)
