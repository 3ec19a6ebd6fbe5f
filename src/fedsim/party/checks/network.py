"""The network: is the own port free, and do the peers that are dialled answer?"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from fedsim.party.checks.finding import Finding, failed, fails, ok, telling, warning
from fedsim.party.checks.subject import Case
from fedsim.protocol.parties import Party, Role
from fedsim.protocol.tls import Credentials, diagnose, split_address

SECONDS = 3.0  # of patience with each step of a call
DIALLED = {Role.COORDINATOR: (), Role.PRIMARY: (Role.COORDINATOR,), Role.SECONDARY: (Role.COORDINATOR, Role.PRIMARY)}
ELSEWHERE = "check it on the machine it is for, or give [network] listen in the party file"
_REASONS = {
    errno.EADDRINUSE: ("is in use", "stop what listens there, or agree on another port"),
    errno.EADDRNOTAVAIL: ("is no address of this machine", ELSEWHERE),
    errno.EACCES: ("is not for ordinary users", "take a port above 1023"),
}


def port(case: Case) -> Iterator[Finding]:
    """Whoever is dialled can listen; nothing is sent or answered."""
    if case.own.role is Role.SECONDARY:
        return
    address = case.own.network.listen or case.job.address_of(case.own.party)
    host, number = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(place)
    except (socket.gaierror, UnicodeError):
        yield fails("port", f"the host of {address} is unknown here", ELSEWHERE)
    except OSError as error:
        what, fix = _REASONS.get(error.errno or 0, (f"cannot be used ({error.strerror})", ELSEWHERE))
        yield fails("port", f"{address} {what}", fix)
    else:
        yield ok("port", f"{address} is free")


@dataclass(frozen=True)
class Peers:
    """Calls the peers that a party dials: a TLS handshake, in which only the certificate is shown."""

    credentials: Credentials | None

    def __call__(self, case: Case) -> Iterator[Finding]:
        dialled = [peer for peer in case.job.parties if peer.role in DIALLED[case.own.role]]
        if dialled and self.credentials is None:
            yield warning("peers", "nobody was called, for there is no certificate to show", "see to the certificate")
        elif self.credentials:
            yield from (_called(case.job.address_of(peer), self.credentials, peer) for peer in dialled)


def _called(address: str, credentials: Credentials, peer: Party) -> Finding:
    fault = diagnose(address, credentials, peer, SECONDS)
    if fault:
        return failed("peers", fault)
    return telling("peers", f"{peer} answers at {address}{_ping(address)}")


def _ping(address: str) -> str:
    """How long a connection takes to stand: one round trip."""
    began = time.perf_counter()
    try:
        socket.create_connection(split_address(address), timeout=SECONDS).close()
    except OSError:
        return ""
    return f", ping {1000 * (time.perf_counter() - began):.1f} ms"
