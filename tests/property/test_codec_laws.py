"""Whatever a message carries, its frame brings back; whatever a frame is, it is that message or none."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from fedsim.errors import WireError
from fedsim.protocol.messages import KINDS
from fedsim.protocol.transport import LAYOUTS, Envelope, decode, encode
from message_fixtures import SMALL, enveloped, same, sealed

LETTERS = sorted(
    {letter for layout in LAYOUTS.values() for shape in layout.arrays.values() for letter in shape.letters}
)
FACTS = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "text": st.text(),
    "flag": st.booleans(),
}
counts = st.integers(0, 2**64 - 1)


@st.composite
def messages(draw):
    """Any message at all: any kind, any facts, any bits in its arrays."""
    kind = draw(st.sampled_from(list(KINDS)))
    sizes = {letter: draw(st.integers(0, 4)) for letter in LETTERS}
    facts = {name: draw(FACTS[slot]) for name, slot in LAYOUTS[kind].facts.items()}
    return KINDS[kind](**facts, **{name: draw(arrays(shape, sizes)) for name, shape in LAYOUTS[kind].arrays.items()})


@st.composite
def arrays(draw, shape, sizes):
    dtype, size = np.dtype(draw(st.sampled_from(shape.dtypes))), tuple(sizes[letter] for letter in shape.letters)
    n_bytes = math.prod(size) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=n_bytes, max_size=n_bytes)), dtype).reshape(size)


envelopes = st.builds(Envelope, messages(), st.binary(max_size=16), counts, counts, counts)


@settings(max_examples=400)
@given(envelopes)
def test_every_message_comes_back_as_it_went(envelope):
    frame = encode(envelope)
    assert len(frame) % 8 == 0
    assert same(decode(frame), envelope)


@settings(max_examples=400)
@given(envelopes, st.data())
def test_a_changed_byte_is_never_another_message(envelope, data):
    frame = bytearray(encode(envelope))
    place, byte = data.draw(st.integers(0, len(frame) - 1)), data.draw(st.integers(1, 255))
    frame[place] ^= byte
    assert not is_message(bytes(frame))


@settings(max_examples=400)
@given(st.binary(max_size=80), st.binary(max_size=40))
def test_any_bytes_under_a_right_seal_are_a_message_or_a_wire_error(header, body):
    is_message(sealed(header, body))
    is_message(header + body)


@given(st.sampled_from(list(SMALL)), st.sampled_from(list(SMALL)))
def test_two_messages_in_one_frame_are_none(one, other):
    assert not is_message(encode(enveloped(SMALL[one])) + encode(enveloped(SMALL[other])))


def is_message(frame: bytes) -> bool:
    try:
        decode(frame)
    except WireError:
        return False
    return True
