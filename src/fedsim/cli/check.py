"""``fedsim check``: what would fail and what it would cost, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.options import JobFile, Json, Quiet, Verbose

Parties = Annotated[
    list[Path] | None, typer.Argument(metavar="PARTY", help="Party files; none: only the job is checked.")
]
Mbit = Annotated[float, typer.Option(metavar="MBIT", min=0.001, help="Speed of the line, in Mbit/s.")]
Ping = Annotated[float, typer.Option(metavar="MS", min=0.0, help="How long a word and its answer take.")]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="Call the peers that are dialled: a TLS handshake.")]


def check(
    job: JobFile,
    parties: Parties = None,
    mbit: Mbit = 100.0,
    ping_ms: Ping = 20.0,
    peers: Peers = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a job and the files of parties, tell how to mend what is wrong, and estimate bytes and minutes.

    Nothing is written, and nothing of yours is sent. Ends with 0 if all is well or only warned of, with 2 otherwise.

    fedsim check job.toml rentals.toml --mbit 20 --ping-ms 35
    """
    from fedsim.cli.checking import check_and_tell

    if not check_and_tell(
        job, parties or [], (mbit, ping_ms), call_peers=peers, verbose=verbose, quiet=quiet, as_json=as_json
    ):
        raise typer.Exit(2)
