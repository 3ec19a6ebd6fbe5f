"""Transports: ordered streams of frames to one peer; and how a message becomes a frame.

The in-process transport uses queues. A transport is registered in :data:`fedsim.registry.TRANSPORTS` as a function of
the party's credentials.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from queue import SimpleQueue
from typing import Any, Protocol, Self, get_type_hints

import numpy as np
import xxhash
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError

from fedsim.errors import PeerError, SettingError, WireError
from fedsim.linkage.direct.oprf import ELEMENT_BYTES, MAX_BATCH, PROOF_BYTES, ROUND_TOKENS
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


# Bounds of every message: the smallest and largest number, length of a text and size of a dimension.
#
# A few bytes can declare an array of 10^8 rows without columns, or a cut layer of 3,000,000 numbers, and a process that
# handles them runs out of memory. A session therefore checks every message before it is handled. The bounds below hold
# for any job; :meth:`MessageBounds.for_lists` narrows them to what a job's lists imply.


Range = tuple[int, int]

MAX_WIDTH = 1 << 14  # of the cut layer
MAX_STEPS = 1 << 40
MAX_INTEGER = (1 << 63) - 1
MAX_TABLE_BYTES = 1 << 40
PART_BYTES = 4 << 20  # of an encrypted table in one message
_NAME: Range = (0, 40)
_DIGEST: Range = (0, 128)
_TEXT: Range = (0, 1 << 14)  # a sentence for people
_ANY: Range = (-MAX_INTEGER - 1, MAX_INTEGER)

# By name of a fact or letter of a dimension; "kind.name" where one kind of message differs from the others. Numbers
# are bounded by the job only.
GENERAL_LIMITS: Mapping[str, Range] = {
    **dict.fromkeys(("party", "role", "partner_list"), _NAME),
    **dict.fromkeys(("digest", "have", "fingerprint", "instance", "session", "resume"), _DIGEST),
    **dict.fromkeys(("origin", "reason", "text", "fault"), _TEXT),
    "job": (0, 1 << 20),
    "statement": (0, 4096),
    "certificate": (0, 1 << 14),
    "versions": (0, 2048),
    **dict.fromkeys(("received", "seed", "step", "total_steps", "n_bits", "width"), _ANY),
    **dict.fromkeys(("n_records", "n_candidates", "n_trained"), _ANY),
    **dict.fromkeys(("n", "m", "U"), (0, MAX_DIMENSION)),
    "C": (0, MAX_WIDTH),
    "b": (0, MAX_FRAME_BYTES),
    "K": (0, 10_000),
    "F": (0, 1000),
    "s": (0, MAX_FRAME_BYTES),
    "row-order.s": (0, SEAL_KEY_BYTES),
    **dict.fromkeys(("size", "start"), (0, MAX_TABLE_BYTES)),
    "t": (0, PART_BYTES),
    "T": (1, ROUND_TOKENS),
    "e": (ELEMENT_BYTES, ELEMENT_BYTES),
    "B": (1, -(-ROUND_TOKENS // MAX_BATCH)),
    "z": (PROOF_BYTES, PROOF_BYTES),
}
UNBOUNDED_SLOTS = ("flag", "number")  # a number is finite, and none is used as a size


@dataclass(frozen=True)
class ListSizes:
    """What the job says about one list: bits of a filter, partners per record, similarities per pair."""

    n_bits: int
    k: int
    n_fields: int = 1

    @property
    def most_queries(self) -> int:
        """The primary's records whose filters, and whose partners, fit into one message."""
        links = self.k * (4 + 4 * self.n_fields)
        return MAX_FRAME_BYTES // max(-(-self.n_bits // 8), links)

    @property
    def most_rows(self) -> int:
        """The rows of the secondary whose filters fit into one message."""
        return MAX_FRAME_BYTES // -(-self.n_bits // 8)


@dataclass(frozen=True)
class MessageBounds:
    """The bounds of all messages in one session."""

    limits: Mapping[str, Range] = field(default_factory=lambda: GENERAL_LIMITS)
    _tables: Mapping[str, Mapping[str, Range]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tables", {kind: self.table(kind) for kind in KINDS})

    @classmethod
    def for_lists(cls, lists: Sequence[ListSizes], cut_width: int | None = None) -> Self:
        """Return the bounds that the lists of a job imply, and the width of its secondaries' cut layer if it is known.

        An embedding has a width of its own, so activations may be wider.
        """
        queries = max(each.most_queries for each in lists)
        rows = max(each.most_rows for each in lists)
        bits, k = [each.n_bits for each in lists], [each.k for each in lists]
        fields = [each.n_fields for each in lists]
        own = {
            "n_bits": (min(bits), max(bits)),
            "b": (-(-min(bits) // 8), -(-max(bits) // 8)),
            **dict.fromkeys(("n", "n_trained"), (1, queries)),
            **dict.fromkeys(("width", "C"), (1, MAX_WIDTH)),
            "ready.width": (1, MAX_WIDTH) if cut_width is None else (cut_width, cut_width),
            **dict.fromkeys(("step", "total_steps"), (-1, MAX_STEPS)),
            "received": (0, MAX_STEPS),
            "seed": (0, MAX_INTEGER),
            **dict.fromkeys(("m", "n_records", "n_candidates"), (1, rows)),
            "U": (0, rows),
            "K": (min(k), max(k)),
            "F": (min(fields), max(fields)),
        }
        return cls({**GENERAL_LIMITS, **own})

    @classmethod
    def for_tables(cls) -> Self:
        """Return the bounds of a job without a coordinator, whose messages do not depend on its terms."""
        sizes = {"width": (1, MAX_WIDTH), "n_records": (1, MAX_DIMENSION), "received": (0, MAX_STEPS)}
        return cls({**GENERAL_LIMITS, **sizes})

    def table(self, kind: str) -> dict[str, Range]:
        """Return the bounds of one kind of message, by name of a fact or letter of a dimension."""
        layout = LAYOUTS[kind]
        names = [name for name, slot in layout.facts.items() if slot not in UNBOUNDED_SLOTS]
        letters = [letter for shape in layout.arrays.values() for letter in shape.letters]
        return {name: self.limits.get(f"{kind}.{name}") or self.limits[name] for name in (*names, *letters)}

    def check(self, message: Message) -> None:
        """Raise ``WireError`` for a message outside its bounds."""
        kind, layout = message.kind, LAYOUTS[message.kind]
        seen: dict[str, int] = {}
        for name in layout.facts:
            value = getattr(message, name)
            seen[name] = len(value) if isinstance(value, str) else value
        for name, shape in layout.arrays.items():
            seen |= dict(zip(shape.letters, getattr(message, name).shape, strict=True))
        for name, (least, most) in self._tables[kind].items():
            if not least <= seen[name] <= most:
                fault = f"'{name}' of message '{kind}' is or has the length {seen[name]}"
                rule = f"it must be between {least} and {most} in this job"
                raise WireError(f"{fault}; {rule}", code="out-of-bounds", sent=kind, name=name, limit=most)


GENERAL_BOUNDS = MessageBounds()
