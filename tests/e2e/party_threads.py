"""All parties of a job in threads of this process, each with a transport of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fedsim.config.party_file import PartyFile
from fedsim.errors import PeerError
from fedsim.protocol.messages import LedgerEntry, Role
from fedsim.protocol.transport import Transport
from fedsim.runtime.coordinator import run_coordinator
from fedsim.runtime.party_context import open_party_context, open_transport, software_versions
from fedsim.runtime.primary import run_primary
from fedsim.runtime.secondary import run_secondary
from fedsim_lab.faults.local_job import LocalJob

RUN = {Role.COORDINATOR: run_coordinator, Role.PRIMARY: run_primary, Role.SECONDARY: run_secondary}


def mutual_tls(own: PartyFile) -> Transport:
    return open_transport(own)


def run_in_threads(
    place: LocalJob, transport_of: Callable[[PartyFile], Transport] = mutual_tls
) -> dict[str, list[LedgerEntry]]:
    """Run the job; gives every party's ledger."""
    with ThreadPoolExecutor() as threads:
        running = {name: threads.submit(_run, place, name, transport_of) for name in place.names}
        faults = [fault for one in running.values() if (fault := one.exception())]
        for fault in sorted(faults, key=lambda fault: isinstance(fault, PeerError)):  # whoever failed first, first
            raise fault
        return {name: one.result() for name, one in running.items()}


def _run(place: LocalJob, name: str, transport_of: Callable[[PartyFile], Transport]) -> list[LedgerEntry]:
    own = place.own(name)
    with open_party_context(place.job, own, transport_of(own), software_versions()) as post:
        RUN[own.role](post)  # type: ignore[operator]
    return post.connection.ledger.entries()
