"""Encode messages as frames and decode them, with every length, type and checksum verified.

::

    magic 4 | header bytes 4 | total bytes 8 | checksum of the header 8 | header | padding | arrays, each padded to 8

Whatever a frame says of itself is checked before anything is allocated; a faulty frame is a WireError, never anything
else. Arrays are views of the frame, and carry a checksum each (xxh3: it finds accidents; TLS keeps out malice).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, get_type_hints

import numpy as np
import xxhash
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedsim.errors import PeerError, WireError
from fedsim.privacy.keyed_prng import derive_subkey
from fedsim.protocol.frame_pb2 import Array, Fact, Header
from fedsim.protocol.messages import KINDS, PROTOCOL, Message, Shape
from fedsim.storage.digest import arrays_digest
from fedsim.types import EncodedTable

PREFIX = struct.Struct("<4sIQQ")
MAGIC = b"FSIM"
MAX_HEADER_BYTES = 1 << 20
MAX_FRAME_BYTES = 1 << 30  # of one frame
MAX_DIMENSION = 1 << 31  # of one dimension: rows are numbered in int32
FACT_SLOTS: dict[Any, str] = {int: "whole", float: "number", str: "text", bool: "flag"}


@dataclass(frozen=True, eq=False)
class Envelope:
    """A message with its place in a conversation."""

    message: Message
    session: bytes = b""
    sequence: int = 0
    acknowledged: int = 0
    reply_to: int = 0


@dataclass(frozen=True)
class MessageLayout:
    """What a message is made of: the slot of every fact, the shape of every array."""

    facts: dict[str, str]
    arrays: dict[str, Shape]


def encode(envelope: Envelope) -> bytes:
    """The frame of a message; raises WireError where no peer would take it, for it would be sent again for ever."""
    message, layout = envelope.message, LAYOUTS[envelope.message.kind]
    arrays = {name: np.ascontiguousarray(getattr(message, name)) for name in layout.arrays}
    header = _encode_header(envelope, layout, arrays)
    total = _pad_to_8(PREFIX.size + len(header)) + sum(_pad_to_8(array.nbytes) for array in arrays.values())
    if len(header) > MAX_HEADER_BYTES or total > MAX_FRAME_BYTES:
        raise WireError(
            f"a message '{message.kind}' of {total} bytes with a header of {len(header)}; at most {MAX_FRAME_BYTES} and "
            f"{MAX_HEADER_BYTES} are taken"
        )
    pieces: list[Any] = [PREFIX.pack(MAGIC, len(header), total, xxhash.xxh3_64_intdigest(header)), header]
    pieces.append(bytes(_pad_to_8(PREFIX.size + len(header)) - PREFIX.size - len(header)))
    for array in arrays.values():
        pieces += [array.reshape(-1).view(np.uint8).data, bytes(_pad_to_8(array.nbytes) - array.nbytes)]
    return b"".join(pieces)


def _encode_header(envelope: Envelope, layout: MessageLayout, arrays: dict[str, NDArray[Any]]) -> bytes:
    message = envelope.message
    described = [_describe_array(name, array) for name, array in arrays.items()]
    _check_shapes(type(message), described)
    return Header(
        protocol=PROTOCOL,
        session=envelope.session,
        sequence=envelope.sequence,
        acknowledged=envelope.acknowledged,
        reply_to=envelope.reply_to,
        kind=message.kind,
        facts={name: _encode_fact(message, name, slot) for name, slot in layout.facts.items()},
        arrays=described,
    ).SerializeToString(deterministic=True)


def declared_size(first: bytes) -> int:
    """How long the frame that begins like this says it is."""
    if len(first) < PREFIX.size:
        raise WireError(f"a frame begins with {PREFIX.size} bytes of prefix; {len(first)} came")
    magic, header, total, _ = PREFIX.unpack_from(first)
    if magic != MAGIC:
        raise WireError("these bytes are no FedSim frame")
    if header > MAX_HEADER_BYTES or total < PREFIX.size + header:
        raise WireError(f"a frame declares {total} bytes with a header of {header}; that cannot be")
    return int(total)


def decode(frame: bytes) -> Envelope:
    """The message of a frame; raises WireError for anything that is not exactly one."""
    if declared_size(frame) != len(frame):
        raise WireError(f"a frame of {len(frame)} bytes declares {declared_size(frame)}")
    header, start = _decode_header(frame)
    kind = KINDS.get(header.kind)
    if kind is None:
        raise WireError(f"there is no message {header.kind[:40]!a}")
    given = {**_decode_facts(kind, header), **_decode_arrays(kind, header, frame, start)}
    return Envelope(kind(**given), header.session, header.sequence, header.acknowledged, header.reply_to)


def _decode_header(frame: bytes) -> tuple[Header, int]:
    _, length, _, checksum = PREFIX.unpack_from(frame)
    packed = frame[PREFIX.size : PREFIX.size + length]
    if xxhash.xxh3_64_intdigest(packed) != checksum:
        raise WireError("the header of a frame does not match its checksum")
    header = Header()
    try:
        header.ParseFromString(packed)
    except DecodeError:
        raise WireError("the header of a frame is no protobuf header") from None
    if header.protocol != PROTOCOL:
        raise WireError(
            f"the peer speaks protocol {header.protocol}, this release {PROTOCOL}; use the same release everywhere"
        )
    return header, _skip_padding(frame, PREFIX.size + length)


def _decode_facts(kind: type[Message], header: Header) -> dict[str, Any]:
    wanted = LAYOUTS[kind.kind].facts
    if set(header.facts) != set(wanted):
        raise WireError(f"a message '{kind.kind}' has other facts than {', '.join(wanted) or 'none'}")
    found = {name: header.facts[name].WhichOneof("value") for name in wanted}
    for name, slot in wanted.items():
        if found[name] != slot:
            raise WireError(f"fact '{name}' of a message '{kind.kind}' is of the wrong type")
    given = {name: getattr(header.facts[name], slot) for name, slot in wanted.items()}
    if any(isinstance(value, float) and not math.isfinite(value) for value in given.values()):
        raise WireError(f"a number of a message '{kind.kind}' is not finite")
    return given


def _decode_arrays(kind: type[Message], header: Header, frame: bytes, start: int) -> dict[str, NDArray[Any]]:
    wanted = LAYOUTS[kind.kind].arrays
    if [array.name for array in header.arrays] != list(wanted):
        raise WireError(f"a message '{kind.kind}' has other arrays than {', '.join(wanted) or 'none'}")
    _check_shapes(kind, header.arrays)
    found = {}
    for array in header.arrays:
        found[array.name], start = _decode_array(kind, array, frame, start)
    if start != len(frame):
        raise WireError(f"a message '{kind.kind}' has {len(frame) - start} bytes more than its arrays")
    return found


def _check_shapes(kind: type[Message], arrays: Iterable[Array]) -> None:
    sizes: dict[str, int] = {}
    for array, shape in zip(arrays, LAYOUTS[kind.kind].arrays.values(), strict=True):
        _check_shape(kind, array, shape, sizes)


def _check_shape(kind: type[Message], array: Array, shape: Shape, sizes: dict[str, int]) -> None:
    where = f"array '{array.name}' of a message '{kind.kind}'"
    if array.dtype not in shape.dtypes:
        raise WireError(f"{where} is of another type than {' or '.join(shape.dtypes)}")
    if len(array.shape) != len(shape.letters):
        raise WireError(f"{where} has {len(array.shape)} dimensions instead of {len(shape.letters)}")
    for letter, size in zip(shape.letters, array.shape, strict=True):
        if size > MAX_DIMENSION:
            raise WireError(f"{where} declares a dimension of {size}; at most {MAX_DIMENSION} are taken")
        if sizes.setdefault(letter, size) != size:
            raise WireError(f"{where} does not fit the other arrays: {size} against {sizes[letter]}")


def _decode_array(kind: type[Message], array: Array, frame: bytes, start: int) -> tuple[NDArray[Any], int]:
    dtype, count = np.dtype(array.dtype), 1
    for size in array.shape:
        count *= size  # whole numbers of any size: nothing overflows
    if count * dtype.itemsize > len(frame) - start:
        raise WireError(f"array '{array.name}' of a message '{kind.kind}' declares more than the frame holds")
    values = np.frombuffer(frame, dtype, count, start).reshape(tuple(array.shape))
    if _checksum(values) != array.checksum:
        raise WireError(f"array '{array.name}' of a message '{kind.kind}' does not match its checksum")
    return values, _skip_padding(frame, start + values.nbytes)


def _skip_padding(frame: bytes, end: int) -> int:
    """Where the next part begins; what fills the gap is zero, so that every bit of a frame is checked."""
    if any(frame[end : _pad_to_8(end)]):
        raise WireError("the padding of a frame is not zero")
    return _pad_to_8(end)


def _describe_array(name: str, array: NDArray[Any]) -> Array:
    return Array(name=name, dtype=array.dtype.name, shape=array.shape, checksum=_checksum(array))


def _checksum(array: NDArray[Any]) -> int:
    return xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8).data)


def _encode_fact(message: Message, name: str, slot: str) -> Fact:
    value = getattr(message, name)
    if slot == "whole":
        return Fact(whole=int(value))
    return Fact(**{slot: value})


def _pad_to_8(size: int) -> int:
    return -(-size // 8) * 8


def _layout(kind: type[Message]) -> MessageLayout:
    hints = get_type_hints(kind, include_extras=True)
    named = {entry.name: hints[entry.name] for entry in fields(kind)}  # type: ignore[arg-type]
    return MessageLayout(
        facts={name: FACT_SLOTS[hint] for name, hint in named.items() if hint in FACT_SLOTS},
        arrays={name: hint.__metadata__[0] for name, hint in named.items() if hint not in FACT_SLOTS},
    )


LAYOUTS = {name: _layout(kind) for name, kind in KINDS.items()}


# Hidden rows: the primary asks by its own records, and only the secondary knows which of its rows are meant
#
# Every link gets a row number of its own, so no number repeats; the coordinator tells the secondary which row each
# stands for. For predictions, when coordinator and secondary do not speak, that list travels with the primary's
# question: sealed by AES-GCM under a key the primary does not have.
#
# Letters: n records, K partners.


SEAL_KEY_BYTES = 32
NONCE_BYTES = 12
NO_BYTES: NDArray[np.uint8] = np.zeros(0, np.uint8)


def derive_seal_key(secret: bytes, partner_list: str) -> NDArray[np.uint8]:
    """The key that coordinator and secondary share for one list."""
    return np.frombuffer(derive_subkey(secret, f"seal of {partner_list}", SEAL_KEY_BYTES), np.uint8)


def seal_rows(key: NDArray[np.uint8], rows: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Rows that only the secondary can read; the same rows give the same bytes, and so the same noise."""
    plain = np.ascontiguousarray(rows, "<i4").tobytes()
    nonce = blake2b(plain, key=key.tobytes(), digest_size=NONCE_BYTES).digest()
    return np.frombuffer(nonce + AESGCM(key.tobytes()).encrypt(nonce, plain, None), np.uint8)


def unseal_rows(key: NDArray[np.uint8], closed: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The rows that were sealed; raises PeerError for anything else."""
    content = closed.tobytes()
    try:
        plain = AESGCM(key.tobytes()).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        raise PeerError("the primary sent rows that the coordinator did not seal") from None
    return np.frombuffer(plain, "<i4").astype(np.int32)


# A short name for identifiers that were sent before, so that they need not be sent again


def offer_digest(table: EncodedTable, *beside: NDArray[Any]) -> str:
    """That of an encoded table, and of what is sent beside it."""
    return arrays_digest(np.frombuffer(table.fingerprint.encode(), np.uint8), table.bits, *beside)
