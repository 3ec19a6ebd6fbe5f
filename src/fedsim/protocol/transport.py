"""Transports: ordered streams of frames to one peer; and how a message becomes a frame.

The in-process transport uses queues. A transport is registered in :data:`fedsim.registry.TRANSPORTS` as a function of
the party's credentials.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, Protocol, get_type_hints

import numpy as np
import xxhash
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from fedsim.errors import PeerError, SettingError, WireError
from fedsim.privacy.keyed_prng import derive_subkey
from fedsim.protocol.frame_pb2 import Array, Fact, Header
from fedsim.protocol.messages import KINDS, PROTOCOL, Message, Party, Shape
from fedsim.storage.tensor_file import arrays_digest
from fedsim.types import AnyArray, Bits, EncodedTable, Integers32, Words

# The public part; frames are for sessions and roles.
__all__ = ["ConnectionLost", "FrameStream", "InProcessTransport", "Listener", "QueueStream", "Transport", "stream_pair"]


class ConnectionLost(Exception):  # noqa: N818
    """A stream is broken.

    Parameters
    ----------
    reason
        The message.
    code
        The reason for programs.
    lasting
        Whether reconnecting is pointless; otherwise the session reconnects.
    """

    def __init__(self, reason: str = "connection lost", *, code: str = "", lasting: bool = False) -> None:
        super().__init__(reason)
        self.code, self.lasting = code, lasting


class FrameStream(Protocol):
    """One connection to one peer."""

    def send(self, frame: bytes) -> None:
        """Queue a frame for sending; raise ``ConnectionLost`` if the stream is known to be broken."""

    def receive(self) -> bytes:
        """Wait for the next frame and return it; raise ``ConnectionLost`` if the stream breaks."""

    def close(self) -> None:
        """Close the stream at both ends."""


# Called in a thread of its own for every incoming stream, with the caller that the certificate proves (None without
# TLS); it returns when it is done with the stream.
StreamHandler = Callable[[Party | None, FrameStream], None]


class Listener(Protocol):
    """An open port."""

    @property
    def address(self) -> str:
        """The address it listens at, with the real port if port 0 was requested."""

    def close(self) -> None:
        """Stop listening."""


class Transport(Protocol):
    """A way to reach peers."""

    def listen(self, address: str, answer: StreamHandler) -> Listener:
        """Accept streams at an address and handle each one by ``answer``."""

    def dial(self, address: str, peer: Party) -> FrameStream:
        """Open a stream to this peer and no other; raise ``ConnectionLost`` if that fails."""


class QueueStream:
    """One end of an in-process stream; an empty frame means that the stream is closed."""

    def __init__(self, incoming: SimpleQueue[bytes], outgoing: SimpleQueue[bytes]) -> None:
        self._incoming, self._outgoing, self.closed = incoming, outgoing, False

    def send(self, frame: bytes) -> None:
        if self.closed:
            raise ConnectionLost
        self._outgoing.put(frame)

    def receive(self) -> bytes:
        frame = b"" if self.closed else self._incoming.get()
        if not frame:
            self.close()
            raise ConnectionLost
        return frame

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._outgoing.put(b"")
            self._incoming.put(b"")


def stream_pair() -> tuple[QueueStream, QueueStream]:
    """Return both ends of an in-process stream.

    >>> here, there = stream_pair()
    >>> here.send(b"frame")
    >>> there.receive()
    b'frame'
    """
    forth: SimpleQueue[bytes] = SimpleQueue()
    back: SimpleQueue[bytes] = SimpleQueue()
    return QueueStream(back, forth), QueueStream(forth, back)


class InProcessTransport:
    """Connects parties in one process; addresses are arbitrary names, and credentials are not needed.

    Parameters
    ----------
    credentials
        Not used.
    """

    def __init__(self, credentials: object = None) -> None:
        self._listeners: dict[str, _InProcessListener] = {}

    def listen(self, address: str, answer: StreamHandler) -> _InProcessListener:
        if address in self._listeners:
            fault = f"address '{address}' is already in use; give every party its own address"
            raise SettingError(fault, code="address-in-use")
        self._listeners[address] = listener = _InProcessListener(address, answer, self._listeners)
        return listener

    def dial(self, address: str, peer: Party) -> QueueStream:
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionLost(f"no party listens at '{address}'")
        return listener.connect()


class _InProcessListener:
    def __init__(self, address: str, answer: StreamHandler, listeners: dict[str, _InProcessListener]) -> None:
        self.address, self._answer, self._listeners = address, answer, listeners
        self._lock = threading.Lock()
        self._streams: list[QueueStream] | None = []  # None after close
        self._owner = threading.current_thread().name  # of the party that listens, for its log

    def connect(self) -> QueueStream:
        here, there = stream_pair()
        with self._lock:
            if self._streams is None:
                raise ConnectionLost(f"no party listens at '{self.address}'")
            self._streams = [*(stream for stream in self._streams if not stream.closed), there]
        threading.Thread(target=self._answer, args=(None, there), name=self._owner, daemon=True).start()
        return here

    def close(self) -> None:
        """Stop listening and close all streams, as the end of a process does."""
        self._listeners.pop(self.address, None)
        with self._lock:
            streams, self._streams = self._streams or [], None
        for stream in streams:
            stream.close()


# Frames: messages are encoded, and decoded with every length, type and checksum verified.
#
#     magic 4 | header bytes 4 | total bytes 8 | checksum of the header 8 | header | padding | arrays, each padded to 8
#
# Every size that a frame declares is checked before memory is allocated; a faulty frame raises ``WireError`` and
# nothing else. Decoded arrays are views of the frame. Each array has its own xxh3 checksum, which detects accidents;
# TLS protects against attackers.

PREFIX = struct.Struct("<4sIQQ")
MAGIC = b"FSIM"
MAX_HEADER_BYTES = 1 << 20
MAX_FRAME_BYTES = 1 << 30
MAX_DIMENSION = 1 << 31  # rows are numbered in int32
FACT_SLOTS: dict[Any, str] = {int: "whole", float: "number", str: "text", bool: "flag"}
SEAL_KEY_BYTES = 32
NONCE_BYTES = 12
NO_BYTES: Bits = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Envelope:
    """A message with its position in a session."""

    message: Message
    session: bytes = b""
    sequence: int = 0
    acknowledged: int = 0
    reply_to: int = 0


class MessageLayout:
    """The protobuf slot of every fact of a message, and the shape of every array."""

    def __init__(self, kind: type[Message]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        named = {entry.name: hints[entry.name] for entry in fields(kind)}  # type: ignore[arg-type]
        self.facts = {name: FACT_SLOTS[hint] for name, hint in named.items() if hint in FACT_SLOTS}
        self.arrays: dict[str, Shape] = {
            name: hint.__metadata__[0] for name, hint in named.items() if hint not in FACT_SLOTS
        }


LAYOUTS = {name: MessageLayout(kind) for name, kind in KINDS.items()}


def encode(envelope: Envelope) -> bytes:
    """Return the frame of a message; raise ``WireError`` if it is too large for any peer to accept."""
    message, layout = envelope.message, LAYOUTS[envelope.message.kind]
    arrays = {name: np.ascontiguousarray(getattr(message, name)) for name in layout.arrays}
    entries = [
        Array(name=name, dtype=array.dtype.name, shape=array.shape, checksum=_checksum(array))
        for name, array in arrays.items()
    ]
    _check_shapes(message.kind, entries)
    values = {name: getattr(message, name) for name in layout.facts}
    header = Header(
        protocol=PROTOCOL,
        session=envelope.session,
        sequence=envelope.sequence,
        acknowledged=envelope.acknowledged,
        reply_to=envelope.reply_to,
        kind=message.kind,
        facts={
            name: Fact(whole=int(values[name])) if slot == "whole" else Fact(**{slot: values[name]})
            for name, slot in layout.facts.items()
        },
        arrays=entries,
    ).SerializeToString(deterministic=True)
    end = PREFIX.size + len(header)
    total = _pad_to_8(end) + sum(_pad_to_8(array.nbytes) for array in arrays.values())
    if len(header) > MAX_HEADER_BYTES or total > MAX_FRAME_BYTES:
        fault = f"message '{message.kind}' has {total} bytes and a header of {len(header)} bytes"
        limits = f"the limits are {MAX_FRAME_BYTES} and {MAX_HEADER_BYTES}"
        raise WireError(f"{fault}; {limits}", code="frame-too-large")
    prefix = PREFIX.pack(MAGIC, len(header), total, xxhash.xxh3_64_intdigest(header))
    parts: list[Any] = [prefix, header, bytes(_pad_to_8(end) - end)]
    for array in arrays.values():
        parts += [array.reshape(-1).view(np.uint8).data, bytes(_pad_to_8(array.nbytes) - array.nbytes)]
    return b"".join(parts)


def declared_size(first: bytes) -> int:
    """Return the size that a frame declares, given its first bytes."""
    if len(first) < PREFIX.size:
        raise WireError(f"a frame starts with {PREFIX.size} bytes, but only {len(first)} arrived", code="bad-prefix")
    magic, header, total, _ = PREFIX.unpack_from(first)
    if magic != MAGIC:
        raise WireError("the received bytes are not a FedSim frame", code="bad-prefix")
    if header > MAX_HEADER_BYTES or total < PREFIX.size + header:
        fault = f"a frame declares {total} bytes and a header of {header} bytes, which is impossible"
        raise WireError(fault, code="bad-prefix")
    return int(total)


def decode(frame: bytes) -> Envelope:
    """Return the message of a frame; raise ``WireError`` unless the bytes are exactly one valid frame."""
    if declared_size(frame) != len(frame):
        raise WireError(f"a frame of {len(frame)} bytes declares {declared_size(frame)} bytes", code="bad-frame-size")
    _, length, _, checksum = PREFIX.unpack_from(frame)
    packed = frame[PREFIX.size : PREFIX.size + length]
    if xxhash.xxh3_64_intdigest(packed) != checksum:
        raise WireError("the header of a frame does not match its checksum", code="bad-checksum")
    header = Header()
    try:
        header.ParseFromString(packed)
    except DecodeError:
        raise WireError("the header of a frame is not valid protobuf", code="bad-header") from None
    if header.protocol != PROTOCOL:
        fault = f"the peer uses protocol {header.protocol}, this release uses {PROTOCOL}"
        raise WireError(f"{fault}; install one release everywhere", code="other-protocol")
    start, kind = _skip_padding(frame, PREFIX.size + length), KINDS.get(header.kind)
    if kind is None:
        raise WireError(f"unknown message {header.kind[:40]!a}", code="unknown-message")
    content = {**_decode_facts(header), **_decode_arrays(header, frame, start)}
    return Envelope(kind(**content), header.session, header.sequence, header.acknowledged, header.reply_to)


def _decode_facts(header: Header) -> dict[str, Any]:
    expected, message = LAYOUTS[header.kind].facts, f"message '{header.kind}'"
    if set(header.facts) != set(expected):
        raise WireError(f"{message} must have the facts: {', '.join(expected) or 'none'}", code="bad-facts")
    for name, slot in expected.items():
        if header.facts[name].WhichOneof("value") != slot:
            raise WireError(f"fact '{name}' of {message} has the wrong type", code="bad-facts")
    values = {name: getattr(header.facts[name], slot) for name, slot in expected.items()}
    if any(isinstance(value, float) and not math.isfinite(value) for value in values.values()):
        raise WireError(f"{message} contains a number that is not finite", code="bad-facts")
    return values


def _decode_arrays(header: Header, frame: bytes, start: int) -> dict[str, AnyArray]:
    expected, message = LAYOUTS[header.kind].arrays, f"message '{header.kind}'"
    if [array.name for array in header.arrays] != list(expected):
        raise WireError(f"{message} must have the arrays: {', '.join(expected) or 'none'}", code="bad-arrays")
    _check_shapes(header.kind, header.arrays)
    decoded = {}
    for array in header.arrays:
        dtype = np.dtype(array.dtype)
        count = math.prod(array.shape)  # Python integers: cannot overflow
        if count * dtype.itemsize > len(frame) - start:
            raise WireError(f"array '{array.name}' of {message} is longer than its frame", code="bad-arrays")
        # A size of zero counts as one: numpy refuses sizes whose product overflows even if one of them is zero.
        if math.prod(max(1, size) for size in array.shape) * dtype.itemsize > MAX_FRAME_BYTES:
            raise WireError(f"array '{array.name}' of {message} declares impossible sizes", code="bad-arrays")
        values = np.frombuffer(frame, dtype, count, start).reshape(tuple(array.shape))
        if _checksum(values) != array.checksum:
            raise WireError(f"array '{array.name}' of {message} does not match its checksum", code="bad-checksum")
        decoded[array.name] = values
        start = _skip_padding(frame, start + values.nbytes)
    if start != len(frame):
        raise WireError(f"{message} has {len(frame) - start} bytes after its arrays", code="bad-frame-size")
    return decoded


def _check_shapes(kind: str, arrays: Iterable[Array]) -> None:
    """Check types, dimensions and sizes; a letter has one size in all arrays of a message."""
    sizes: dict[str, int] = {}
    for array, shape in zip(arrays, LAYOUTS[kind].arrays.values(), strict=True):
        where = f"array '{array.name}' of message '{kind}'"
        if array.dtype not in shape.dtypes:
            raise WireError(f"{where} must be of type {' or '.join(shape.dtypes)}", code="bad-arrays")
        found, letters = array.shape, shape.letters
        if len(found) != len(letters):
            raise WireError(f"{where} has {len(found)} dimensions instead of {len(letters)}", code="bad-arrays")
        for letter, size in zip(letters, found, strict=True):
            if sizes.setdefault(letter, size) != size:
                fault = f"{where} does not fit the other arrays: {size} against {sizes[letter]}"
                raise WireError(fault, code="bad-arrays")


def _skip_padding(frame: bytes, end: int) -> int:
    """Return where the next part begins; padding must be zero, so that every bit of a frame is verified."""
    if any(frame[end : _pad_to_8(end)]):
        raise WireError("the padding of a frame is not zero", code="bad-padding")
    return _pad_to_8(end)


def _checksum(array: AnyArray) -> int:
    return xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8).data)


def _pad_to_8(size: int) -> int:
    return -(-size // 8) * 8


# Sealed links. A secondary answers only for rows that the coordinator linked to records of the primary. It gets the
# links of the training table itself; those of new records travel through the primary, sealed by AES-GCM under a key
# that the primary does not have.


@dataclass(frozen=True, eq=False)
class LinkedRows:
    """What the primary's row numbers stand for: the row behind every number and a keyed hash of its record."""

    numbers: Integers32  # (n K,)
    rows: Integers32  # (n K,)
    records: Words  # (n,)


def derive_seal_key(secret: bytes, partner_list: str) -> Bits:
    """Derive the key that coordinator and secondary share for one list."""
    return np.frombuffer(derive_subkey(secret, f"seal of {partner_list}", SEAL_KEY_BYTES), np.uint8)


def seal_links(key: Bits, links: LinkedRows) -> Bits:
    """Encrypt links for the secondary; equal links give equal bytes."""
    parts = (links.records.astype("<u8"), links.numbers.astype("<i4"), links.rows.astype("<i4"))
    plain = struct.pack("<Q", len(links.records)) + b"".join(part.tobytes() for part in parts)
    nonce = blake2b(plain, key=key.tobytes(), digest_size=NONCE_BYTES).digest()
    return np.frombuffer(nonce + AESGCM(key.tobytes()).encrypt(nonce, plain, None), np.uint8)


def unseal_links(key: Bits, sealed: Bits) -> LinkedRows:
    """Decrypt links; raise ``PeerError`` if the coordinator did not seal them."""
    content = sealed.tobytes()
    try:
        plain = AESGCM(key.tobytes()).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], None)
        (n_records,) = struct.unpack_from("<Q", plain)
        records = np.frombuffer(plain, "<u8", n_records, 8).astype(np.uint64)
        links = np.frombuffer(plain, "<i4", offset=8 + 8 * n_records).astype(np.int32).reshape(2, -1)
    except (InvalidTag, ValueError, struct.error):
        raise PeerError("the primary sent links that the coordinator did not seal", code="bad-seal") from None
    return LinkedRows(links[0], links[1], records)


def offer_digest(table: EncodedTable, *extra: AnyArray) -> str:
    """Return the digest that announces an encoded table, and arrays sent with it, in an Offer message.

    It covers fingerprint and filters. Files use :attr:`EncodedTable.digest`, another value.
    """
    return arrays_digest(np.frombuffer(table.fingerprint.encode(), np.uint8), table.bits, *extra)
