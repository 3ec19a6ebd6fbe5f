"""Outgoing connections of a party: directly, through an HTTP or SOCKS5 proxy, and through a relay.

A party behind a relay opens no port. It holds one connection to the relay, the *registration*: mutual TLS, one line per
request. A caller asks the relay on such a connection, too. The relay then gives one ticket to the caller and one
to the registered party; each opens a data connection, shows its ticket in an HTTP CONNECT request, and the relay joins
the two. What follows is the TLS of the two parties, which the relay cannot read. A ticket is random, valid once and for
seconds, so it is useless to an observer of the network.
"""

from __future__ import annotations

import base64
import fcntl
import ipaddress
import logging
import os
import re
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedsim.errors import FileError, SettingError
from fedsim.protocol import certificates as certs
from fedsim.protocol.addresses import Proxy, RelayAddress, split_address
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.session import MAX_RETRY_SECONDS, retry_pauses
from fedsim.protocol.tls import Credentials, client_context
from fedsim.protocol.transport import ConnectionLost

log = logging.getLogger("fedsim.parties")

CONNECT_SECONDS = 5.0  # for each step of a connection
PING_SECONDS, SILENCE_SECONDS = 10.0, 30.0  # of a registration; a relay or party that is silent longer is gone
MAX_LINE = 200  # bytes of a request to the relay
MAX_HEADER = 2048  # bytes of an answer to CONNECT
MAX_SOCKET_PATH = 103  # bytes of the path of a Unix socket on any system
MAX_JOINED = 64  # connections that a relay may ask a registered party for at a time
PIECE = 1 << 20
TICKET_HOST = ".ticket.fedsim:443"  # follows a ticket in a CONNECT request
LISTEN, CALL, OPEN, OK, ERROR, PING, PONG = "LISTEN", "CALL", "OPEN", "OK", "ERROR", "PING", "PONG"
# What the relay answers, and whether asking again is pointless.
RELAY_ERRORS = {
    "not-registered": ("{peer} is not connected to the relay {relay}; start it", False),
    "name-taken": ("another process is registered as this party at the relay {relay}; stop one of them", False),
    "too-many": ("the relay {relay} accepts no more connections from this party or its authority", False),
    "revoked": ("the relay {relay} refuses our certificate: it was revoked", True),
    "bad-request": ("the relay {relay} did not understand the request; install the same release everywhere", True),
}


@dataclass(frozen=True)
class ProxyClient:
    """Speaks with a proxy."""

    proxy: Proxy

    def open(self, address: str, seconds: float) -> socket.socket:
        """Return a connection to an address; raise ``ConnectionLost`` if the proxy refuses."""
        try:
            link = socket.create_connection(split_address(self.proxy.address), timeout=seconds)
        except (OSError, UnicodeError) as error:
            fault = f"the proxy {self.proxy.address} cannot be reached ({_reason(error)}); check network.proxy"
            raise ConnectionLost(fault, code="proxy-unreachable") from None
        try:
            with _closed_on_failure(link):
                (self._socks5 if self.proxy.kind == "socks5" else self._connect)(link, address)
        except (OSError, UnicodeError) as error:
            fault = f"the proxy {self.proxy.address} did not connect to {address} ({_reason(error)})"
            raise ConnectionLost(fault, code="proxy-failed") from None
        return link

    def _connect(self, link: socket.socket, address: str) -> None:
        login = base64.b64encode(f"{self.proxy.user}:{self.proxy.password}".encode()).decode()
        status = request_connect(link, address, f"Proxy-Authorization: Basic {login}\r\n" if self.proxy.user else "")
        if status == 407:
            self._fail("requires another user or password; set network.proxy_login", "proxy-login", lasting=True)
        if status == 403:
            self._fail(f"does not allow connections to {address}; ask its operator", "proxy-forbids", lasting=True)
        if status != 200:
            self._fail(f"cannot connect to {address} (HTTP status {status})", "proxy-failed")

    def _socks5(self, link: socket.socket, address: str) -> None:
        """Speak SOCKS version 5 (RFC 1928) with an optional user and password (RFC 1929)."""
        link.sendall(b"\x05\x02\x00\x02" if self.proxy.user else b"\x05\x01\x00")
        version, method = receive_exactly(link, 2)
        if version != 5:
            self._fail("is not a SOCKS5 proxy; check network.proxy", "proxy-failed", lasting=True)
        if method == 2 and self.proxy.user:
            user, password = self.proxy.user.encode(), self.proxy.password.encode()
            link.sendall(bytes((1, len(user))) + user + bytes((len(password),)) + password)
            if receive_exactly(link, 2)[1] != 0:
                method = 0xFF
        if method not in (0, 2):
            self._fail("requires another user or password; set network.proxy_login", "proxy-login", lasting=True)
        host, port = split_address(address)
        link.sendall(b"\x05\x01\x00" + _socks_host(host) + struct.pack(">H", port))
        _, status, _, kind = receive_exactly(link, 4)
        length = {1: 4, 3: -1, 4: 16}.get(kind, 0)
        receive_exactly(link, (receive_exactly(link, 1)[0] if length < 0 else length) + 2)
        if status == 2:
            self._fail(f"does not allow connections to {address}; ask its operator", "proxy-forbids", lasting=True)
        if status != 0:
            self._fail(f"cannot connect to {address} (SOCKS status {status})", "proxy-failed")

    def _fail(self, fault: str, code: str, *, lasting: bool = False) -> None:
        raise ConnectionLost(f"the proxy {self.proxy.address} {fault}", code=code, lasting=lasting)


def open_connection(address: str, credentials: Credentials, peer: Party, seconds: float) -> socket.socket:
    """Return a connection to a peer; see :func:`fedsim.protocol.addresses.open_connection`."""
    relay = RelayAddress.parse(address)
    if relay is None:
        return _reach(address, credentials, seconds)
    ticket = request_ticket(relay, credentials, peer, seconds)
    return open_data_connection(relay, credentials, ticket, seconds)


def grpc_target(address: str, credentials: Credentials, peer: Party) -> tuple[str, list[tuple[str, str]]]:
    """Return what gRPC dials to reach a peer, and the options that it needs.

    gRPC itself shows a ticket to a relay, so that its bytes pass no extra hop. It knows no SOCKS5 and no second hop:
    with a proxy it dials a socket of this process, from which they are passed on.
    """
    relay = RelayAddress.parse(address)
    if credentials.proxy is not None or relay is None:
        return f"unix:{_local_socket_for(open_connection(address, credentials, peer, CONNECT_SECONDS))}", []
    ticket = request_ticket(relay, credentials, peer, CONNECT_SECONDS)
    return relay.address, [("grpc.http_connect_server", f"{ticket}{TICKET_HOST}")]


def request_ticket(relay: RelayAddress, credentials: Credentials, peer: Party, seconds: float) -> str:
    """Ask the relay for a connection to a peer and return the ticket that opens it."""
    with open_control(relay, credentials, seconds) as control:
        return ask_relay(control, relay, f"{CALL} {peer.role} {peer.name} {relay.label}", OPEN, peer)


def open_data_connection(relay: RelayAddress, credentials: Credentials, ticket: str, seconds: float) -> socket.socket:
    """Return the connection that a ticket opens, joined with that of the other party."""
    try:
        link = _reach(relay.address, credentials, seconds)
    except (OSError, UnicodeError) as error:
        raise _relay_unreachable(relay, error) from None
    with suppress(OSError):
        with _closed_on_failure(link):
            if request_connect(link, f"{ticket}{TICKET_HOST}") == 200:
                return link
        link.close()
    fault = f"the relay {relay.address} did not join the connection: the other party did not open its end"
    raise ConnectionLost(fault, code="not-joined")


def _relay_unreachable(relay: RelayAddress, error: Exception) -> ConnectionLost:
    hint = "start it with `fedsim relay`, or check address, firewall and network.proxy"
    fault = f"the relay {relay.address} cannot be reached ({_reason(error)}); {hint}"
    return ConnectionLost(fault, code="relay-unreachable")


def open_control(relay: RelayAddress, credentials: Credentials, seconds: float) -> ssl.SSLSocket:
    """Return a connection with mutual TLS to a relay, whose certificate must name a relay."""
    where = f"the relay {relay.address}"
    try:
        link = _reach(relay.address, credentials, seconds)
    except (OSError, UnicodeError) as error:
        raise _relay_unreachable(relay, error) from None
    try:
        with _closed_on_failure(link):
            context = client_context(credentials, credentials.relay_authority)
            context.check_hostname = False  # it is known by its role; its name does not matter
            link.getpeername()  # of a connection that has ended already, wrap_socket would leak the descriptor
            control = context.wrap_socket(link, do_handshake_on_connect=False)
        with _closed_on_failure(control):
            control.do_handshake()
            shown = ssl.DER_cert_to_PEM_cert(control.getpeercert(binary_form=True) or b"").encode()
            if certs.certificate_party(shown).role is not Role.RELAY:
                fault = f"{where} presented the certificate of a {certs.certificate_party(shown).role}, not of a relay"
                raise ConnectionLost(fault, code="relay-untrusted", lasting=True)
    except ssl.SSLCertVerificationError as error:
        hint = "give its authority as network.relay_authority, or have its certificate signed by the job's authority"
        fault = f"the certificate of {where} cannot be trusted ({error.verify_message}); {hint}"
        raise ConnectionLost(fault, code="relay-untrusted", lasting=True) from None
    except (OSError, FileError):
        fault = f"{where} closed the connection during the TLS handshake; another service may listen there"
        raise ConnectionLost(fault, code="relay-handshake") from None
    return control


def ask_relay(control: ssl.SSLSocket, relay: RelayAddress, request: str, expected: str, peer: Party) -> str:
    """Send a request to the relay and return the rest of its answer, which must start with a word."""
    try:
        control.sendall(f"{request}\n".encode())
        word, _, rest = receive_line(control).partition(" ")
    except TimeoutError:
        raise ConnectionLost(f"the relay {relay.address} did not answer", code="relay-silent") from None
    except OSError:  # in TLS 1.3 a server refuses a certificate after the handshake
        fault = f"the relay {relay.address} closed the connection after it received our certificate"
        hint = "if this persists, ask its operator to add this job's authority with `fedsim relay --ca`"
        raise ConnectionLost(f"{fault}; {hint}", code="relay-refused") from None
    if word == expected:
        return rest
    text, lasting = RELAY_ERRORS.get(rest, ("the relay {relay} answered something else", False))
    code = rest if rest in RELAY_ERRORS else "relay-answer"
    raise ConnectionLost(text.format(peer=peer, relay=relay.address), code=code, lasting=lasting)


class RelayRegistration(threading.Thread):
    """Keeps a party registered at a relay and opens a connection for every call.

    Parameters
    ----------
    relay
        The relay.
    credentials
        Certificate, key and proxy of the party.

    Attributes
    ----------
    path
        The socket of this machine at which the party has to accept connections before it starts the registration.
    """

    def __init__(self, relay: RelayAddress, credentials: Credentials) -> None:
        super().__init__(name="fedsim-relay", daemon=True)
        self.relay, self.party = relay, certs.certificate_party(credentials.certificate)
        self._credentials = credentials
        self.folder, self.path = create_socket_folder()
        self._over, self._slots = threading.Event(), threading.BoundedSemaphore(MAX_JOINED)
        self._control: ssl.SSLSocket | None = None

    def start(self) -> None:
        """Register and keep doing so; raise ``SettingError`` if the relay refuses for good."""
        try:
            self._control = self._register()
        except ConnectionLost as error:
            if error.lasting or error.code == "name-taken":
                code = "address-in-use" if error.code == "name-taken" else error.code
                raise SettingError(str(error), code=code) from None
            log.warning("%s; retrying until it answers", error)
        super().start()

    def run(self) -> None:
        pauses, logged, began = retry_pauses(), False, time.monotonic()
        while not self._over.is_set():
            try:
                control = self._control = self._control or self._register()
                log.info("registered at the relay %s", self.relay.address)
                began = time.monotonic()
                with control:
                    self._answer(control)
                reason = "connection lost"
            except (ConnectionLost, OSError) as error:
                reason = str(error)
            self._control = None
            if time.monotonic() - began > MAX_RETRY_SECONDS:  # else it would go to and fro, and fill the log
                pauses, logged = retry_pauses(), False
            if not logged and not self._over.is_set():
                logged = True
                log.warning("not registered at the relay %s (%s); retrying", self.relay.address, reason)
            self._over.wait(next(pauses))
        if self._control is not None:  # stopped before it began
            self._control.close()

    def stop(self) -> None:
        """End the registration; connections that were opened stay."""
        self._over.set()
        control = self._control
        if control is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)

    def _register(self) -> ssl.SSLSocket:
        control = open_control(self.relay, self._credentials.current(), CONNECT_SECONDS)
        with _closed_on_failure(control):
            ask_relay(control, self.relay, f"{LISTEN} {self.relay.label}", OK, self.party)
        return control

    def _answer(self, control: ssl.SSLSocket) -> None:
        """Open a connection for every ticket, until the relay is gone."""
        control.settimeout(PING_SECONDS)
        heard = time.monotonic()
        while not self._over.is_set():
            try:
                word, _, ticket = receive_line(control).partition(" ")
            except TimeoutError:
                if time.monotonic() - heard > SILENCE_SECONDS:
                    return
                control.sendall(f"{PING}\n".encode())
                continue
            heard = time.monotonic()
            if word == PING:
                control.sendall(f"{PONG}\n".encode())
            elif word == OPEN and self._slots.acquire(blocking=False):
                threading.Thread(target=self._join, args=(ticket,), daemon=True).start()

    def _join(self, ticket: str) -> None:
        try:
            far = open_data_connection(self.relay, self._credentials.current(), ticket, CONNECT_SECONDS)
            near = socket.socket(socket.AF_UNIX)
            with _closed_on_failure(far), _closed_on_failure(near):
                near.connect(str(self.path))
            join_sockets(near, far)
        except (ConnectionLost, OSError) as error:  # the caller tries again
            log.debug("a connection through the relay %s failed: %s", self.relay.address, error)
        finally:
            self._slots.release()


def join_sockets(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until one side ends; then close both."""

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            (_splice if hasattr(os, "splice") else _copy)(source, target)
        for end in (source, target):  # what was sent still arrives
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    for end in (one, other):
        end.settimeout(None)
    back = threading.Thread(target=forward, args=(other, one), daemon=True)
    back.start()
    forward(one, other)
    back.join()
    one.close()
    other.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(PIECE))
    while count := source.recv_into(buffer):
        target.sendall(buffer[:count])


def _splice(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on inside the kernel: half the work of copying them, and no wait for Python's lock in between."""
    pipe = os.pipe()
    try:
        with suppress(OSError):  # a user may have few large pipes; a small one works as well
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, PIECE)
        while count := os.splice(source.fileno(), pipe[1], PIECE):
            while count:
                count -= os.splice(pipe[0], target.fileno(), count)
    finally:
        for end in pipe:
            os.close(end)


def request_connect(link: socket.socket, target: str, header: str = "") -> int:
    """Send an HTTP CONNECT request and return the status; 0 if the answer is not HTTP."""
    link.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{header}\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        piece = link.recv(1)  # what follows belongs to the peer
        if not piece or len(answer) > MAX_HEADER:
            break
        answer += piece
    found = re.match(rb"HTTP/1\.[01] ([0-9]{3})", answer)
    return int(found[1]) if found else 0


def receive_exactly(link: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes; raise ``ConnectionResetError`` if there are fewer."""
    received = b""
    while len(received) < count:
        piece = link.recv(count - len(received))
        if not piece:
            raise ConnectionResetError("the connection ended early")
        received += piece
    return received


def receive_line(link: socket.socket) -> str:
    """Return a line without its end; raise ``ConnectionResetError`` at the end of the connection or of patience."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > MAX_LINE:
            raise ConnectionResetError("a line is too long")
        try:
            line += receive_exactly(link, 1)
        except TimeoutError:
            if line:
                raise ConnectionResetError("a line is not complete") from None
            raise
    return line[:-1].decode("ascii", "replace")


@contextmanager
def _closed_on_failure(link: socket.socket) -> Iterator[None]:
    """Close a socket if the block raises."""
    try:
        yield
    except BaseException:
        link.close()
        raise


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or ("timed out" if isinstance(error, TimeoutError) else "no answer")


def _reach(address: str, credentials: Credentials, seconds: float) -> socket.socket:
    """Return a connection to an address, through the proxy if there is one."""
    if credentials.proxy is not None:
        link = ProxyClient(credentials.proxy).open(address, seconds)
    else:
        link = socket.create_connection(split_address(address), timeout=seconds)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def create_socket_folder() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """Return a new folder that only this user can open, and the path of a Unix socket in it, which must be short."""
    folder = tempfile.TemporaryDirectory(prefix="fedsim-")
    path = Path(folder.name) / "socket"
    if (length := len(os.fsencode(path))) > MAX_SOCKET_PATH:
        folder.cleanup()
        fault = f"the path of a local socket has {length} bytes, but at most {MAX_SOCKET_PATH} are possible"
        fix = "set the environment variable TMPDIR to a folder with a shorter path"
        raise SettingError(f"{fault}; {fix}", code="socket-path-too-long", length=length, limit=MAX_SOCKET_PATH)
    return folder, path


def _local_socket_for(far: socket.socket) -> Path:
    """Return a socket of this machine that is joined with a connection; it serves one caller, within seconds."""
    with _closed_on_failure(far):
        folder, path = create_socket_folder()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    listener.settimeout(CONNECT_SECONDS)

    def serve() -> None:
        with far, folder:
            with listener:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
            join_sockets(near, far)

    threading.Thread(target=serve, daemon=True).start()
    return path


def _socks_host(host: str) -> bytes:
    """Return a host as SOCKS5 writes it; the proxy resolves names."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("idna")
        return bytes((3, len(name))) + name
    return bytes((1 if found.version == 4 else 4,)) + found.packed


def check_relay(relay: RelayAddress, credentials: Credentials, party: Party, seconds: float) -> None:
    """Raise ``ConnectionLost`` if a relay does not answer, or does not accept the certificate."""
    with open_control(relay, credentials, seconds) as control:
        ask_relay(control, relay, PING, PONG, party)
