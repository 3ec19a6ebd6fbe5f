"""Run a relay as this process (``fedsim relay``)."""

import asyncio
import logging
import socket
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import typer

from fedsim.cli import STOP_SIGNALS
from fedsim.cli.options import OutputMode
from fedsim.cli.party import set_up_logging
from fedsim.protocol.tls import RENEWAL_DAYS
from fedsim_ops.relay import Relay, open_listener, read_relay
from fedsim_ops.telemetry import MetricSample, serve_metrics

log = logging.getLogger("fedsim.parties")


def run_relay(
    authorities: list[Path],
    certificate: Path,
    key: Path | None,
    revoked: list[Path],
    address: str,
    mode: OutputMode,
    *,
    metrics: str | None = None,
) -> None:
    """Run a relay as this process, until it is stopped; ``metrics`` is where Prometheus reads its figures."""
    relay = read_relay(authorities, certificate, key or certificate.with_suffix(".key"), revoked)
    set_up_logging("relay", mode)
    if (days := relay.credentials.days_left(datetime.now(UTC))) < RENEWAL_DAYS:
        log.warning("the certificate of the relay expires in %d days", days)
    with ExitStack() as stack:
        listener = stack.enter_context(open_listener(address))
        if metrics is not None:

            def samples() -> list[MetricSample]:
                return [MetricSample(f"fedsim_relay_{name}", value) for name, value in relay.figures().items()]

            stack.enter_context(serve_metrics(metrics, samples))
        place = f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
        text = (
            f"Relaying at {place}. Addresses in a job: relay://HOST:{listener.getsockname()[1]}. Press Ctrl-C to stop."
        )
        mode.show({"address": place}, lambda: typer.echo(text))
        with suppress(KeyboardInterrupt):  # the usual way to stop a service
            asyncio.run(_serve_relay(relay, listener))


async def _serve_relay(relay: Relay, listener: socket.socket) -> None:
    serving = asyncio.ensure_future(relay.serve(listener))
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving
