"""All parties of a job in threads of this process, each with a transport of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from e2e.jobs import Place
from fedsim.cli.party_run import credentials_of
from fedsim.errors import PeerError
from fedsim.party.coordinator import run_coordinator
from fedsim.party.party_file import PartyFile
from fedsim.party.post import at_post
from fedsim.party.primary import run_primary
from fedsim.party.secondary import run_secondary
from fedsim.party.versions import versions_here
from fedsim.protocol.ledger import Entry
from fedsim.protocol.parties import Role
from fedsim.protocol.transport.base import Transport
from fedsim.protocol.transport.grpc import GrpcTransport

RUN = {Role.COORDINATOR: run_coordinator, Role.PRIMARY: run_primary, Role.SECONDARY: run_secondary}


def mutual_tls(own: PartyFile) -> Transport:
    return GrpcTransport(credentials_of(own, insecure=False))


def run_in_threads(place: Place, transport_of: Callable[[PartyFile], Transport] = mutual_tls) -> dict[str, list[Entry]]:
    """Run the job; gives every party's ledger."""
    with ThreadPoolExecutor() as threads:
        running = {name: threads.submit(_run, place, name, transport_of) for name in place.names}
        faults = [fault for one in running.values() if (fault := one.exception())]
        for fault in sorted(faults, key=lambda fault: isinstance(fault, PeerError)):  # whoever failed first, first
            raise fault
        return {name: one.result() for name, one in running.items()}


def _run(place: Place, name: str, transport_of: Callable[[PartyFile], Transport]) -> list[Entry]:
    own = place.own(name)
    with at_post(place.job, own, transport_of(own), versions_here()) as post:
        RUN[own.role](post)  # type: ignore[operator]
    return post.station.ledger.entries()
