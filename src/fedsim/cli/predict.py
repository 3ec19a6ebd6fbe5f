"""Predict a table of new records or serve predictions over HTTP (``fedsim predict`` and ``fedsim serve``)."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import typer
import uvicorn

from fedsim.cli.party import TrafficMeter, load_credentials, measure_traffic, set_up_logging
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.data.columns import infer_numbers
from fedsim.data.sql import TableSource
from fedsim.data.table_reader import read_table, source_files
from fedsim.errors import FileError, InputError, SettingError
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Farewell, Role
from fedsim.protocol.tls import is_loopback
from fedsim.runtime.party_context import open_party_context, software_versions
from fedsim.runtime.predict import Predictions, Predictor
from fedsim.serving.service import create_app
from fedsim.storage.files import atomic_write, check_output_paths

MIN_TOKEN_LENGTH = 16
SHUTDOWN_SECONDS = 5  # seconds for questions that are being answered when the service is stopped


@dataclass(frozen=True)
class PredictionBatch:
    """A table of new records, the columns to copy beside their predictions, and the file for both."""

    records: TableSource
    separator: str | None
    keep: tuple[str, ...]
    out: Path

    def read(self, usual: str | None) -> pl.DataFrame:
        """The records, with every column that is to be kept; split at the ``usual`` separator where none is named."""
        frame = read_table(self.records, separator=self.separator or usual)
        for column in self.keep:
            if column not in frame.columns:
                raise InputError(f"{self.records} has no column '{column}' to keep; it has {', '.join(frame.columns)}")
        return frame


def run_predict(job: Path, party: Path, batch: PredictionBatch, wait: float, **ways: bool) -> None:
    """Write the predictions of a table, and print what was done."""
    check_output_paths([batch.out], [job, party, *source_files([batch.records])])
    own, silent = read_party_file(party).data, ways["quiet"] or ways["as_json"]
    frame = batch.read(own.separator if own else None)
    with measure_traffic(quiet=silent) as count, _open_predictor(job, party, wait, count, **ways) as predictor:
        missing = own.missing if own else ()
        found = predictor.predict(convert_features(frame, predictor.identifiers, missing), str(batch.records))
    _write_predictions(frame.select(batch.keep), found, batch.out)
    if ways["as_json"]:
        told = {"records": len(frame), "by": found.by, "away": found.away, "reason": found.reason}
        typer.echo(json.dumps({**told, "file": str(batch.out), **count.described()}, ensure_ascii=False))
    elif not silent:
        partners = f"; away: {', '.join(found.away)}" if found.away else ""
        typer.echo(f"{len(frame):,} predictions by {found.by} in {batch.out}{partners}")


def convert_features(frame: pl.DataFrame, identifiers: Sequence[str], missing: Sequence[str]) -> pl.DataFrame:
    """The records as training has them: text that is a number becomes one, but for identifiers, which stay as written.

    >>> convert_features(pl.DataFrame({"house": ["007"], "area": ["40"]}), ["house"], ()).row(0)
    ('007', 40.0)
    """
    features = [column for column in frame.columns if column not in identifiers]
    return frame.with_columns(infer_numbers(frame.select(features), missing).iter_columns())


def run_serve(job: Path, party: Path, where: tuple[str, int], token: Path | None, wait: float, **ways: bool) -> None:
    """Serve until stopped."""
    secret = _read_token(token)
    if secret is None and not is_loopback(f"{where[0]}:{where[1]}"):
        raise SettingError(f"--host {where[0]} can be reached by others; give --token a file, or serve on 127.0.0.1")
    with (
        _listen(*where) as door,
        measure_traffic(quiet=ways["quiet"] or ways["as_json"]) as count,
        _open_predictor(job, party, wait, count, **ways) as predictor,
        suppress(KeyboardInterrupt),  # the way it ends
    ):
        address = f"http://{where[0]}:{door.getsockname()[1]}/"
        if ways["as_json"]:
            print(json.dumps({"address": address, "columns": predictor.columns}, ensure_ascii=False), flush=True)
        elif not ways["quiet"]:
            print(f"predictions at {address} (Ctrl-C ends)", flush=True)
        app = create_app(predictor, secret)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS)
        threading.Thread(target=predictor.keep_dialling, daemon=True).start()
        uvicorn.Server(config).run(sockets=[door])


@contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    """The door, opened before anything else is done."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        door = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else "no such address"
        raise SettingError(f"cannot serve at {host}, port {port}: {reason}; choose another --host or --port") from error
    with door:
        yield door


@contextmanager
def _open_predictor(job: Path, party: Path, wait: float, count: TrafficMeter, **ways: bool) -> Iterator[Predictor]:
    agreed, own = read_job(job), read_party_file(party)
    if own.role is not Role.PRIMARY:
        raise SettingError(f"{party} is the file of a {own.role}; only the primary predicts")
    set_up_logging(own.name, quiet=ways["quiet"], verbose=ways["verbose"])
    transport = GrpcTransport(load_credentials(own, ways["insecure"]))
    with open_party_context(agreed, own, transport, software_versions()) as post:
        count.connection = post.connection
        yield Predictor(post, wait_seconds=wait)
        for session in post.sessions():
            if not session.is_over:
                session.post(Farewell())


def _read_token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read the token in {path}; write one line of letters and digits") from error
    if len(found) < MIN_TOKEN_LENGTH:
        raise FileError(f"the token in {path} has {len(found)} characters; use at least {MIN_TOKEN_LENGTH}")
    return found


def _write_predictions(kept: pl.DataFrame, found: Predictions, out: Path) -> None:
    columns = [*kept.iter_columns(), pl.Series("prediction", found.values)]
    if found.probabilities is not None:
        columns += [pl.Series(f"probability {name}", found.probabilities[:, i]) for i, name in enumerate(found.classes)]
    columns.append(pl.Series("by", [found.by] * len(found.values)))
    with atomic_write(out) as part:
        pl.DataFrame(columns).write_csv(part)
