"""No message makes anybody allocate more than the job implies, whatever a few bytes declare."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import PeerError, WireError
from fedsim.protocol.messages import KINDS
from fedsim.protocol.transport import GENERAL_BOUNDS, LAYOUTS, MAX_FRAME_BYTES, ListSizes, MessageBounds
from message_fixtures import SIZES, small
from session_fixtures import PARTIES, frame_of, read_all, session_of, taken

JOB = MessageBounds.for_lists([ListSizes(n_bits=24, k=2)])
HUGE = 10**12
ABSURD = {"whole": (2**62, -(2**62)), "text": ("x" * (2 << 20),)}


def honest(kind, **changes):
    bits = {"n_bits": 8 * SIZES["b"]} if "n_bits" in LAYOUTS[kind].facts else {}
    return small(kind, **{**bits, **changes})


def absurd_messages():
    """For every kind, one message for each fact and for each dimension that is absurd; none takes memory."""
    for kind, layout in LAYOUTS.items():
        for name, slot in layout.facts.items():
            for value in ABSURD.get(slot, ()) if name != "seed" else ABSURD[slot][1:]:  # a seed is no size
                yield kind, name, honest(kind, **{name: value})
        for letter in dict.fromkeys(letter for shape in layout.arrays.values() for letter in shape.letters):
            sizes = {**SIZES, letter: HUGE}
            arrays = {
                name: np.broadcast_to(np.zeros(1, shape.dtypes[0]), [sizes[each] for each in shape.letters])
                for name, shape in layout.arrays.items()
            }
            yield kind, letter, honest(kind, **arrays)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_and_every_dimension_has_a_bound(kind):
    layout = LAYOUTS[kind]
    facts = {name for name, slot in layout.facts.items() if slot in ABSURD}
    letters = {letter for shape in layout.arrays.values() for letter in shape.letters}
    assert GENERAL_BOUNDS.table(kind).keys() == JOB.table(kind).keys() == facts | letters
    JOB.check(honest(kind))


@pytest.mark.parametrize(("kind", "name", "message"), list(absurd_messages()))
def test_what_is_absurd_is_refused(kind, name, message):
    with raises(WireError, "out-of-bounds", sent=kind, name=name):
        JOB.check(message)


ATTACKS = {
    "candidates": {"bits": np.zeros((10**8, 0), np.uint8)},  # 216 bytes
    "ready": {"width": 3_000_000},
    "activations": {"values": np.zeros((0, 3_000_000), np.float32)},
    "partners": {"similarity": np.zeros((3, 2, 0), np.float32)},
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_session_ends_before_its_role_sees_what_is_absurd(kind):
    sender, receiver = KINDS[kind].routes[0]
    session = session_of(PARTIES[receiver], PARTIES[sender], bounds=JOB)
    read_all(session, frame_of(honest(kind, **ATTACKS[kind])))
    with raises(PeerError, "out-of-bounds"):
        session.receive()


def test_a_cut_layer_has_the_width_of_the_network_of_the_job():
    bounds = MessageBounds.for_lists([ListSizes(n_bits=24, k=2)], cut_width=32)
    bounds.check(honest("ready", width=32))
    for width in (31, 33, 16_384):
        with raises(WireError, "out-of-bounds", sent="ready", name="width", limit=32):
            bounds.check(honest("ready", width=width))
    bounds.check(honest("activations", values=np.zeros((3, 7), np.float32)))  # an embedding has a width of its own


def without_bytes(kind, letter):
    """A message that declares 10^8 of one dimension and 0 of all others, so that no bytes follow."""
    sizes = {**dict.fromkeys(SIZES, 0), letter: 10**8}
    shapes = LAYOUTS[kind].arrays.items()
    return honest(
        kind, **{name: np.zeros([sizes[each] for each in shape.letters], shape.dtypes[0]) for name, shape in shapes}
    )


@pytest.mark.usefixtures("memory_limit")
def test_all_kinds_with_absurd_values_arrive_within_a_memory_limit():
    for kind, name, message in absurd_messages():
        letters = [shape.letters for shape in LAYOUTS[kind].arrays.values()]
        if name in letters:
            continue  # a list of this size cannot be declared without sending it
        for sender, receiver in KINDS[kind].routes:
            session = session_of(PARTIES[receiver], PARTIES[sender], bounds=JOB)
            with suppress(WireError):  # a text that is too long for any header is not even sent
                read_all(session, frame_of(without_bytes(kind, name) if name in SIZES else message))
            assert not taken(session)


def test_rows_and_links_fit_into_one_message():
    sizes = ListSizes(n_bits=1024, k=50, n_fields=3)
    assert sizes.most_queries * 50 * (4 + 4 * 3) <= MAX_FRAME_BYTES
    assert sizes.most_rows * 128 <= MAX_FRAME_BYTES
