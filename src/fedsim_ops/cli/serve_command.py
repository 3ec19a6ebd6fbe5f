"""Serve predictions over HTTP as this process (``fedsim serve``)."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim.cli import options as opt
from fedsim.cli.options import OutputMode, Quiet, flag, option

MIN_TOKEN_LENGTH = 16
SHUTDOWN_SECONDS = 5  # for requests in progress when the service is stopped
log = logging.getLogger("fedsim.parties")


def serve(
    job: opt.JobFile,
    party: opt.PartyPath,
    host: Annotated[str, option("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None, option("NAME", "Name by which clients address the service; may be repeated.")
    ] = None,
    token: Annotated[
        Path | None, option("FILE", "File with the token that clients must send; by default one is created.")
    ] = None,
    tls_certificate: Annotated[Path | None, option("FILE", "Certificate of the service in PEM format.")] = None,
    tls_key: Annotated[Path | None, option("FILE", "Private key of the certificate in PEM format.")] = None,
    wait: opt.Wait = 5.0,
    insecure: opt.Insecure = False,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Annotated[bool, flag("Print the address as one JSON object.", "--json")] = False,
) -> None:
    """Serve predictions over HTTP at the primary; the other parties run with --stay.

    The service answers at /predict and /health, and has a page for browsers. Clients send a token, which is in the run
    folder (serve.token) unless --token names another file.
    """
    import os
    import secrets
    import socket
    import ssl
    import threading
    from importlib.resources import files

    import uvicorn

    from fedsim.cli.party import measure_traffic
    from fedsim.cli.results import open_predictor
    from fedsim.errors import SettingError
    from fedsim.protocol.tls import is_loopback
    from fedsim.runs.run_folder import TOKEN_FILE
    from fedsim.storage.files import atomic_write
    from fedsim_ops.connection_guard import ConnectionGuard, connection_limit
    from fedsim_ops.service import create_app

    mode, secure = OutputMode(quiet, as_json, verbose), _tls_settings(tls_certificate, tls_key)
    if token is not None:
        _read_token(token)  # a bad one is reported before anything else is done
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
        open_predictor(job, party, wait, traffic, mode, insecure=insecure) as predictor,
        suppress(KeyboardInterrupt),  # the usual way to stop a service
    ):
        token_path = token or predictor.context.folder / TOKEN_FILE
        if not token_path.exists():
            with atomic_write(token_path, mode=0o600) as part:
                part.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
        guard = ConnectionGuard(listener.getsockname()[1], connection_limit())
        style = files("fedsim.report").joinpath("page.css").read_text(encoding="utf-8")
        app = create_app(
            predictor, _read_token(token_path), hosts={host, *(allow_host or ())}, guard=guard, style=style
        )
        settings = {**secure, "limit_concurrency": guard.limit, "timeout_graceful_shutdown": SHUTDOWN_SECONDS}
        config = uvicorn.Config(app, log_level="warning", access_log=False, http="h11", ws="none", **settings)
        config.load()
        if config.ssl:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
        elif not is_loopback(f"{host}:{port}"):
            log.warning("token and records travel in plaintext; use --tls-certificate, or a proxy with TLS")
        url = f"{'https' if config.ssl else 'http'}://{host}:{listener.getsockname()[1]}/"
        text = f"Serving predictions at {url}. Clients send the token in {token_path}. Press Ctrl-C to stop."
        facts = {"address": url, "token": str(token_path), "columns": predictor.columns}
        mode.show(facts, lambda: typer.echo(text))
        threading.Thread(target=predictor.keep_dialling, daemon=True).start()
        guard.start()
        uvicorn.Server(config).run(sockets=[listener])


def _tls_settings(certificate: Path | None, key: Path | None) -> dict[str, Any]:
    """Return what the server needs for TLS; nothing without a certificate."""
    from fedsim.errors import SettingError
    from fedsim.storage.files import check_private, check_readable

    if (certificate is None) != (key is None):
        message = "TLS needs a certificate and its key; give both --tls-certificate and --tls-key"
        raise SettingError(message, code="half-a-certificate")
    if certificate is None or key is None:
        return {}
    check_readable(certificate)
    check_readable(key)
    check_private(key)
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _read_token(path: Path) -> str:
    from fedsim.errors import FileError
    from fedsim.storage.files import check_private

    check_private(path)
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        message = f"cannot read the token in {path}; write one line of letters and digits"
        raise FileError(message, code="invalid-token") from error
    if len(token) < MIN_TOKEN_LENGTH:
        message = f"the token in {path} has {len(token)} characters; use at least {MIN_TOKEN_LENGTH}"
        raise FileError(message, code="token-too-short", limit=MIN_TOKEN_LENGTH)
    return token
