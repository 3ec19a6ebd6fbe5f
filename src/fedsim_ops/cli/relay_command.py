"""The declaration of ``fedsim relay``."""

from pathlib import Path
from typing import Annotated

from fedsim.cli import options as opt
from fedsim.cli.options import OutputMode, Quiet, flag, option


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
    from fedsim_ops.cli.relay_output import run_relay

    run_relay(ca, certificate, key, revoked or [], listen, OutputMode(quiet, as_json, verbose), metrics=metrics)
