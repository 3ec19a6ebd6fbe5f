"""Predict a table of new records or serve predictions over HTTP (``fedsim predict`` and ``fedsim serve``)."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl
import typer
import uvicorn

from fedsim.cli.options import OutputMode
from fedsim.cli.party import TrafficMeter, measure_traffic, set_up_logging
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.data.sql import TableSource
from fedsim.data.table_reader import infer_numbers, read_table, source_files
from fedsim.errors import FileError, InputError, SettingError
from fedsim.protocol.messages import Farewell, Role
from fedsim.protocol.tls import is_loopback
from fedsim.report.formatting import pluralise
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.runtime.predict import Predictor
from fedsim.serving import create_app
from fedsim.storage.files import atomic_write, check_output_paths

MIN_TOKEN_LENGTH = 16
SHUTDOWN_SECONDS = 5  # for requests in progress when the service is stopped


def run_predict(
    job: Path,
    party: Path,
    records: TableSource,
    out: Path,
    mode: OutputMode,
    *,
    keep: Sequence[str],
    separator: str | None,
    wait: float,
    insecure: bool,
) -> None:
    """Predict the records of a table and write the predictions, with the columns to ``keep`` beside them."""
    check_output_paths([out], [job, party, *source_files([records])])
    data = read_party_file(party).data
    frame = read_table(records, separator=separator or (data.separator if data else None))
    for column in keep:
        if column not in frame.columns:
            message = f"{records} has no column '{column}' to keep; its columns are {', '.join(frame.columns)}"
            raise InputError(message, code="no-such-column", column=column)
    with (
        measure_traffic(quiet=mode.silent) as traffic,
        _open_predictor(job, party, wait, traffic, mode, insecure=insecure) as predictor,
    ):
        features = convert_features(frame, predictor.identifiers, data.missing if data else ())
        predictions = predictor.predict(features, str(records))
    columns = [*frame.select(keep).iter_columns(), pl.Series("prediction", predictions.values)]
    if (probabilities := predictions.probabilities) is not None:
        columns += [pl.Series(f"probability {c}", probabilities[:, i]) for i, c in enumerate(predictions.classes)]
    columns.append(pl.Series("by", [predictions.by] * len(predictions.values)))
    with atomic_write(out) as part:
        pl.DataFrame(columns).write_csv(part)
    facts = {"records": len(frame), "by": predictions.by, "away": predictions.away, "reason": predictions.reason}
    offline = f"; offline: {', '.join(predictions.away)}" if predictions.away else ""
    text = f"Wrote {out}: {pluralise(len(frame), 'prediction')} by {predictions.by}{offline}"
    mode.show({**facts, "file": str(out), **traffic.as_dict()}, lambda: typer.echo(text))


def convert_features(frame: pl.DataFrame, identifiers: Sequence[str], missing: Sequence[str]) -> pl.DataFrame:
    """Convert text that is a number into numbers, as for training; identifiers stay as written.

    >>> convert_features(pl.DataFrame({"house": ["007"], "area": ["40"]}), ["house"], ()).row(0)
    ('007', 40.0)
    """
    features = [column for column in frame.columns if column not in identifiers]
    return frame.with_columns(infer_numbers(frame.select(features), missing).iter_columns())


def run_serve(
    job: Path, party: Path, host: str, port: int, token: Path | None, wait: float, mode: OutputMode, *, insecure: bool
) -> None:
    """Serve predictions over HTTP until the process is stopped."""
    secret = _read_token(token)
    if secret is None and not is_loopback(f"{host}:{port}"):
        message = f"--host {host} is reachable from other machines; use --token, or serve on 127.0.0.1"
        raise SettingError(message, code="token-required")
    try:  # open the port before anything else is done
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else "no such address"
        message = f"cannot serve at {host}, port {port}: {reason}; choose another --host or --port"
        raise SettingError(message, code="cannot-listen") from error
    with (
        listener,
        measure_traffic(quiet=mode.silent) as traffic,
        _open_predictor(job, party, wait, traffic, mode, insecure=insecure) as predictor,
        suppress(KeyboardInterrupt),  # the usual way to stop a service
    ):
        url = f"http://{host}:{listener.getsockname()[1]}/"
        text = f"Serving predictions at {url}. Press Ctrl-C to stop."
        mode.show({"address": url, "columns": predictor.columns}, lambda: typer.echo(text))
        app = create_app(predictor, secret)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS)
        threading.Thread(target=predictor.keep_dialling, daemon=True).start()
        uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def _open_predictor(
    job_path: Path, party: Path, wait: float, traffic: TrafficMeter, mode: OutputMode, *, insecure: bool
) -> Iterator[Predictor]:
    job, own = read_job(job_path), read_party_file(party)
    if own.role is not Role.PRIMARY:
        raise SettingError(f"{party} is the file of a {own.role}; only the primary predicts", code="not-the-primary")
    set_up_logging(own.name, mode)
    transport = open_transport(own, insecure=insecure)
    with open_party_context(job, own, transport, software_versions()) as context:
        traffic.connection = context.connection
        yield Predictor(context, wait_seconds=wait)
        for session in context.sessions():
            if not session.is_over:
                session.send(Farewell())


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        message = f"cannot read the token in {path}; write one line of letters and digits"
        raise FileError(message, code="invalid-token") from error
    if len(token) < MIN_TOKEN_LENGTH:
        message = f"the token in {path} has {len(token)} characters; use at least {MIN_TOKEN_LENGTH}"
        raise FileError(message, code="token-too-short", limit=MIN_TOKEN_LENGTH)
    return token
