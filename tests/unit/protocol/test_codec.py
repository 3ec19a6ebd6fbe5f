"""A frame is exactly one message or a WireError: whatever is flipped, cut, put in or declared."""

from __future__ import annotations

import itertools
import resource
import tracemalloc

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import WireError
from fedsim.protocol import transport
from fedsim.protocol.frame_pb2 import Array, Fact, Header
from fedsim.protocol.messages import KINDS, PROTOCOL, Activations, Ask, Hello, KeepBest, Partners, Refusal
from fedsim.protocol.transport import MAGIC, MAX_HEADER_BYTES, PREFIX, Envelope, declared_size, decode, encode
from message_fixtures import EMPTY, FACTS as SMALL_FACTS, SMALL, declared, enveloped, forged, same, sealed, small

FRAMES = {kind: encode(enveloped(message)) for kind, message in SMALL.items()}
STEP = {"step": Fact(whole=1)}
REALS = np.zeros((3, 2), np.float32)


def refused(frame: bytes) -> str:
    with pytest.raises(WireError) as fault:
        decode(frame)
    return str(fault.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_every_kind_comes_back_as_it_went(kind):
    assert same(decode(FRAMES[kind]), enveloped(SMALL[kind]))


def test_arrays_that_arrive_cannot_be_written_to():
    assert not decode(FRAMES["activations"]).message.values.flags.writeable


def test_arrays_go_as_they_read_however_they_lie_in_memory():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for lying in (values.T, values[::-1, ::2], np.asfortranarray(values)):
        arrived = decode(encode(Envelope(Activations(0, values=lying)))).message.values
        assert np.array_equal(arrived, lying)


def test_no_rows_are_an_answer_too():
    assert decode(encode(Envelope(Activations(0, values=REALS[:0])))).message.values.shape == (0, 2)


# --- flipped, cut, put in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["keep-best", "hello", "activations", "partners", "candidates"])
def test_every_flipped_bit_is_found(kind):
    frame = FRAMES[kind]
    for place in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[place // 8] ^= 1 << place % 8
        refused(bytes(flipped))


@pytest.mark.parametrize("kind", ["keep-best", "hello", "partners"])
def test_every_cut_and_every_byte_too_many_is_found(kind):
    frame = FRAMES[kind]
    for place in range(len(frame)):
        refused(frame[:place])
        refused(frame[place + 1 :])
        refused(frame[:place] + b"\0" + frame[place:])
    refused(frame + frame)


def mutated(frame: bytes, rng: np.random.Generator) -> bytes:
    """A frame with a few bytes changed, cut out or put in."""
    changed = bytearray(frame)
    for place, byte, how in rng.integers(0, (len(frame), 256, 4), (rng.integers(1, 4), 3)).tolist():
        if how == 0:
            del changed[place : place + byte % 9]
        elif how == 1:
            changed[place:place] = bytes([byte]) * (byte % 5)
        elif place < len(changed):
            changed[place] = byte
    return bytes(changed)


def outcome(frame: bytes) -> Envelope | None:
    try:
        return decode(frame)
    except WireError:
        return None


def test_a_hundred_thousand_malformed_frames_do_no_harm():
    rng, before = np.random.default_rng(4), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, frame in FRAMES.items():
        for _ in range(60_000 // len(FRAMES) + 1):
            found = outcome(mutated(frame, rng))
            assert found is None or same(found, enveloped(SMALL[kind]))
        length = PREFIX.unpack_from(frame)[1]
        header, body = frame[PREFIX.size : PREFIX.size + length], frame[-(-(PREFIX.size + length) // 8) * 8 :]
        for _ in range(40_000 // len(FRAMES) + 1):
            outcome(sealed(mutated(header, rng), body))  # the checksum is right: what it seals is not
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


# --- what a frame says of itself ---------------------------------------------------------------------------------


def without_bytes(kind: str, sizes: dict[str, int]) -> bytes:
    """A message of a kind whose arrays declare these sizes by letter, and none of whose bytes follow."""
    layout = transport.LAYOUTS[kind]
    facts = {name: Fact(**{slot: SMALL_FACTS[slot]}) for name, slot in layout.facts.items()}
    arrays = [
        Array(name=name, dtype=shape.dtypes[0], shape=[sizes[each] for each in shape.letters], checksum=EMPTY)
        for name, shape in layout.arrays.items()
    ]
    return forged(kind, facts, arrays)


ABSURD = {
    "2^40 bytes": PREFIX.pack(MAGIC, 8, 1 << 40, 0) + bytes(8),
    "2^62 bytes": PREFIX.pack(MAGIC, 8, 1 << 62, 0) + bytes(8),
    "a negative size": PREFIX.pack(MAGIC, 8, (1 << 64) - 8, 0) + bytes(8),
    "a header of 4 GiB": PREFIX.pack(MAGIC, (1 << 32) - 1, 1 << 40, 0) + bytes(8),
    "a header longer than the frame": PREFIX.pack(MAGIC, 1 << 19, 32, 0) + bytes(8),
    "a total below its prefix": PREFIX.pack(MAGIC, 0, 8, 0),
    "2^40 rows": declared((1 << 40, 8)),
    "2^32 x 2^32": declared((1 << 32, 1 << 32)),
    "2^31 x 2^31": declared((1 << 31, 1 << 31)),
    "2^31 x 2": declared((1 << 31, 2)),
    "no rows of 2^62": declared((0, 1 << 62)),
    "no rows of 2^64 - 1": declared((0, (1 << 64) - 1)),
    "2^64 - 1 rows of nothing": declared(((1 << 64) - 1, 0)),
    "no records of 2^31 x 2^31": without_bytes("partners", {"n": 0, "K": 1 << 31, "F": 1 << 31, "s": 0}),
    "no records of 2^62 x 2": without_bytes("partners", {"n": 0, "K": 1 << 62, "F": 2, "s": 0}),
    "no records of one more than fits": without_bytes("partners", {"n": 0, "K": 1 << 14, "F": (1 << 14) + 1, "s": 0}),
    "a million dimensions": declared((1,) * 1_000_000),
    "a million zeros": declared((0,) * 1_000_000),
    "no dimension": declared(()),
    "one dimension": declared((4,)),
    "three dimensions": declared((2, 2, 2)),
    "objects": declared((1, 1), "object"),
    "dates": declared((1, 1), "datetime64"),
    "float64": declared((1, 1), "float64"),
    "a type of 2^31 bytes": declared((1, 1), "V2147483648"),
    "a type of fields": declared((1, 1), "f4,f4"),
    "a text of a megabyte": forged("notice", {"text": Fact(text="x" * (1 << 20))}),
    "twenty thousand facts": forged("notice", {str(number): Fact() for number in range(20_000)}),
}


@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_declaration_is_refused_before_anything_is_allocated(what):
    tracemalloc.start()
    try:
        refused(ABSURD[what])
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


EXTREMES = (0, 1, 1 << 14, 1 << 31, (1 << 31) + 1, 1 << 62, (1 << 64) - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_sizes_of_which_no_bytes_follow_are_a_message_or_a_wire_error(kind):
    letters = sorted({letter for shape in transport.LAYOUTS[kind].arrays.values() for letter in shape.letters})
    for sizes in itertools.product(EXTREMES, repeat=len(letters)):
        outcome(without_bytes(kind, dict(zip(letters, sizes, strict=True))))


def array(name="values", dtype="float32", shape=(3, 2), content=REALS):
    return Array(name=name, dtype=dtype, shape=shape, checksum=transport.xxhash.xxh3_64_intdigest(content.tobytes()))


BODY = REALS.tobytes()
WRONG = {
    "no fact": forged("activations", {}, [array()], BODY),
    "a fact more": forged("activations", {**STEP, "label": Fact(whole=1)}, [array()], BODY),
    "a fact of another name": forged("activations", {"steps": Fact(whole=1)}, [array()], BODY),
    "a fact without value": forged("activations", {"step": Fact()}, [array()], BODY),
    "a text for a number": forged("activations", {"step": Fact(text="1")}, [array()], BODY),
    "a flag for a number": forged("activations", {"step": Fact(flag=True)}, [array()], BODY),
    "a fraction for a whole number": forged("activations", {"step": Fact(number=1.0)}, [array()], BODY),
    "no array": forged("activations", STEP),
    "the array twice": forged("activations", STEP, [array(), array()], BODY + BODY),
    "an array of another name": forged("activations", STEP, [array(name="labels")], BODY),
    "an array where none belongs": forged("keep-best", {}, [array()], BODY),
    "another array's bytes": forged("activations", STEP, [array(content=REALS + 1)], BODY),
    "bytes after the array": forged("activations", STEP, [array()], BODY + bytes(8)),
    "too few bytes": forged("activations", STEP, [array()], BODY[:-8]),
    "padding that is not zero": forged("ask", STEP, [array("rows", "int32", (1,), REALS[:1, 0])], b"\0\0\0\0!\0\0\0"),
    "an unknown kind": forged("labels"),
    "no kind": forged(""),
    "no protobuf": sealed(b"\xff" * 40),
    "a kind that is no text": sealed(b"\x08\x01\x32\x02\xff\xfe"),
    "nothing": b"",
    "half a prefix": FRAMES["want"][:23],
    "another magic": b"HTTP" + FRAMES["want"][4:],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_frame_that_is_not_exactly_a_message_is_refused(what):
    assert "word" not in refused(WRONG[what])


@pytest.mark.parametrize("clock", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(clock):
    assert "not finite" in refused(encode(Envelope(small("hello", clock=clock))))


def test_arrays_of_one_message_agree_in_their_sizes():
    partner, similarity = np.zeros((3, 2), np.int32), np.zeros((2, 3), np.float32)
    arrays = [
        array("partner", "int32", (3, 2), partner),
        array("similarity", "float32", (2, 3), similarity),
        array("sealed", "uint8", (0,), np.zeros(0, np.uint8)),
    ]
    facts = {"partner_list": Fact(text="rents"), "n_candidates": Fact(whole=9)}
    with raises(WireError, "bad-arrays"):
        decode(forged("partners", facts, arrays, partner.tobytes() + similarity.tobytes()))


def test_another_release_is_named_as_such():
    frame = sealed(Header(protocol=PROTOCOL + 1, kind="want").SerializeToString())
    with raises(WireError, "other-protocol"):
        decode(frame)


def test_an_unknown_kind_is_named_harmlessly():
    assert refused(forged("\x1b[2J\n" + "x" * 99)) == "unknown message '\\x1b[2J\\n" + "x" * 35 + "'"


def test_a_frame_tells_its_size_by_its_first_bytes():
    assert declared_size(FRAMES["partners"][:24]) == len(FRAMES["partners"])


# --- what no peer would take is not sent -------------------------------------------------------------------------


def unsendable(message) -> str:
    with pytest.raises(WireError) as fault:
        encode(Envelope(message))
    return fault.value.code


def test_arrays_that_no_peer_would_take_are_not_sent():
    assert unsendable(Ask(1, rows=np.arange(3))) == "bad-arrays"
    assert unsendable(Activations(1, values=REALS[0])) == "bad-arrays"
    partner, similarity = np.zeros((3, 2), np.int32), np.zeros((3, 3, 1), np.float32)
    message = Partners("rents", 9, partner=partner, similarity=similarity, sealed=np.zeros(0, np.uint8))
    assert unsendable(message) == "bad-arrays"


def test_a_frame_too_large_for_any_peer_is_not_sent(monkeypatch):
    monkeypatch.setattr(transport, "MAX_FRAME_BYTES", 100)
    assert unsendable(Activations(1, values=np.zeros((100, 2), np.float32))) == "frame-too-large"
    assert unsendable(Refusal("x" * MAX_HEADER_BYTES, False)) == "frame-too-large"


def test_no_message_shows_its_contents():
    hello = Hello("rentals", "secondary", "the job", "versions", "instance", "resume", 3, 1.0)
    assert (repr(hello), repr(KeepBest())) == ("Hello()", "KeepBest()")
    assert "rentals" not in f"{Envelope(hello)}{Envelope(hello)!r}"
