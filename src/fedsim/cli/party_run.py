"""The work behind the commands of the parties."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsim.cli.exit_codes import STOPPING
from fedsim.cli.party_telling import ledger_lines, outcome_lines
from fedsim.cli.reporting import report_on
from fedsim.errors import SettingError
from fedsim.party.job import read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.post import Post, at_post
from fedsim.party.run_folder import run_path
from fedsim.party.run_progress import shown
from fedsim.party.versions import versions_here
from fedsim.protocol.ledger import Entry
from fedsim.protocol.station import Station
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
    outcome: Outcome | None = None
    with (
        counted(quiet=quiet or as_json, stay=stay) as count,
        at_post(job, own, GrpcTransport(credentials_of(own, insecure)), versions_here()) as post,
    ):
        count.station = post.station
        with shown(post.folder, job, post.station, post.progress):
            outcome = _work(post, stay, quiet)
        if outcome and not quiet and not as_json:
            _tell(outcome_lines(outcome))
    page = report_on(post.folder, silent=quiet or as_json) if outcome else None
    if as_json:
        found = asdict(outcome) if outcome else {}
        typer.echo(json.dumps({**found, **_places(post.folder, page), **count.described()}))


@dataclass(eq=False)
class Count:
    """What a party's process has sent and received, and since when."""

    began: float
    station: Station | None = None

    def stop(self, *_signal: object) -> None:
        """End at the next safe point; a second signal ends at once."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)
        if self.station is None:
            raise KeyboardInterrupt
        self.station.alarm.stop()

    def entries(self) -> list[Entry]:
        """The lines of the ledger."""
        return self.station.ledger.entries() if self.station else []

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.perf_counter() - self.began

    def described(self) -> dict[str, Any]:
        """Both for programs."""
        return {"seconds": self.seconds, "ledger": [asdict(entry) for entry in self.entries()]}


@contextmanager
def counted(*, quiet: bool, stay: bool = False) -> Iterator[Count]:
    """Print what crossed the border however the block ends; a service manager's signal ends it as Ctrl-C does."""
    count = Count(time.perf_counter())
    for number in STOPPING:
        signal.signal(number, count.stop)
    try:
        yield count
    except KeyboardInterrupt:
        logging.getLogger("fedsim.parties").info("stopped by its owner")
        if not (stay and count.station and count.station.staying):  # to be stopped is how those end that stay
            raise
    finally:
        entries = count.entries()
        if entries and not quiet:
            _tell(ledger_lines(entries, count.seconds))


def run_all(job_path: Path, party_paths: Sequence[Path], *, quiet: bool, as_json: bool) -> None:
    """Run all parties in this process."""
    from fedsim.party.together import run_together
    from fedsim.training.hooks.progress import ProgressBar

    job, files = read_job(job_path), [read_party_file(path) for path in party_paths]
    set_up_logging(job.name, quiet=quiet, verbose=False)
    began = time.perf_counter()
    found = run_together(job, files, [] if quiet else [ProgressBar()])
    seconds = time.perf_counter() - began
    folder = next(run_path(job, own) for own in files if own.role == "primary")
    page = report_on(folder, silent=quiet or as_json)
    if as_json:
        ledger = [asdict(entry) for entry in found.ledger]
        typer.echo(json.dumps({**asdict(found.outcome), **_places(folder, page), "seconds": seconds, "ledger": ledger}))
    elif not quiet:
        _tell([*outcome_lines(found.outcome), *ledger_lines(found.ledger, seconds)])


def _places(folder: Path, page: Path | None) -> dict[str, str | None]:
    """Where a program finds the run, and its report where there is one."""
    return {"folder": str(folder), "report": None if page is None else str(page)}


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
    """One line per event on standard error, with the time and the party's name; nothing where ``quiet``.

    The fault that ends a quiet command is its one error line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {name}: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("fedsim")
    logger.handlers = [handler]
    level = logging.DEBUG if verbose else logging.INFO
    logger.setLevel(logging.CRITICAL if quiet else level)


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


def _tell(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)
