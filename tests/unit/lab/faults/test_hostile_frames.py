"""Mutated frames are refused by one kind of error."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import WireError
from fedsim.protocol.messages import KINDS
from fedsim.protocol.transport import PREFIX, Envelope, decode, encode
from fedsim_lab.faults.hostile_frames import mutate, sample_message, seal_frame


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_frame_is_refused_by_one_kind_of_error(kind):
    rng = np.random.default_rng(0)
    frame = encode(Envelope(sample_message(kind, 100)))
    _, length, _, _ = PREFIX.unpack_from(frame)
    header, body = frame[PREFIX.size : PREFIX.size + length], frame[-(-(PREFIX.size + length) // 8) * 8 :]
    assert decode(seal_frame(header, body)).message.kind == kind
    refused = 0
    for _ in range(50):
        for mutation in (mutate(rng, frame), seal_frame(mutate(rng, header), body)):
            try:
                decode(mutation)
            except WireError:
                refused += 1
    assert refused > 50
