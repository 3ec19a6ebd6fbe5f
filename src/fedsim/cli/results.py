"""Use the results of a job: list runs, write reports, show audit logs and predict new records."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import typer

from fedsim.cli.options import OutputMode, echo
from fedsim.cli.output import print_lines, print_table
from fedsim.cli.party import TrafficMeter, measure_traffic, set_up_logging
from fedsim.config import read_job, read_party_file
from fedsim.config.party_file import PartyFile, require_membership
from fedsim.data.sql import parse_source
from fedsim.data.table_reader import infer_numbers, read_table, source_files
from fedsim.errors import FileError, InputError, SettingError
from fedsim.protocol.messages import Farewell, Role
from fedsim.report.formatting import format_bytes, format_duration, format_number, pluralise
from fedsim.report.run_data import DAMAGED, RunSummary, differing_settings, find_run, list_runs
from fedsim.runs import run_folder
from fedsim.runs.budget import PrimaryBudget, key_store
from fedsim.runs.run_folder import AuditEntry, lock_run_folder, open_audit_log, read_audit_log
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.storage.files import atomic_write, check_output_paths
from fedsim.types import Explanation

if TYPE_CHECKING:
    from fedsim.runtime.predictor import Predictions, Predictor
    from fedsim.training.explain import Matches

_logger = logging.getLogger("fedsim.parties")

# Runs, reports and audit logs

MAX_VALUE_LENGTH = 60
COLUMNS = ("folder", "method", "test", "epochs", "time", "bytes", "state")


def run_runs(folder: Path, mode: OutputMode) -> None:
    """Print the runs under a folder and the settings in which they differ."""
    runs = list_runs(folder)
    differing = differing_settings([run.settings for run in runs])

    def print_text() -> None:
        if not runs:
            home = "`fedsim train` and `fedsim party` write them to the folder of the party"
            typer.echo(f"no runs under {folder}; {home}")
            return
        print_table(COLUMNS, map(_run_cells, runs))
        for run in runs:
            print_lines(f"{run.folder}: {text}" for text in (run.worth, run.note) if text)
        for key, values in differing.items():
            texts = [json.dumps(value, ensure_ascii=False) for value in values]
            short = (text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…" for text in texts)
            echo(f"differs: {key} = {', '.join(short)}")

    mode.show({"runs": [asdict(run) for run in runs], "differing": differing}, print_text)


def _run_cells(run: RunSummary) -> tuple[str, ...]:
    if run.state == DAMAGED:
        return run.folder, "", "", "", "", "", run.state
    score = "" if run.metric is None or run.value is None else f"{run.metric} {format_number(run.value)}"
    cost = format_duration(run.seconds), format_bytes(run.bytes)
    return run.folder, run.method or "", score, str(run.epochs), *cost, run.state


def run_report(
    run: Path,
    identifiers_party: Path | None,
    mode: OutputMode,
) -> None:
    """Write the report and the model card of a run again."""
    from fedsim.report.run_report import CARD_FILE, write_report

    named = None if identifiers_party is None else read_party_file(identifiers_party)
    page = write_report(find_run(run), named)
    card = page.with_name(CARD_FILE)
    lines = [f"Wrote {page}, with {CARD_FILE} beside it"]
    mode.show({"report": str(page), "card": str(card)}, lambda: print_lines(lines))


def run_log(path: Path, mode: OutputMode) -> None:
    """Print an audit log up to the first line that is not as it was written, which is an error."""
    entries: list[AuditEntry] = []
    fault: FileError | None = None
    try:
        for entry in read_audit_log(path):
            entries.append(entry)
    except FileError as error:
        fault = error
    last = entries[-1].hash if entries else None
    value = {"entries": [asdict(entry) for entry in entries], "last": last, "fault": str(fault) if fault else None}
    rows = [(e.time, e.party, e.what, ", ".join(f"{name} {fact}" for name, fact in e.facts.items())) for e in entries]
    mode.show(value, lambda: print_table(("time", "party", "event", "facts"), rows) if rows else None)
    if fault:
        raise fault
    if not mode.silent:
        count = "1 entry" if len(entries) == 1 else f"{len(entries):,} entries"
        typer.echo(f"{count}, none changed since they were written; last hash {last or 'none'}")


# Predictions

MAX_SKIPPED_SHOWN = 20


def run_predict(
    job: Path,
    party: Path,
    table: tuple[str, str | None],
    out: Path,
    mode: OutputMode,
    *,
    keep: Sequence[str],
    matches: bool,
    explain: Path | None,
    skip_invalid: bool,
    separator: str | None,
    wait: float,
    insecure: bool,
) -> None:
    """Predict the records of a table, or of a database and a query; write predictions and the columns to ``keep``."""
    skipped: dict[int, str] = {}
    records = parse_source(*table)
    _check_predict_outputs(out, explain, [job, party, *source_files([records])])
    data = read_party_file(party).data
    formats = data.formats if data else None
    frame = read_table(records, separator=separator or (data.separator if data else None), formats=formats)
    for column in keep:
        if column not in frame.columns:
            message = f"{records} has no column '{column}' to keep; its columns are {', '.join(frame.columns)}"
            raise InputError(message, code="no-such-column", column=column)
    with (
        measure_traffic(quiet=mode.silent) as traffic,
        open_predictor(job, party, wait, traffic, mode, insecure=insecure) as predictor,
    ):
        convert = partial(convert_features, identifiers=predictor.identifiers, missing=data.missing if data else ())
        if skip_invalid:
            skipped = find_invalid_rows(frame, lambda rows: predictor.prepare(convert(rows), str(records)))
            valid = pl.Series([row not in skipped for row in range(1, len(frame) + 1)], dtype=pl.Boolean)
            number = "row number" if "row" in frame.columns else "row"
            frame, keep = frame.with_row_index(number, offset=1).filter(valid), [number, *keep]
        try:
            predictions = predictor.predict(convert(frame), str(records), explained=explain is not None)
        except InputError as error:
            if "rows" not in error.details:
                raise
            message = f"{error}; or predict the other rows with --skip-invalid"
            raise InputError(message, code=error.code, **error.details) from error
    columns = [*frame.select(keep).iter_columns(), pl.Series("prediction", predictions.values)]
    if (intervals := predictions.intervals) is not None:
        columns += [pl.Series("lower", intervals[:, 0]), pl.Series("upper", intervals[:, 1])]
    if (probabilities := predictions.probabilities) is not None:
        columns += [pl.Series(f"probability {c}", probabilities[:, i]) for i, c in enumerate(predictions.classes)]
    columns.append(pl.Series("by", [predictions.by] * len(predictions.values)))
    columns.append(pl.Series("away", [" ".join(predictions.away)] * len(predictions.values)))
    columns += [column for one in predictions.matches for column in match_columns(one)] if matches else []
    with atomic_write(out) as part:
        pl.DataFrame(columns).write_csv(part)
    if explain is not None:
        with atomic_write(explain) as part:
            rows = [row for row in range(1, len(frame) + len(skipped) + 1) if row not in skipped]
            explanation_table(predictions.explanations, rows).write_csv(part)
    facts = {"records": len(frame), "by": predictions.by, "away": predictions.away, "reason": predictions.reason}
    facts["needed_online"] = dict(predictions.needed_online)
    offline = f"; offline: {', '.join(predictions.away)}" if predictions.away else ""
    lines = [f"Wrote {out}: {pluralise(len(frame), 'prediction')} by {predictions.by}{offline}"]
    lines += _linking_lines(predictions)
    lines += [] if explain is None else [f"Wrote {explain}: what contributed to each prediction"]
    lines += [f"skipped row {row}: {reason}" for row, reason in list(skipped.items())[:MAX_SKIPPED_SHOWN]]
    if len(skipped) > MAX_SKIPPED_SHOWN:
        lines.append(f"and {len(skipped) - MAX_SKIPPED_SHOWN:,} more rows; --json lists all")
    facts |= {"skipped": [{"row": row, "reason": reason} for row, reason in skipped.items()]}
    named = {"file": str(out), "explanations": None if explain is None else str(explain)}
    mode.show({**facts, **named, **traffic.as_dict()}, lambda: print_lines(lines))


def _linking_lines(predictions: Predictions) -> Iterator[str]:
    """Say of how many records each secondary had to be online; nothing if a coordinator linked them."""
    records = len(predictions.values)
    for name, online in predictions.needed_online.items():
        yield f"{name}: {online:,} of {records:,} records needed it online, {records - online:,} were linked offline"


def _check_predict_outputs(out: Path, explain: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse outputs that cannot be written, would replace an input, or whose name promises another format than CSV."""
    outputs = {"--out": out} if explain is None else {"--out": out, "--explain": explain}
    for option, path in outputs.items():
        if path.suffix.lower() != ".csv":
            seen = f"the extension '{path.suffix}'" if path.suffix else "no extension"
            message = f"{option} {path} has {seen}, but the file is CSV; choose a name that ends in .csv"
            raise SettingError(message, code="not-a-csv-name", option=option, extension=path.suffix)
    check_output_paths(list(outputs.values()), inputs)


def explanation_table(explanations: Sequence[Explanation], numbers: Sequence[int]) -> pl.DataFrame:
    """Return all parts of all explanations, one row each; ``numbers`` are the rows of the records, from one."""
    rows = [{"record": row, **part} for row, one in zip(numbers, explanations, strict=True) for part in one.rows()]
    types = {"name": pl.String, "partner": pl.Int64, **dict.fromkeys(("similarity", "weight", "match"), pl.Float64)}
    return pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)


def find_invalid_rows(frame: pl.DataFrame, prepare: Callable[[pl.DataFrame], object]) -> dict[int, str]:
    """Return the rows of a table (from 1) that cannot be prepared, in order, with the column and the fault."""
    reasons: dict[int, str] = {}
    rows = list(range(len(frame)))
    while rows:
        try:
            prepare(frame[rows])
            break
        except InputError as error:
            if "rows" not in error.details:  # a whole column is missing or wrong
                raise
            faulty = {rows[row - 1] for row in error.rows}
            reasons |= {row + 1: f"column '{error.column}': {error.code.replace('-', ' ')}" for row in faulty}
            rows = [row for row in rows if row not in faulty]
    if not rows:
        message = "no record can be predicted, because every row has an invalid cell; correct the table"
        raise InputError(message, code="no-valid-records")
    return dict(sorted(reasons.items()))


def match_columns(matches: Matches) -> list[pl.Series]:
    """Return the partner that was taken, under a number that counts from one in this file, and how sure that is."""
    number: defaultdict[int, int] = defaultdict(count(1).__next__)
    taken = [None if row < 0 else number[row] for row in matches.taken.tolist()]
    return [
        pl.Series(f"partner in {matches.party}", taken, dtype=pl.Int64),
        pl.Series(f"match in {matches.party}", matches.probability.max(axis=1)),
        pl.Series(f"no match in {matches.party}", matches.unmatched),
    ]


def convert_features(frame: pl.DataFrame, identifiers: Sequence[str], missing: Sequence[str]) -> pl.DataFrame:
    """Convert text that is a number into numbers, as for training; identifiers stay as written.

    >>> convert_features(pl.DataFrame({"house": ["007"], "area": ["40"]}), ["house"], ()).row(0)
    ('007', 40.0)
    """
    features = [column for column in frame.columns if column not in identifiers]
    return frame.with_columns(infer_numbers(frame.select(features), missing).iter_columns())


@contextmanager
def open_predictor(
    job_path: Path, party: Path, wait: float, traffic: TrafficMeter, mode: OutputMode, *, insecure: bool
) -> Iterator[Predictor]:
    """Open the party of a trained primary, and connect with the others until the block ends."""
    job, own = read_job(job_path), read_party_file(party)
    if own.role is not Role.PRIMARY:
        raise SettingError(f"{party} is the file of a {own.role}; only the primary predicts", code="not-the-primary")
    from fedsim.runtime.predictor import Predictor  # with PyTorch, which other commands on results do without

    set_up_logging(own.name, mode, job=job.hash, logs=own.telemetry.logs)
    transport = open_transport(own, insecure=insecure)
    with open_party_context(job, own, transport, software_versions(), predicting=True) as context:
        traffic.connection = context.connection
        yield Predictor(context, wait_seconds=wait)
        for session in context.sessions():
            if not session.is_over:
                session.send(Farewell())


# Data protection


def run_table_key(party_path: Path, mode: OutputMode, *, rotate: bool, destroy: bool) -> None:
    """Show, rotate or destroy the key of a secondary's encrypted table."""
    own, now = _read_table_owner(party_path), datetime.now(UTC)
    if rotate and destroy:
        raise SettingError("--rotate and --destroy exclude each other; give one", code="rotate-and-destroy")
    keys = key_store(own)
    known = keys.record(own.name).keys
    if destroy:
        keys.destroy(own.name, now)
    elif rotate:
        (keys.rotate if known and not known[-1].destroyed else keys.create)(own.name, now)
    record = keys.record(own.name)
    if rotate or destroy:
        facts = {"table": own.name, "public": record.keys[-1].public}
        open_audit_log(own).append("key destroyed" if destroy else "key rotated", facts)
    lines = [
        f"key {life.public[:12]}: created {life.created}{f', destroyed {life.destroyed}' if life.destroyed else ''}"
        for life in record.keys
    ]
    lines += [f"{count:,} tokens evaluated for primary '{primary}'" for primary, count in record.evaluated.items()]
    value = {"keys": [asdict(life) for life in record.keys], "evaluated": dict(record.evaluated)}
    mode.show(value, lambda: print_lines(lines or ["no key yet; the first job without a coordinator creates one"]))


def run_ledger(party_path: Path, mode: OutputMode) -> None:
    """Show what a secondary's table has shown to whom, and what is left."""
    own = _read_table_owner(party_path)
    record, policy = key_store(own).record(own.name), own.policy
    primaries = sorted({*record.evaluated, *(of.primary for of in record.shown)})
    left = {
        name: {
            "tokens": None if policy.max_tokens is None else policy.max_tokens - record.evaluated.get(name, 0),
            "jobs": policy.max_jobs - len(PrimaryBudget.of(own, name).read().jobs),
        }
        for name in primaries
    }
    value = {"table": own.name, "terms": dict(record.terms), "shown": [asdict(of) for of in record.shown]}
    value |= {"evaluated": dict(record.evaluated), "left": left}

    def lines() -> Iterator[str]:
        bound = ", ".join(f"{name} {term}" for name, term in record.terms.items())
        yield f"terms of all jobs: {bound}" if bound else "no averages were shown, so no terms are bound"
        for of in record.shown:
            what = f"{of.vectors:,} vectors, each of at least {of.m:,} rows" if of.m > 1 else "the rows that it reaches"
            yield f"{of.time}  primary '{of.primary}', job {of.job[:12]}, share {of.share}: {what}"
        for name, rest in left.items():
            tokens = "as many tokens as the job says" if rest["tokens"] is None else f"{rest['tokens']:,} tokens"
            spent = record.evaluated.get(name, 0)
            yield f"primary '{name}': {spent:,} tokens evaluated; left: {tokens}, {pluralise(rest['jobs'] or 0, 'job')}"
        yield "no epsilon is defined: averages and links have no noise; `fedsim audit` measures what they show"

    mode.show(value, lambda: print_lines(lines()))


def _read_table_owner(party_path: Path) -> PartyFile:
    own = read_party_file(party_path)
    if own.role is not Role.SECONDARY:
        message = f"{own.party} has no encrypted table; give the party file of a secondary"
        raise SettingError(message, code="not-a-secondary")
    return own


def run_delete(job_path: Path, party_path: Path, secondaries: Sequence[str], mode: OutputMode) -> None:
    """Delete stored rows of these secondaries, and all rows whose retention has ended."""
    job, own = read_job(job_path), read_party_file(party_path)
    require_membership(job, own)
    if own.role is not Role.PRIMARY or not job.protection.sealed:
        fault = "only a primary under sealed labels stores activations of a secondary"
        message = f"there is nothing to delete for {own.party} in job '{job.name}': {fault}"
        raise SettingError(f"{message}; name another job or party", code="nothing-stored")
    if unknown := set(secondaries) - set(job.secondaries):
        message = f"the job has no secondary '{min(unknown)}'; choose from {', '.join(job.secondaries)}"
        raise SettingError(message, code="unknown-party")
    now = datetime.now(UTC)
    with lock_run_folder(job, own):  # no process that still has the rows in memory, or could send them
        requested = {name: run_folder.delete_rows(job, own, name, run_folder.REQUEST, now) for name in secondaries}
        deleted = {**run_folder.delete_expired_rows(job, own, now), **requested}
        until = {name: run_folder.stored_until(job, own, name) for name in job.secondaries}
    lines = [f"Deleted {pluralise(rows, 'row')} of {name}." for name, rows in deleted.items()]
    lines += [f"Rows of {name} may be stored until {end:%Y-%m-%d %H:%M} UTC." for name, end in until.items() if end]
    stored = {name: end.isoformat() if end else None for name, end in until.items()}
    mode.show({"deleted": deleted, "stored_until": stored}, lambda: print_lines(lines or ["No rows are stored."]))
