"""The work behind the commands of the parties."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsim.cli.party_telling import ledger_lines, outcome_lines
from fedsim.errors import SettingError
from fedsim.linkage.whole_file import whole_file
from fedsim.party.job import read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.post import Post, at_post
from fedsim.party.versions import versions_here
from fedsim.protocol.tls import SOON_DAYS, Credentials, read_credentials
from fedsim.protocol.transport.grpc import GrpcTransport

if TYPE_CHECKING:
    from fedsim.party.primary import Outcome


def run_party(
    role: str,
    job_path: Path,
    party_path: Path,
    *,
    insecure: bool,
    stay: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    as_json: bool = False,
) -> None:
    """Run one party as this process."""
    job, own = read_job(job_path), read_party_file(party_path)
    if own.role != role:
        raise SettingError(f"{party_path} is the file of a {own.role}; run `fedsim {own.role}` with it")
    set_up_logging(own.name, quiet=quiet, verbose=verbose)
    began = time.perf_counter()
    with at_post(job, own, GrpcTransport(credentials_of(own, insecure)), versions_here()) as post:
        outcome = _work(post, stay, quiet)
        entries = post.station.ledger.entries()
    seconds = time.perf_counter() - began
    if as_json and outcome:
        typer.echo(json.dumps({**asdict(outcome), "seconds": seconds, "ledger": [asdict(entry) for entry in entries]}))
    elif not quiet:
        _tell([*(outcome_lines(outcome) if outcome else []), *ledger_lines(entries, seconds)])
    _keep_ledger(post)


def run_all(job_path: Path, party_paths: Sequence[Path], *, quiet: bool, as_json: bool) -> None:
    """Run all parties in this process."""
    from fedsim.party.together import run_together
    from fedsim.training.hooks.progress import ProgressBar

    job, files = read_job(job_path), [read_party_file(path) for path in party_paths]
    set_up_logging(job.name, quiet=quiet, verbose=False)
    began = time.perf_counter()
    found = run_together(job, files, [] if quiet else [ProgressBar()])
    seconds = time.perf_counter() - began
    if as_json:
        ledger = [asdict(entry) for entry in found.ledger]
        typer.echo(json.dumps({**asdict(found.outcome), "seconds": seconds, "ledger": ledger}))
    elif not quiet:
        _tell([*outcome_lines(found.outcome), *ledger_lines(found.ledger, seconds)])


def credentials_of(own: PartyFile, insecure: bool) -> Credentials | None:
    """The party's certificate, or none where that was asked for."""
    if insecure:
        return None
    if own.tls is None:
        raise SettingError(
            f"the file of {own.party} has no [tls]; make certificates with `fedsim certs`, or use --insecure between "
            "processes of one machine"
        )
    found = read_credentials(own.tls.authority, own.tls.certificate, own.tls.key, own.party)
    left = found.days_left(datetime.now(UTC))
    if left < SOON_DAYS:
        logging.getLogger("fedsim.parties").warning("the certificate of %s ends in %d days", own.party, left)
    return found


def set_up_logging(name: str, *, quiet: bool, verbose: bool) -> None:
    """One line per event on standard error, with the time and the party's name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {name}: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("fedsim")
    logger.handlers = [handler]
    level = logging.DEBUG if verbose else logging.INFO
    logger.setLevel(logging.ERROR if quiet else level)


def _work(post: Post, stay: bool, quiet: bool) -> Outcome | None:
    """The role's own work; networks are loaded only where they are used."""
    if post.own.role == "coordinator":
        from fedsim.party.coordinator import run_coordinator

        run_coordinator(post, stay=stay)
        return None
    if post.own.role == "secondary":
        from fedsim.party.secondary import run_secondary

        run_secondary(post, stay=stay)
        return None
    from fedsim.party.primary import run_primary
    from fedsim.training.hooks.progress import ProgressBar

    return run_primary(post, [] if quiet else [ProgressBar()])


def _keep_ledger(post: Post) -> None:
    with whole_file(post.folder / "ledger.json") as part:
        part.write_text(post.station.ledger.to_json())


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)
