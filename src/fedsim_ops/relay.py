"""A relay: joins outgoing connections of parties that accept none (``fedsim relay``).

It serves parties whose certificates come from the authorities it was given, and connects a party only with parties of
the same authority. It sees who calls whom, when, and how many bytes pass; the bytes are TLS between the parties.
:mod:`fedsim_ops.outbound` has the other end of the protocol.

One thread; every connection that has not proved who it is counts against limits per address and in total, and the
oldest of them make room. Places of those that have are divided equally among the authorities, so that the parties of
one cannot keep out those of another. Data are passed on in pieces: while one side does not read, nothing is read from
the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from cryptography import x509

from fedsim.errors import FedSimError, FileError, SettingError
from fedsim.protocol import certificates as certs
from fedsim.protocol.addresses import split_address
from fedsim.protocol.messages import PARTY_NAME, Party, Role
from fedsim.protocol.tls import Credentials, server_context
from fedsim_ops import outbound
from fedsim_ops.connection_guard import connection_limit

log = logging.getLogger("fedsim.relay")

REFUSAL_LOG_SECONDS = 60.0  # per address or party: a caller can be refused any number of times
MAX_REFUSED = 64  # addresses and parties that are logged in that time
ADMISSION_SECONDS = 10.0  # to prove who one is
TICKET_SECONDS = 10.0  # for both ends to show their tickets
IDLE_SECONDS = 120.0  # gRPC sends a ping every ten seconds
SWEEP_SECONDS = 5.0
PROBE_SECONDS = 3.0  # for a registered party to show that it is still there
CLOSING_SECONDS = 2.0
# One descriptor in two is for connections: a quarter of them for those that have not proved who they are, a quarter for
# requests and registrations, and half for pairs.
MAX_CONNECTIONS, DESCRIPTOR_SHARE = 2048, 2
ADDRESS_SHARE = 8  # of the connections that have not proved who they are may come from one address
MAX_PER_PARTY = 16  # pairs that a party has asked for; and likewise its requests and registrations
# Bytes that are read at once: fewer while there are many pairs, so that what waits for receivers has a bound.
MIN_PIECE, MAX_PIECE, ALL_PIECES = 1 << 16, 1 << 20, 32 << 20
WAITING_BYTES = 1 << 17  # for a receiver, before its sender has to wait
MAX_WAITING_LINES = 1 << 14  # bytes of lines that a registered party has not read
_REQUEST = re.compile(rb"CONNECT ([0-9a-f]{64})" + re.escape(outbound.TICKET_HOST.encode()) + rb" HTTP/1\.[01]\r\n")
_JOINED = b"HTTP/1.1 200 joined\r\n\r\n"
_REFUSED = b"HTTP/1.1 404 no such ticket\r\n\r\n"
_TLS_HANDSHAKE = b"\x16"  # the first byte of a TLS connection


def read_relay(authorities: Sequence[Path], certificate: Path, key: Path, revocations: Sequence[Path] = ()) -> Relay:
    """Read the certificate of a relay, the authorities of the parties that it serves, and their revocation lists.

    The certificate may come from an authority of its own: then its clients name that authority.
    """
    groups = [certs.read_certificates(path) for path in authorities]
    issuers = [each for group in groups for each in group]
    if not all(certs.issued_by(each, each) for each in issuers):
        fault = "--ca names a certificate that is not an authority; give the ca.pem of the parties to serve"
        raise FileError(fault, code="no-authority")
    own, private = certs.read_certificates(certificate)[0], certs.read_key(key)
    party = certs.certificate_party(certs.certificate_pem(own))
    if party.role is not Role.RELAY:
        fault = f"{certificate} is the certificate of {party}; create one with `fedsim certs --relay NAME`"
        raise FileError(fault, code="other-party")
    if not certs.key_matches(private, own):
        fault = f"{key} is not the key of {certificate}; give the two files that `fedsim certs` wrote together"
        raise FileError(fault, code="wrong-key")
    if fault := certs.date_fault(own, datetime.now(UTC)):
        raise FileError(f"{certificate} {fault}; renew it with `fedsim certs --renew`", code="certificate-out-of-date")
    for path in revocations:
        certs.read_revocation_lists(path, issuers)
    pem = b"".join(map(certs.certificate_pem, issuers))
    return Relay(Credentials(pem, certs.certificate_pem(own), certs.key_pem(private), tuple(revocations)), groups)


@dataclass(frozen=True)
class _Caller:
    """Whom a certificate proves: a party, and the number of the group whose authority says so."""

    group: int
    party: Party


@dataclass(eq=False)
class _Registration:
    """The connection on which a party waits for callers."""

    writer: asyncio.StreamWriter
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_stuck(self) -> bool:
        return self.writer.transport.get_write_buffer_size() > MAX_WAITING_LINES


@dataclass(eq=False)
class _Pairing:
    """Two connections to be joined, by the tickets that they show."""

    caller: _Caller
    called: Party
    tickets: tuple[str, str]
    ends: list[socket.socket] = field(default_factory=list)


class Relay:
    """Joins connections of parties.

    Parameters
    ----------
    credentials
        Its certificate, and the authorities of the parties that it serves.
    groups
        The authorities whose parties may meet: usually one per group, and two while one replaces the other.
    """

    def __init__(self, credentials: Credentials, groups: Sequence[Sequence[x509.Certificate]]) -> None:
        self.credentials, self._tls, self._groups = credentials, server_context(credentials), groups
        self._quarter = connection_limit(MAX_CONNECTIONS, DESCRIPTOR_SHARE) // 4
        self._share = max(1, self._quarter // len(groups))  # of requests and registrations, and of pairs, per group
        self._tasks: dict[asyncio.Task[None], socket.socket | None] = {}  # with their connections before they begin
        self._unproved: dict[asyncio.Task[None], str] = {}  # the oldest first, with their addresses
        self._controls: Counter[_Caller] = Counter()
        self._registered: dict[tuple[_Caller, str], _Registration] = {}
        self._pairings: dict[str, _Pairing] = {}  # by ticket
        self._pairs: dict[_Pair, _Caller] = {}
        self._refusals: dict[str, float] = {}  # when an address or a party was last logged
        self._joined = self._passed = 0  # pairs so far, and the bytes of those that have ended

    def figures(self) -> dict[str, int]:
        """Return what the relay does now, and has done: no party is named."""
        pairs = list(self._pairs)
        return {
            "registered": len(self._registered),
            "pairs": len(pairs),
            "pairs_total": self._joined,
            "bytes_total": self._passed + sum(pair.passed for pair in pairs),
        }

    async def serve(self, listener: socket.socket) -> None:
        """Serve the callers of a listening socket until the task is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        sweep = asyncio.create_task(self._sweep())
        try:
            while True:
                try:
                    link, address = await loop.sock_accept(listener)
                except OSError:  # no free descriptor, or the caller is gone
                    self._drop_oldest(1)
                    await asyncio.sleep(0.01)
                    continue
                task = asyncio.create_task(self._admit(link))
                self._tasks[task], self._unproved[task] = link, address[0]
                task.add_done_callback(self._end)
                self._limit_unproved(address[0])
        finally:
            for task in (sweep, *self._tasks):
                task.cancel()
            for pair in list(self._pairs):
                pair.abort()
            for pairing in list(self._pairings.values()):
                self._expire(pairing)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._unproved.pop(task, None)
        if (link := self._tasks.pop(task)) is not None:  # cancelled before it began
            link.close()

    def _limit_unproved(self, address: str) -> None:
        """Drop the oldest connections that have not proved who they are, of one address and of all."""
        same = [each for each, other in self._unproved.items() if other == address]
        for each in same[: max(0, len(same) - max(1, self._quarter // ADDRESS_SHARE))]:
            each.cancel()
        self._drop_oldest(len(self._unproved) - self._quarter)

    def _drop_oldest(self, count: int) -> None:
        for task in list(self._unproved)[: max(0, count)]:
            task.cancel()

    async def _admit(self, link: socket.socket) -> None:
        """Find out what a new connection is: TLS with a request, or a ticket."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks[task], address = None, self._unproved.get(task, "an unknown address")
        link.setblocking(False)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ADMISSION_SECONDS) as limit:
                try:
                    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await _wait_readable(link)
                    if link.recv(1, socket.MSG_PEEK) != _TLS_HANDSHAKE:
                        await self._take_ticket(link)
                        return
                    reader = asyncio.StreamReader(outbound.MAX_LINE)
                    protocol = asyncio.StreamReaderProtocol(reader)
                    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                        lambda: protocol, link, ssl=self._tls, ssl_shutdown_timeout=CLOSING_SECONDS
                    )
                except ssl.SSLError as error:
                    reason = getattr(error, "verify_message", None) or error.reason or "TLS failed"
                    self._log_refusal(address, f"{reason}; its authority may be missing in --ca")
                    link.close()
                    raise
                except BaseException:
                    link.close()
                    raise
                writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
                try:
                    await self._serve_control(reader, writer, limit)
                except FedSimError as error:  # its certificate names no party, or the list of revoked ones is invalid
                    self._log_refusal(address, str(error))
                    transport.abort()
                except (ValueError, RuntimeError):  # a line is too long, or the time was over in this moment
                    transport.abort()
                finally:
                    writer.close()

    def _log_refusal(self, caller: str, reason: str) -> None:
        """Log that an address or a party is refused and why, so that the operator can help it."""
        now = time.monotonic()
        self._refusals = {one: at for one, at in self._refusals.items() if now - at < REFUSAL_LOG_SECONDS}
        if caller in self._refusals or len(self._refusals) >= MAX_REFUSED:
            return
        self._refusals[caller] = now
        log.warning("refused a connection from %s: %s", caller, reason)

    # Requests, on connections with mutual TLS

    async def _serve_control(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout
    ) -> None:
        shown = x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        pem, groups = certs.certificate_pem(shown), enumerate(self._groups)
        group = next(number for number, group in groups if any(certs.issued_by(shown, each) for each in group))
        caller = _Caller(group, certs.certificate_party(pem))
        line = await _read_line(reader)
        limit.reschedule(None)
        self._unproved.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
        if self.credentials.refuses(pem):
            _answer(writer, f"{outbound.ERROR} revoked")
            self._log_refusal(str(caller.party), "its certificate was revoked")
            return
        if self._is_full(caller, list(self._controls.elements())):
            _answer(writer, f"{outbound.ERROR} too-many")
            return
        self._controls[caller] += 1
        try:
            match line.split(" "):
                case [outbound.LISTEN, label]:
                    await self._register(caller, label, reader, writer)
                case [outbound.PING]:
                    _answer(writer, outbound.PONG)
                case [outbound.CALL, role, name, label] if role in tuple(Role) and PARTY_NAME.fullmatch(name):
                    _answer(writer, self._call(caller, Party(Role(role), name), label))
                case _:
                    _answer(writer, f"{outbound.ERROR} bad-request")
        finally:
            self._controls[caller] -= 1
            self._controls += Counter()  # forget zeros

    async def _register(
        self, caller: _Caller, label: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Keep a party registered while it is there; a second process of it is refused."""
        key, registration = (caller, label), _Registration(writer)
        if (old := self._registered.get(key)) is not None:
            old.heard.clear()
            _answer(old.writer, outbound.PING)
            with suppress(TimeoutError):
                await asyncio.wait_for(old.heard.wait(), PROBE_SECONDS)
                _answer(writer, f"{outbound.ERROR} name-taken")
                return
            old.writer.transport.abort()
        self._registered[key] = registration
        _answer(writer, outbound.OK)
        log.info("%s is connected", caller.party)
        try:
            while line := await asyncio.wait_for(_read_line(reader), outbound.SILENCE_SECONDS):
                registration.heard.set()
                if line == outbound.PING:
                    _answer(writer, outbound.PONG)
        finally:
            if self._registered.get(key) is registration:
                del self._registered[key]
                log.info("%s is disconnected", caller.party)

    def _call(self, caller: _Caller, called: Party, label: str) -> str:
        """Give a ticket to a caller and one to the party that it calls; return the answer to the caller."""
        registration = self._registered.get((_Caller(caller.group, called), label))
        if registration is None or registration.is_stuck:
            return f"{outbound.ERROR} not-registered"
        waiting = [pairing.caller for pairing in set(self._pairings.values())]
        if self._is_full(caller, [*waiting, *self._pairs.values()]):
            return f"{outbound.ERROR} too-many"
        pairing = _Pairing(caller, called, (secrets.token_hex(32), secrets.token_hex(32)))
        self._pairings |= dict.fromkeys(pairing.tickets, pairing)
        asyncio.get_running_loop().call_later(TICKET_SECONDS, self._expire, pairing)
        _answer(registration.writer, f"{outbound.OPEN} {pairing.tickets[1]}")
        return f"{outbound.OPEN} {pairing.tickets[0]}"

    def _is_full(self, caller: _Caller, holders: list[_Caller]) -> bool:
        """Return whether the places of a party, or of its group, are taken: those of other groups stay free."""
        same_group = sum(holder.group == caller.group for holder in holders)
        return holders.count(caller) >= MAX_PER_PARTY or same_group >= self._share

    # Data

    async def _take_ticket(self, link: socket.socket) -> None:
        """Read a CONNECT request with a ticket, and join the connection with the other one of the pair."""
        loop, request = asyncio.get_running_loop(), b""
        while not request.endswith(b"\r\n\r\n"):
            piece = await loop.sock_recv(link, outbound.MAX_HEADER)
            request += piece
            if not piece or len(request) > outbound.MAX_HEADER:
                raise ConnectionResetError
        found = _REQUEST.match(request)
        pairing = self._pairings.pop(found[1].decode(), None) if found else None
        if pairing is None:
            await loop.sock_sendall(link, _REFUSED)
            raise ConnectionResetError
        pairing.ends.append(link)
        if len(pairing.ends) == 2:
            pair = _Pair(self)
            self._pairs[pair] = pairing.caller
            self._joined += 1
            log.debug("joined %s with %s", pairing.caller.party, pairing.called)
            await pair.join(*pairing.ends)

    def _expire(self, pairing: _Pairing) -> None:
        """Close the one end of a pair whose other end did not come."""
        for ticket in pairing.tickets:
            self._pairings.pop(ticket, None)
        if len(pairing.ends) == 1:
            pairing.ends[0].close()

    @property
    def piece_bytes(self) -> int:
        """How much may be read at once from a connection."""
        return max(MIN_PIECE, min(MAX_PIECE, ALL_PIECES // max(1, len(self._pairs))))

    def forget(self, pair: _Pair) -> None:
        """Note that a pair has ended."""
        caller = self._pairs.pop(pair, None)
        if caller is not None:
            self._passed += pair.passed
            log.debug("a connection of %s ended after %d bytes", caller.party, pair.passed)

    async def _sweep(self) -> None:
        """Close pairs through which nothing passes: an end of them is gone without a word."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            for pair in [pair for pair in self._pairs if now - pair.last > IDLE_SECONDS]:
                pair.abort()


class _Pair:
    """Two joined connections."""

    def __init__(self, relay: Relay) -> None:
        self._loop, self.relay = asyncio.get_running_loop(), relay
        self._pipes = _Pipe(self), _Pipe(self)
        self.last, self.passed, self._lost = self._loop.time(), 0, 0

    async def join(self, *ends: socket.socket) -> None:
        """Tell both ends that they are joined, and pass on what they send."""
        self._pipes[0].other, self._pipes[1].other = self._pipes[1], self._pipes[0]
        try:
            for pipe, end in zip(self._pipes, ends, strict=True):
                await pipe.attach(end)
        except OSError:
            self.abort()
            raise
        for pipe in self._pipes:
            pipe.transport.write(_JOINED)
        for pipe in self._pipes:
            pipe.transport.resume_reading()

    def count(self, size: int) -> None:
        """Note that bytes have passed."""
        self.last = self._loop.time()
        self.passed += size

    def lose(self) -> None:
        """Note that one end is lost; close the other one after what is still to be sent to it."""
        self._lost += 1
        if self._lost == len(self._pipes):
            self.relay.forget(self)
        for pipe in self._pipes:
            if pipe.transport is not None:
                pipe.transport.close()

    def abort(self) -> None:
        """Close both ends at once."""
        for pipe in self._pipes:
            if pipe.transport is not None:
                pipe.transport.abort()
        self.relay.forget(self)


class _Pipe(asyncio.BufferedProtocol):
    """Passes what one end of a pair sends to the other end, and stops reading while that one does not keep up."""

    _buffer = memoryview(bytearray(MAX_PIECE))  # one for all: it is emptied before anything else happens

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.other = self

    async def attach(self, end: socket.socket) -> None:
        """Read from a connection, and write to it."""
        self._link = end
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self, end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WAITING_BYTES)
        self.transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[: self._pair.relay.piece_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._pair.count(nbytes)
        self.other.send(self._buffer[:nbytes])

    def send(self, data: memoryview) -> None:
        """Send at once what the connection takes, and copy the rest only."""
        sent = 0
        if not self.transport.get_write_buffer_size() and not self.transport.is_closing():
            with suppress(OSError):  # it is full; if it is broken, the transport finds out
                sent = self._link.send(data)
        if sent < len(data):
            self.transport.write(bytes(data[sent:]))

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pair.lose()


def open_listener(address: str) -> socket.socket:
    """Return a listening socket; raise ``SettingError`` if the address cannot be used."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        fault = f"cannot listen at {address}: {os.strerror(number) if number > 0 else 'unknown host'}"
        hint = "stop the other program, or choose another --listen"
        raise SettingError(f"{fault}; {hint}", code="address-in-use", address=address) from None


async def _read_line(reader: asyncio.StreamReader) -> str:
    """Return a line without its end; empty at the end of the connection."""
    return (await reader.readline()).decode("ascii", "replace").rstrip("\n")


def _answer(writer: asyncio.StreamWriter, line: str) -> None:
    writer.write(f"{line}\n".encode())


async def _wait_readable(link: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(link, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(link)
