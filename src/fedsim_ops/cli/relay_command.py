"""Run a relay as this process (``fedsim relay``)."""

import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli import STOP_SIGNALS, options as opt
from fedsim.cli.options import OutputMode, Quiet, flag, option

if TYPE_CHECKING:
    from fedsim_ops.relay import Relay

log = logging.getLogger("fedsim.parties")


def relay(
    certificate: Annotated[Path, option("FILE", "Certificate of the relay, from `fedsim certs --relay NAME`.")],
    ca: Annotated[
        list[Path], option("FILE", "Authority (ca.pem) of parties to serve; may be repeated for several jobs.", "--ca")
    ],
    listen: Annotated[str, option("ADDRESS", "Host and port to listen at.")] = "0.0.0.0:7400",
    key: Annotated[
        Path | None, option("FILE", "Key of the certificate. Default: the .key file beside the certificate.")
    ] = None,
    revoked: Annotated[
        list[Path] | None, option("FILE", "An authority's list of revoked certificates; repeat for each.")
    ] = None,
    metrics: Annotated[
        str | None, option("ADDRESS", "Host and port where Prometheus reads metrics, such as 127.0.0.1:9464.")
    ] = None,
    quiet: Quiet = False,
    verbose: opt.Verbose = False,
    as_json: Annotated[bool, flag("Print the address as one JSON object.", "--json")] = False,
) -> None:
    """Run a relay for parties that cannot accept incoming connections.

    All parties connect to it. Anyone can run it, on a machine that all parties can reach. The job gives the addresses
    of coordinator and primary as relay://host:port. Traffic is encrypted between the parties; the relay sees who talks
    to whom, when and how much.

    fedsim relay --certificate relay-hub.pem --ca ca.pem --listen 0.0.0.0:7400
    """
    import asyncio

    from fedsim.cli.party import set_up_logging
    from fedsim.protocol.tls import RENEWAL_DAYS
    from fedsim_ops.relay import open_listener, read_relay
    from fedsim_ops.telemetry import MetricSample, serve_metrics

    mode = OutputMode(quiet, as_json, verbose)
    served = read_relay(ca, certificate, key or certificate.with_suffix(".key"), revoked or [])
    set_up_logging("relay", mode)
    if (days := served.credentials.days_left(datetime.now(UTC))) < RENEWAL_DAYS:
        log.warning("the certificate of the relay expires in %d days", days)
    with ExitStack() as stack:
        listener = stack.enter_context(open_listener(listen))
        if metrics is not None:

            def samples() -> list[MetricSample]:
                return [MetricSample(f"fedsim_relay_{name}", value) for name, value in served.figures().items()]

            stack.enter_context(serve_metrics(metrics, samples))
        port = listener.getsockname()[1]
        place = f"{listen.rpartition(':')[0]}:{port}"
        text = f"Relaying at {place}. Addresses in a job: relay://HOST:{port}. Press Ctrl-C to stop."
        announce = partial(mode.show, {"address": place}, lambda: typer.echo(text))
        with suppress(KeyboardInterrupt):  # the usual way to stop a service
            asyncio.run(_serve_relay(served, listener, announce))


async def _serve_relay(relay: "Relay", listener: socket.socket, announce: Callable[[], None]) -> None:
    import asyncio

    serving = asyncio.ensure_future(relay.serve(listener))
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    announce()  # from now on, a signal ends it in order
    with suppress(asyncio.CancelledError):
        await serving
