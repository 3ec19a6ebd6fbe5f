"""Run one party or all of them as this process (``fedsim party`` and ``train``)."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsim.cli import STOP_SIGNALS
from fedsim.cli.options import OutputMode, print_json
from fedsim.cli.output import print_table
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.errors import FileError, SettingError, replace_unprintable
from fedsim.protocol.messages import LedgerEntry, Role
from fedsim.protocol.session import ConnectionState
from fedsim.registry import SERVICES
from fedsim.report.formatting import format_bytes, format_duration
from fedsim.runs.record import RECORD_FILE, UNLABELLED_FILE
from fedsim.runs.run_folder import LEDGER_FILE, publish_progress, run_path
from fedsim.runtime.party_context import (
    PartyContext,
    open_offline_context,
    open_party_context,
    open_transport,
    software_versions,
)

if TYPE_CHECKING:
    from fedsim.runtime.primary import TrainingOutcome
    from fedsim.training import Hook

_logger = logging.getLogger("fedsim.parties")


def run_party(
    job_path: Path,
    party_path: Path,
    mode: OutputMode,
    *,
    insecure: bool,
    stay: bool = False,
    again: bool = False,
    table: Path | None = None,
    hooks: Sequence[Hook] = (),
) -> TrainingOutcome | None:
    """Run one party as this process; at the primary with these hooks of the training, and return its result.

    A secondary with ``table`` writes its encrypted table to this file instead; the primary takes it from there.
    """
    job, own = read_job(job_path), read_party_file(party_path)
    if stay and own.role is Role.PRIMARY:
        hint = "the primary predicts with `fedsim predict` or `fedsim serve`"
        raise SettingError(f"--stay is for the coordinator and the secondaries; {hint}", code="stay-at-primary")
    set_up_logging(own.name, mode, job=job.hash, logs=own.telemetry.logs)
    outcome: TrainingOutcome | None = None
    if table and job.coordinator is not None:
        message = f"job '{job.name}' has a coordinator, so no party has an encrypted table; omit --table"
        raise SettingError(message, code="not-direct")
    if table and own.role is Role.SECONDARY:
        _write_table(job, own, table, mode)
        return None
    if table:
        from fedsim.runtime.linking import load_handed_over, take_table  # with PyTorch

        load_handed_over(job, table)  # before others wait for this party
    with (
        measure_traffic(quiet=mode.silent, stay=stay) as traffic,
        open_party_context(
            job, own, open_transport(own, insecure=insecure), software_versions(), again=again, predicting=stay
        ) as context,
    ):
        traffic.connection = context.connection
        with publish_progress(context.folder, job, context.connection, context.progress):
            if table:
                take_table(context, table)
            show_progress = not mode.quiet and own.telemetry.logs == "text"
            outcome = _run_role(context, hooks, stay=stay, show_progress=show_progress)
        if outcome and not mode.silent:
            _print_outcome(outcome)
    page = _write_report(context.folder, mode) if outcome else None
    if mode.json:
        print_json(_result(outcome, context.folder, page) | traffic.as_dict())
    return outcome


def _write_table(job: Job, own: PartyFile, file: Path, mode: OutputMode) -> None:
    from fedsim.runtime.secondary import write_table  # with PyTorch

    with open_offline_context(job, own) as context:
        written = write_table(context, file)
    line = f"wrote the table, {format_bytes(written.size)}, to {file}; hand it to {context.peer(Role.PRIMARY)}"
    mode.show({"file": str(file), "bytes": written.size, "digest": written.digest}, lambda: typer.echo(line))


def run_all_parties(job_path: Path, party_paths: Sequence[Path], mode: OutputMode, *, again: bool) -> None:
    """Run all parties of a job in this process."""
    from fedsim.runtime.run_local import run_local
    from fedsim.training.loop import ProgressBar

    job, files = read_job(job_path), [read_party_file(path) for path in party_paths]
    logs = "json" if any(own.telemetry.logs == "json" for own in files) else "text"
    set_up_logging(job.name, mode, [str(own.party) for own in files], job=job.hash, logs=logs)
    started = time.perf_counter()
    done = run_local(job, files, [] if mode.quiet else [ProgressBar()], again=again)
    seconds = time.perf_counter() - started
    folder = next(run_path(job, own) for own in files if own.role is Role.PRIMARY)
    if not mode.silent:
        if done.ledger:
            print_ledger(done.ledger, seconds)
        already = "This job is already trained; --again trains it again."
        typer.echo(f"Trained in {format_duration(seconds)}." if done.ledger else already)
        _print_outcome(done.outcome)
    page = _write_report(folder, mode)
    if mode.json:
        ledger = [asdict(entry) for entry in done.ledger]
        print_json(_result(done.outcome, folder, page) | {"seconds": seconds, "ledger": ledger})


def _run_role(
    context: PartyContext, hooks: Sequence[Hook], *, stay: bool, show_progress: bool
) -> TrainingOutcome | None:
    """Do the work of the party's role; networks are imported only where they are used."""
    if context.party_file.role is Role.PRIMARY:
        from fedsim.runtime.primary import run_primary
        from fedsim.training.loop import ProgressBar

        return run_primary(context, [*hooks, *([ProgressBar()] if show_progress else [])])
    if context.party_file.role is Role.SECONDARY:
        from fedsim.runtime.secondary import run_secondary as run
    else:
        from fedsim.runtime.coordinator import run_coordinator as run
    run(context, stay=stay)
    return None


def _result(outcome: TrainingOutcome | None, folder: Path, page: Path | None) -> dict[str, Any]:
    paths = {"folder": str(folder), "report": None if page is None else str(page)}
    return (asdict(outcome) if outcome else {}) | paths


def _print_outcome(outcome: TrainingOutcome) -> None:
    typer.echo(f"best epoch {outcome.best_epoch} of {outcome.epochs}")
    for part, metrics in outcome.metrics.items():
        typer.echo(f"{part:<10} " + "  ".join(f"{name} {value:.5g}" for name, value in metrics.items()))
    if outcome.unlabelled:
        typer.echo(f"{outcome.unlabelled:,} records without a label: predictions in {UNLABELLED_FILE}")


def print_ledger(entries: Sequence[LedgerEntry], seconds: float) -> None:
    """Print how much the parties sent to each other; the run folder has all kinds of messages."""
    total = sum(entry.bytes for entry in entries)
    typer.echo(f"messages between the parties in {format_duration(seconds)}: {format_bytes(total)}")
    pairs: dict[tuple[str, str], list[LedgerEntry]] = {}
    for entry in entries:
        pairs.setdefault((entry.sender, entry.receiver), []).append(entry)
    rows = [
        (f"  {sender}", receiver, f"{sum(e.messages for e in sent):,}", format_bytes(sum(e.bytes for e in sent)))
        for (sender, receiver), sent in pairs.items()
    ]
    print_table(("  from", "to", "messages", "size"), rows)
    typer.echo(f"  by phase and kind: {LEDGER_FILE} in the run folder, and the report")


def _write_report(folder: Path, mode: OutputMode) -> Path | None:
    """Write the report of a finished run; a failure is a warning, since the model is complete without it."""
    from fedsim.report.run_report import write_report

    if not (folder / RECORD_FILE).is_file():  # trained by an earlier release
        return None
    try:
        page = write_report(folder)
    except FileError as error:
        _logger.warning("no report was written: %s", error)
        return None
    if not mode.silent:
        typer.echo(f"Wrote {page}")
    return page


@dataclass(eq=False)
class TrafficMeter:
    """Messages and time of a party's process; stops it at a signal."""

    connection: ConnectionState | None = None
    started: float = field(default_factory=time.perf_counter)

    def stop(self, *_signal: object) -> None:
        """Stop at the next safe point; a second signal stops at once."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self.connection is None:
            raise KeyboardInterrupt
        self.connection.stop_signal.stop()

    def as_dict(self) -> dict[str, Any]:
        """Return seconds and ledger for JSON."""
        entries = self.connection.ledger.entries() if self.connection else []
        return {"seconds": time.perf_counter() - self.started, "ledger": [asdict(entry) for entry in entries]}


@contextmanager
def measure_traffic(*, quiet: bool, stay: bool = False) -> Iterator[TrafficMeter]:
    """Print the ledger when the block ends, however it ends; SIGTERM ends it like Ctrl-C."""
    traffic = TrafficMeter()
    before = {number: signal.signal(number, traffic.stop) for number in STOP_SIGNALS}
    try:
        yield traffic
    except KeyboardInterrupt:
        _logger.info("stopped by its owner")
        # A party with --stay that serves predictions is meant to be stopped: that is not an error.
        if not (stay and traffic.connection and traffic.connection.serves_predictions):
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        entries = traffic.connection.ledger.entries() if traffic.connection else []
        if entries and not quiet:
            print_ledger(entries, time.perf_counter() - traffic.started)


class _LineFormatter(logging.Formatter):
    """Writes one line per record, whatever a peer or a column is called; a traceback follows on its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the library
        return replace_unprintable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return replace_unprintable(super().formatException(ei), lines=True)


def set_up_logging(
    name: str, mode: OutputMode, threads: Collection[str] = (), *, job: str = "", logs: str = "text"
) -> None:
    """Log events to standard error with time and party; with ``--quiet`` only the final error is printed.

    ``threads`` are the parties that run in threads of this process, whose names they have. ``logs`` is
    ``text``, or ``json`` for one object per line, with the hash of the ``job``.
    """

    def name_party(record: logging.LogRecord) -> bool:
        record.party = record.threadName if record.threadName in threads else name
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(name_party)
    handler.setFormatter(_LineFormatter("%(asctime)s %(party)s: %(message)s", "%H:%M:%S"))
    if logs == "json":
        handler.setFormatter(SERVICES["json-log"](job))
    handler.setLevel(logging.CRITICAL if mode.quiet else logging.DEBUG)  # telemetry has handlers of its own
    logger = logging.getLogger("fedsim")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if mode.verbose else logging.INFO)
