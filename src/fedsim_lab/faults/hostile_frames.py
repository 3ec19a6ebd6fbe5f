"""Send mutated frames over the network, before and after authentication, to every role of a running job.

The coordinator and primary listen, so an attacker connects to them: before authentication with a certificate from the
same authority that has no part in the job, after it as one of the secondaries. A secondary only makes outgoing
connections; its attacker holds the primary's certificate and answers at the primary's address, before authentication in
place of the welcome.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import xxhash
from google.protobuf.message import DecodeError

from fedsim.errors import WireError
from fedsim.protocol import Party, certificates, handshake
from fedsim.protocol.frame_pb2 import Header
from fedsim.protocol.grpc_transport import CLIENT_OPTIONS, METHOD, GrpcTransport
from fedsim.protocol.messages import KINDS, PROTOCOL, Hello, Message, Notice, Role, Welcome
from fedsim.protocol.session import HANDSHAKE_MESSAGES, ConnectionState
from fedsim.protocol.tls import read_credentials
from fedsim.protocol.transport import (
    LAYOUTS,
    MAGIC,
    PREFIX,
    ConnectionLost,
    Envelope,
    FrameStream,
    decode,
    encode,
)
from fedsim.runtime.party_context import software_versions
from fedsim_lab.faults import processes
from fedsim_lab.faults.campaign import EPOCHS
from fedsim_lab.faults.local_job import CITY, MEMBERS, NOTARY, RENTALS, SCHOOLS, LocalJob, create_local_job
from fedsim_ops import authority

STRANGER = Party(Role.SECONDARY, "stranger")
TARGETS = {"coordinator": NOTARY, "primary": CITY, "secondary": SCHOOLS}
BEFORE, AFTER = "before authentication", "after authentication"
# One frame in this many has correct checksums. After authentication, most of these make the job fail and restart.
SEALED_EVERY = {BEFORE: 20, AFTER: 200}
WARM_UP = 500  # frames before the memory is measured
STREAMS = 200  # per connection, one after the other
JOB_SECONDS = 600  # for the honest parties before and after the attack, beside other attacks on a busy machine
REFUSALS = (2, 3)  # exit codes


def sample_message(kind: str, number: int) -> Message:
    """Return a message of a kind, with facts and sizes that depend on a number."""
    layout, size = LAYOUTS[kind], number % 5
    values = {
        "whole": (number - 128) << (number % 57),
        "number": float(number),
        "text": "x" * number,
        "flag": number > 9,
    }
    facts = {name: values[slot] for name, slot in layout.facts.items()}
    arrays = {
        name: np.full([size] * len(shape.letters), number % 100).astype(shape.dtypes[number % len(shape.dtypes)])
        for name, shape in layout.arrays.items()
    }
    return KINDS[kind](**facts, **arrays)


def seal_frame(packed: bytes, body: bytes, session: bytes = b"", sequence: int = 0) -> bytes:
    """Return a frame with correct sizes and checksums around the bytes of a header and of arrays.

    With a session it is the frame of this number in it, whatever the header says.
    """
    header = Header()
    with suppress(DecodeError):
        header.ParseFromString(packed)
    header.protocol = PROTOCOL
    if session:
        header.session, header.sequence = session, sequence
    if header.kind not in KINDS:
        header.kind = list(KINDS)[len(header.kind) % len(KINDS)]
    start = 0
    for array in header.arrays:
        with suppress(TypeError, ValueError, SyntaxError):
            size = int(np.prod([min(each, 1 << 20) for each in array.shape])) * np.dtype(array.dtype).itemsize
            array.checksum = xxhash.xxh3_64_intdigest(body[start : start + size])
            start += -(-size // 8) * 8
    packed = header.SerializeToString()
    padding = bytes(-(PREFIX.size + len(packed)) % 8)
    total = PREFIX.size + len(packed) + len(padding) + len(body)
    return PREFIX.pack(MAGIC, len(packed), total, xxhash.xxh3_64_intdigest(packed)) + packed + padding + body


def mutate(rng: np.random.Generator, frame: bytes) -> bytes:
    """Flip bits, overwrite, insert, repeat or cut off bytes of a frame, a few times."""
    found = bytearray(frame)
    for _ in range(int(rng.integers(1, 6))):
        place = int(rng.integers(0, max(1, len(found))))
        match int(rng.integers(5)):
            case 0 if found:
                found[place % len(found)] ^= 1 << int(rng.integers(8))
            case 1:
                found[place : place + 8] = rng.bytes(8)
            case 2:
                found[place:place] = rng.bytes(int(rng.integers(1, 40)))
            case 3:
                found[place:place] = found[: int(rng.integers(1, 64))]
            case _:
                del found[max(1, place) :]
    return bytes(found)


@dataclass(frozen=True)
class AttackResult:
    """The result of attacking a role: frames sent, refusals with a restart, and memory growth."""

    role: str
    phase: str
    frames: int
    refusals: int
    crashes: int
    growth_mb: float
    same_result: bool


class _Frames:
    """Mutated frames that a party might send in a phase, from a seed."""

    def __init__(self, sender: Role, receiver: Role, first: Message, rng: np.random.Generator) -> None:
        self._rng, self._first = rng, first
        allowed = [kind for kind in KINDS.values() if (sender, receiver) in kind.routes]
        self._kinds = [kind.kind for kind in allowed if kind not in HANDSHAKE_MESSAGES]

    def first(self) -> bytes:
        """Return a mutation of the message that opens a connection; a few have correct checksums."""
        frame = encode(Envelope(self._first))
        return mutate(self._rng, frame) if self._rng.integers(SEALED_EVERY[BEFORE]) else self._mutate_sealed(frame)

    def next(self, session: bytes, sequence: int) -> bytes:
        """Return a mutation of a message in a session; a few have correct checksums and absurd content."""
        kind = self._kinds[int(self._rng.integers(len(self._kinds)))]
        frame = encode(Envelope(sample_message(kind, int(self._rng.integers(256))), session, sequence))
        if self._rng.integers(SEALED_EVERY[AFTER]):
            return mutate(self._rng, frame)
        return frame if self._rng.integers(2) else self._mutate_sealed(frame)

    def _mutate_sealed(self, frame: bytes) -> bytes:
        _, length, _, _ = PREFIX.unpack_from(frame)
        packed, body = frame[PREFIX.size : PREFIX.size + length], frame[-(-(PREFIX.size + length) // 8) * 8 :]
        return seal_frame(mutate(self._rng, packed), mutate(self._rng, body) if body else body)


class _Target:
    """The process under attack: its memory, its exits, and the job that must still end well."""

    def __init__(self, parties: processes.PartyProcesses, job: LocalJob, name: str) -> None:
        self.parties, self.job, self.name, self.frames = parties, job, name, 0
        self.refusals = self.crashes = 0
        self._base, self._growth = 0.0, 0.0

    def count(self, number: int = 1) -> None:
        """Count the frames that were sent, and check the memory."""
        self.frames += number
        if self.frames % 100 < number:
            self.measure()

    def measure(self) -> None:
        """Compare memory use with the value after the first frames of this process."""
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{self.parties.running[self.name].pid}/status").read_text(encoding="ascii")
            now = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
            if not self._base and self.frames >= WARM_UP:
                self._base = now
            self._growth = max(self._growth, now - self._base if self._base else 0.0)

    def revive(self) -> None:
        """Restart a process that refused, and count crashes."""
        for name, process in list(self.parties.running.items()):
            if process.code is None:
                continue
            if name == self.name:
                self.refusals += process.code in REFUSALS
                self.crashes += process.code not in (0, *REFUSALS)
            self.parties.start(name)

    def result(self, role: str, phase: str, expected: Mapping[str, str]) -> AttackResult:
        """Let the honest parties finish, and return what happened."""
        self.measure()
        honest = self.parties.before
        self.parties.before = {}
        for name in self.job.names:
            process = self.parties.running.get(name)
            if process is not None:
                process.kill()
            self.parties.start(name)
        self.parties.before = honest
        codes = self.parties.wait(JOB_SECONDS)
        crashes = self.crashes + ("Traceback" in self.parties.logs())
        same = set(codes.values()) == {0} and self.job.hashes() == expected
        return AttackResult(role, phase, self.frames, self.refusals, crashes, round(self._growth, 1), same)


def attack_role(
    role: str, phase: str, n_frames: int, folder: Path, expected: Mapping[str, str], seed: int = 0
) -> AttackResult:
    """Send mutated frames to one role of a new job in a folder; afterwards the honest parties finish it."""
    name, rng = TARGETS[role], np.random.default_rng([seed, list(TARGETS).index(role), phase == AFTER])
    settings: dict[str, Any] = {"training": {"epochs": EPOCHS}, "network": {"wait_seconds": 3600}}
    job = create_local_job(folder, n_secondaries=2, **settings)
    authority.issue_certificates(folder / "certs", [STRANGER], datetime.now(UTC))
    absent = (CITY, RENTALS) if role == "secondary" else (RENTALS,)
    hooks = {name: partial(_never_give_up)} if role == "secondary" and phase == BEFORE else {}
    with processes.party_processes(job, hooks) as parties:
        parties.start()
        parties.until_step(2, JOB_SECONDS)
        for each in absent:
            parties.running.pop(each).kill()
        target = _Target(parties, job, name)
        if role == "secondary":
            _answer_secondary(target, phase, n_frames, rng)
        else:
            _dial_listener(target, phase, n_frames, rng)
        return target.result(role, phase, expected)


def _state(job: LocalJob, party: Party) -> ConnectionState:
    return ConnectionState(party, job.job.to_dict(), software_versions())


def _credentials(job: LocalJob, party: Party) -> Any:
    certificate, key = authority.party_files(job.folder / "certs", party)
    return read_credentials(job.folder / "certs" / "ca.pem", certificate, key, party)


def _dial_listener(target: _Target, phase: str, n_frames: int, rng: np.random.Generator) -> None:
    """Open stream after stream to a party that listens."""
    import grpc  # noqa: PLC0415 - after fedsim.protocol, which restricts it to TLS 1.3

    peer = MEMBERS[target.name]
    caller = STRANGER if phase == BEFORE else MEMBERS[RENTALS]
    state, own = _state(target.job, caller), _credentials(target.job, caller)
    hello = Hello(
        caller.name, caller.role.value, state.job_text, state.version_text, state.instance, "", 0, time.time()
    )
    frames, session = _Frames(Role.SECONDARY, peer.role, hello, rng), ""
    trust = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
    options = [*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", certificates.server_name(peer))]
    while target.frames < n_frames:
        target.revive()
        with grpc.secure_channel(target.job.job.address_of(peer), trust, options=options) as channel:
            for _ in range(STREAMS):
                try:
                    with _call(channel) as (send, replies):
                        if phase == BEFORE:
                            send(frames.first())
                        else:
                            send(encode(Envelope(replace(hello, resume=session))))
                            welcome = decode(next(replies, b"")).message
                            if not isinstance(welcome, Welcome):
                                break  # the name is still taken
                            session, ident = welcome.session, bytes.fromhex(welcome.session)
                            # A valid message first: 100 invalid ones in a row end the job.
                            send(encode(Envelope(Notice(""), ident, welcome.received + 1)))
                            send(frames.next(ident, welcome.received + 2))
                except (grpc.RpcError, WireError):
                    break  # the target has perhaps not read the frame: it does not count
                target.count()


@contextmanager
def _call(channel: Any) -> Iterator[tuple[Callable[[bytes], None], Iterator[bytes]]]:
    """Yield a send function and the answers of one stream; it ends when the other side has read everything."""
    queue: SimpleQueue[bytes | None] = SimpleQueue()
    replies = channel.stream_stream(METHOD)(iter(queue.get, None), timeout=20, wait_for_ready=True)
    try:
        yield queue.put, replies
        queue.put(None)
        for _ in replies:
            pass
    finally:
        queue.put(None)
        replies.cancel()


def _answer_secondary(target: _Target, phase: str, n_frames: int, rng: np.random.Generator) -> None:
    """Answer at the primary's address whenever the secondary calls."""
    primary, secondary = MEMBERS[CITY], MEMBERS[target.name]
    state = _state(target.job, primary)
    ident, received, lock = secrets.token_bytes(16), Counter[str](), threading.Lock()
    welcome = Welcome(ident.hex(), 0, state.version_text, time.time())
    frames = _Frames(Role.PRIMARY, secondary.role, welcome, rng)
    sent = Counter[str]()

    def answer(_caller: Party | None, stream: FrameStream) -> None:
        with suppress(ConnectionLost, WireError), lock:
            hello = decode(stream.receive()).message
            if phase == BEFORE:
                stream.send(frames.first())
            elif isinstance(hello, Hello):
                if hello.resume != ident.hex():
                    received.clear()  # a new process: the session starts again
                stream.send(encode(Envelope(welcome)))
                stream.send(encode(Envelope(Notice(""), ident, hello.received + 1)))
                stream.send(frames.next(ident, hello.received + 2))
            sent["frames"] += 1
            stream.close()

    listener = GrpcTransport(_credentials(target.job, primary)).listen(target.job.job.primary.address, answer)
    try:
        while target.frames < n_frames:
            target.revive()
            time.sleep(0.05)
            target.count(sent["frames"] - target.frames)
    finally:
        listener.close()


def _never_give_up() -> None:
    """Make a caller reconnect at once whatever the answer, instead of exiting."""
    attempt = handshake.SessionConnector._attempt

    def attempt_again(self: Any, session: Any) -> Any:
        reply = attempt(self, session)
        return replace(reply, passing=True) if isinstance(reply, handshake.Rejection) else reply

    processes.set_constant("fedsim.protocol.session", "MAX_RETRY_SECONDS", 0.001)
    processes.set_constant("fedsim.protocol.session", "RETRY_SECONDS", 0.001)
    handshake.SessionConnector._attempt = attempt_again  # type: ignore[method-assign]
