"""Keep callers that do not identify themselves from using up the file descriptors of this process.

gRPC owns its listening socket and accepts at most :func:`connection_limit` connections at a time, so that own files and
own calls always find a free descriptor. The guard looks at those connections a few times a second and closes the oldest
ones that are not in use: those above a limit per address, above a limit in total, and those that take too long. A
connection is held while an authenticated stream or an HTTP request uses it. Held connections are never touched, and
their bytes pass no extra hop.

It finds the sockets in /proc; without it, on other systems than Linux, only the total of gRPC is limited.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

log = logging.getLogger("fedsim.parties")

MAX_CONNECTIONS = 256
DESCRIPTOR_SHARE = 4  # connections may use one descriptor in four
ADDRESS_SHARE, WAITING_SHARE = 16, 4  # of the connections may be unused: from one address, and in total
HOLD_SECONDS = 20.0  # for TLS and the first stream or request
SWEEP_SECONDS = 0.1
LOG_EVERY_SECONDS = 60.0
DESCRIPTORS = Path("/proc/self/fd")
_GRPC_PEER = re.compile(r"ipv[46]:\[?([^\]]+)\]?:([0-9]+)")

Endpoint = tuple[str, int]


def connection_limit(most: int = MAX_CONNECTIONS, share: int = DESCRIPTOR_SHARE) -> int:
    """Return how many connections may be open at a time, given the descriptors that this process may open."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return most
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return most
    return max(ADDRESS_SHARE, min(most, descriptors // share))


def grpc_endpoint(peer: str) -> Endpoint | None:
    """Return address and port of a peer as gRPC writes it; None for anything but TCP.

    >>> grpc_endpoint("ipv6:%5B::1%5D:7411"), grpc_endpoint("unix:")
    (('::1', 7411), None)
    """
    found = _GRPC_PEER.fullmatch(unquote(peer))
    return (_plain_address(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class _Connection:
    """An accepted connection: its socket's number in the kernel, the caller, and when it was first seen."""

    inode: int
    caller: Endpoint
    since: float


class ConnectionGuard(threading.Thread):
    """Watches the connections to one port of this process.

    Parameters
    ----------
    port
        The port that this process listens on.
    limit
        The connections that may be open at a time.
    """

    def __init__(self, port: int, limit: int) -> None:
        super().__init__(name=f"fedsim-guard-{port}", daemon=True)
        self.port, self.limit = port, limit
        self.closed = 0  # connections that it has closed
        self._over = threading.Event()
        self._held: Counter[Endpoint | None] = Counter()
        self._seen: dict[int, _Connection | None] = {}  # by inode; None for other sockets
        self._lock = threading.Lock()
        self._logged = -LOG_EVERY_SECONDS
        # When no descriptor is left, the guard must still be able to work: it has these two.
        self._null, self._reserve = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))

    @contextmanager
    def hold(self, caller: Endpoint | str | None) -> Iterator[None]:
        """Leave the connection of this caller, or of a peer as gRPC writes it, alone while the block runs."""
        caller = grpc_endpoint(caller) if isinstance(caller, str) else caller
        with self._lock:
            self._held[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[caller] -= 1
                self._held += Counter()  # forget zeros

    def run(self) -> None:
        while DESCRIPTORS.is_dir() and not self._over.wait(SWEEP_SECONDS):
            self.sweep(time.monotonic())
        for descriptor in (self._null, self._reserve):
            os.close(descriptor)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def sweep(self, now: float) -> None:
        """Close the connections that are too many or too slow."""
        sockets = _open_sockets()
        known = self._seen
        self._seen = {
            node: known[node] if node in known else self._look_at(node, sockets[node], now) for node in sockets
        }
        with self._lock:
            waiting = [each for each in self._seen.values() if each and each.caller not in self._held]
        surplus = self._surplus(sorted(waiting, key=lambda each: -each.since), now)
        for each in surplus:
            with suppress(OSError), self._duplicate(sockets[each.inode], each.inode) as connection:
                connection.shutdown(socket.SHUT_RDWR)  # gRPC reads the end of the connection and closes it
        self.closed += len(surplus)
        if surplus and now - self._logged >= LOG_EVERY_SECONDS:
            self._logged = now
            addresses = len({each.caller[0] for each in surplus})
            fault = "closed %d connections from %d address(es) that did not identify themselves; %d in all so far"
            log.warning(f"{fault}; others are not affected", len(surplus), addresses, self.closed)

    def _surplus(self, newest_first: list[_Connection], now: float) -> list[_Connection]:
        """Return those beyond the limits; an honest caller needs milliseconds, so the oldest are the idle ones."""
        per_address: Counter[str] = Counter()
        surplus = []
        for place, each in enumerate(newest_first):
            per_address[each.caller[0]] += 1
            crowded = per_address[each.caller[0]] > self.limit // ADDRESS_SHARE or place >= self.limit // WAITING_SHARE
            if crowded or now - each.since > HOLD_SECONDS:
                surplus.append(each)
        return surplus

    def _look_at(self, inode: int, descriptor: int, now: float) -> _Connection | None:
        with suppress(OSError), self._duplicate(descriptor, inode) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == self.port:
                host, port = found.getpeername()[:2]  # the listening socket has none
                return _Connection(inode, (_plain_address(host), port), now)
        return None

    @contextmanager
    def _duplicate(self, descriptor: int, inode: int) -> Iterator[socket.socket]:
        """Hold a socket by a descriptor of our own, because gRPC may close its own at any time."""
        os.dup2(descriptor, self._reserve, inheritable=False)
        found = socket.socket(fileno=self._reserve)
        try:
            if os.fstat(self._reserve).st_ino != inode:
                raise OSError("another file has this descriptor now")
            yield found
        finally:
            found.detach()
            os.dup2(self._null, self._reserve, inheritable=False)


def _open_sockets() -> dict[int, int]:
    """Return the descriptor of every socket of this process by its inode."""
    try:
        descriptors: Iterable[int] = map(int, os.listdir(DESCRIPTORS))  # noqa: PTH208 - often, without a path for each
    except OSError:  # there is no free descriptor to read the folder with
        descriptors = range(os.sysconf("SC_OPEN_MAX"))
    found = {}
    for descriptor in descriptors:
        with suppress(OSError):  # closed in the meantime
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = descriptor
    return found


def _plain_address(host: str) -> str:
    """Return an IPv4 address as such even where IPv6 sockets write it as ``::ffff:10.0.0.1``."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
