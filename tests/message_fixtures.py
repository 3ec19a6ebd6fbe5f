"""One small message of every kind, frames that no encoder would make, and what it means that two messages are equal."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import xxhash

from fedsim.protocol.frame_pb2 import Array, Fact, Header
from fedsim.protocol.messages import KINDS, PROTOCOL, Message
from fedsim.protocol.transport import LAYOUTS, MAGIC, PREFIX, Envelope

SIZES = {"n": 3, "m": 5, "K": 2, "F": 1, "U": 3, "C": 2, "b": 3, "s": 4, "t": 4, "T": 3, "e": 32, "B": 1, "z": 64}
FACTS = {"whole": 7, "number": 1.5, "text": "word", "flag": True}
EMPTY = xxhash.xxh3_64_intdigest(b"")


def small(kind: str, **changes) -> Message:
    """A message of a kind, made of small numbers and words."""
    layout = LAYOUTS[kind]
    facts = {name: FACTS[slot] for name, slot in layout.facts.items()}
    arrays = {name: _counted(shape) for name, shape in layout.arrays.items()}
    return KINDS[kind](**{**facts, **arrays, **changes})


def _counted(shape):
    size = tuple(SIZES[letter] for letter in shape.letters)
    return np.arange(np.prod(size)).reshape(size).astype(shape.dtypes[0])


SMALL = {kind: small(kind) for kind in KINDS}


def enveloped(message: Message) -> Envelope:
    """A message in the middle of a conversation."""
    return Envelope(message, session=bytes(range(16)), sequence=5, acknowledged=4, reply_to=3)


def contents(message: Message) -> list:
    """All that a message carries, bit for bit."""
    return [message.kind, *(_bits(getattr(message, entry.name)) for entry in fields(message))]


def _bits(value):
    return (value.dtype.name, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (type(value), value)


def same(one: Envelope, other: Envelope) -> bool:
    """Whether two envelopes say the same at the same place of the same conversation."""
    bare = replace(one, message=None), replace(other, message=None)
    return vars(bare[0]) == vars(bare[1]) and contents(one.message) == contents(other.message)


def sealed(header: bytes, body: bytes = b"", *, total: int | None = None, length: int | None = None) -> bytes:
    """A frame with the right checksum, whatever its header says."""
    padding = bytes(-(PREFIX.size + len(header)) % 8)
    whole = PREFIX.size + len(header) + len(padding) + len(body)
    seal = xxhash.xxh3_64_intdigest(header)
    return PREFIX.pack(MAGIC, length or len(header), total or whole, seal) + header + padding + body


def forged(kind: str, facts: dict | None = None, arrays: list[Array] | None = None, body: bytes = b"") -> bytes:
    """A frame of a kind with facts and arrays of one's own."""
    head = Header(protocol=PROTOCOL, session=bytes(16), sequence=1, kind=kind, facts=facts or {}, arrays=arrays or [])
    return sealed(head.SerializeToString(), body)


def declared(shape: tuple[int, ...], dtype: str = "float32", name: str = "values", checksum: int = EMPTY) -> bytes:
    """Activations that declare an array and send nothing of it."""
    array = Array(name=name, dtype=dtype, shape=shape, checksum=checksum)
    return forged("activations", {"step": Fact(whole=1)}, [array])
