"""Run one party, or all of them, as this process (``fedsim party`` and ``fedsim train``)."""

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

from fedsim.cli.exit_codes import STOP_SIGNALS
from fedsim.config.job import read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.errors import FileError, SettingError
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import LedgerEntry, Role
from fedsim.protocol.session import ConnectionState
from fedsim.protocol.tls import RENEWAL_DAYS, Credentials, read_credentials
from fedsim.report.formatting import format_bytes, format_duration
from fedsim.runs.progress import publish_progress
from fedsim.runs.record import RECORD_FILE
from fedsim.runs.run_folder import run_path
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions

if TYPE_CHECKING:
    from fedsim.runtime.primary import TrainingOutcome

# What a party's command prints when it is done


def outcome_lines(outcome: TrainingOutcome) -> list[str]:
    """How good the model is."""
    lines = [f"best epoch {outcome.best_epoch} of {outcome.epochs}"]
    for part, metrics in outcome.metrics.items():
        lines.append(f"{part:<10} " + "  ".join(f"{name} {value:.5g}" for name, value in metrics.items()))
    return lines


def ledger_lines(entries: Sequence[LedgerEntry], seconds: float) -> list[str]:
    """What crossed the border, one line per kind of message."""
    total = sum(entry.bytes for entry in entries)
    lines = [f"what crossed the border in {format_duration(seconds)}: {format_bytes(total)}"]
    for entry in entries:
        way = f"{entry.sender} -> {entry.receiver}"
        lines.append(
            f"  {entry.phase:<8}{entry.kind:<14}{way:<50}{entry.messages:>7,} x {format_bytes(entry.bytes):>9}"
        )
    return lines


# The report that a training leaves behind


_logger = logging.getLogger("fedsim.parties")


def write_run_report(folder: Path, *, silent: bool) -> Path | None:
    """Write the report of a run that has ended, and say where it is; a model is none the worse where that fails."""
    from fedsim.report.run_report import write_report

    if not (folder / RECORD_FILE).is_file():  # trained by an earlier release
        return None
    try:
        page = write_report(folder)
    except FileError as fault:
        _logger.warning("no report was written: %s", fault)
        return None
    if not silent:
        typer.echo(f"report: {page}")
    return page


# The work behind the commands of the parties


def run_party(
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
    if stay and own.role is Role.PRIMARY:
        raise SettingError(
            "--stay is for the coordinator and the secondaries; the primary predicts with `fedsim predict` or "
            "`fedsim serve`",
            code="stay-at-primary",
        )
    set_up_logging(own.name, quiet=quiet, verbose=verbose)
    outcome: TrainingOutcome | None = None
    with (
        measure_traffic(quiet=quiet or as_json, stay=stay) as count,
        open_party_context(job, own, GrpcTransport(load_credentials(own, insecure)), software_versions()) as post,
    ):
        count.connection = post.connection
        with publish_progress(post.folder, job, post.connection, post.progress):
            outcome = _run_role(post, stay, quiet)
        if outcome and not quiet and not as_json:
            _print_lines(outcome_lines(outcome))
    page = write_run_report(post.folder, silent=quiet or as_json) if outcome else None
    if as_json:
        found = asdict(outcome) if outcome else {}
        typer.echo(json.dumps({**found, **_output_paths(post.folder, page), **count.described()}))


@dataclass(eq=False)
class TrafficMeter:
    """What a party's process has sent and received, and since when."""

    began: float
    connection: ConnectionState | None = None

    def stop(self, *_signal: object) -> None:
        """End at the next safe point; a second signal ends at once."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self.connection is None:
            raise KeyboardInterrupt
        self.connection.stop_signal.stop()

    def entries(self) -> list[LedgerEntry]:
        """The lines of the ledger."""
        return self.connection.ledger.entries() if self.connection else []

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.perf_counter() - self.began

    def described(self) -> dict[str, Any]:
        """Both for programs."""
        return {"seconds": self.seconds, "ledger": [asdict(entry) for entry in self.entries()]}


@contextmanager
def measure_traffic(*, quiet: bool, stay: bool = False) -> Iterator[TrafficMeter]:
    """Print what crossed the border however the block ends; a service manager's signal ends it as Ctrl-C does."""
    count = TrafficMeter(time.perf_counter())
    for number in STOP_SIGNALS:
        signal.signal(number, count.stop)
    try:
        yield count
    except KeyboardInterrupt:
        logging.getLogger("fedsim.parties").info("stopped by its owner")
        if not (
            stay and count.connection and count.connection.serves_predictions
        ):  # to be stopped is how those end that stay
            raise
    finally:
        entries = count.entries()
        if entries and not quiet:
            _print_lines(ledger_lines(entries, count.seconds))


def run_all_parties(job_path: Path, party_paths: Sequence[Path], *, quiet: bool, as_json: bool) -> None:
    """Run all parties in this process."""
    from fedsim.runtime.run_local import run_local
    from fedsim.training.hooks import ProgressBar

    job, files = read_job(job_path), [read_party_file(path) for path in party_paths]
    set_up_logging(job.name, quiet=quiet, verbose=False)
    began = time.perf_counter()
    found = run_local(job, files, [] if quiet else [ProgressBar()])
    seconds = time.perf_counter() - began
    folder = next(run_path(job, own) for own in files if own.role == "primary")
    page = write_run_report(folder, silent=quiet or as_json)
    if as_json:
        ledger = [asdict(entry) for entry in found.ledger]
        typer.echo(
            json.dumps({**asdict(found.outcome), **_output_paths(folder, page), "seconds": seconds, "ledger": ledger})
        )
    elif not quiet:
        _print_lines([*outcome_lines(found.outcome), *ledger_lines(found.ledger, seconds)])


def _output_paths(folder: Path, page: Path | None) -> dict[str, str | None]:
    """Where a program finds the run, and its report where there is one."""
    return {"folder": str(folder), "report": None if page is None else str(page)}


def load_credentials(own: PartyFile, insecure: bool) -> Credentials | None:
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
    if left < RENEWAL_DAYS:
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


def _run_role(post: PartyContext, stay: bool, quiet: bool) -> TrainingOutcome | None:
    """The role's own work; networks are loaded only where they are used."""
    if post.own.role == "coordinator":
        from fedsim.runtime.coordinator import run_coordinator

        run_coordinator(post, stay=stay)
        return None
    if post.own.role == "secondary":
        from fedsim.runtime.secondary import run_secondary

        run_secondary(post, stay=stay)
        return None
    from fedsim.runtime.primary import run_primary
    from fedsim.training.hooks import ProgressBar

    return run_primary(post, [] if quiet else [ProgressBar()])


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)
