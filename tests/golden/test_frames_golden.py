"""The bytes of a fixed message of every kind never change.

Parties of two releases read each other's frames, or say that they cannot. If this test fails, undo the change, or raise
``PROTOCOL`` in the messages and write the new frames here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.protocol.messages import PROTOCOL
from fedsim.protocol.transport import decode, encode
from message_fixtures import SMALL, enveloped, same

GOLDEN = json.loads(Path(__file__).with_name("frames.json").read_text(encoding="utf-8"))


def test_every_kind_of_message_has_its_frame_on_file():
    assert set(GOLDEN["frames"]) == set(SMALL)
    assert GOLDEN["protocol"] == PROTOCOL


@pytest.mark.parametrize("kind", GOLDEN["frames"])
def test_the_frame_of_a_fixed_message_never_changes(kind):
    frame, message = bytes.fromhex(GOLDEN["frames"][kind]), enveloped(SMALL[kind])
    assert encode(message) == frame
    assert same(decode(frame), message)
