"""Ten thousand mutated frames and encrypted tables change nothing: they are refused, or open what was built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedsim.protocol.messages import KINDS, Role
from fedsim.protocol.session import HANDSHAKE_MESSAGES
from fedsim_lab.faults.hostile_frames import mutate

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))

import targets

TO_SECONDARY, TO_PRIMARY, FILE, PARTS = (bytes([role]) for role in range(4))
FRAMES, LIKELY = 10, 3
SPOKEN = {
    TO_SECONDARY: (Role.PRIMARY, Role.SECONDARY, {"meet", "fetch-table", "evaluate", "finish", "farewell"}),
    TO_PRIMARY: (Role.SECONDARY, Role.PRIMARY, {"table-part", "evaluated", "ready", "done"}),
}


def scripts(receiver: bytes) -> Iterator[bytes]:
    """Ten frames each: half are messages of such a job with odd content, the others are anything."""
    rng, (sender, to, spoken) = np.random.default_rng(7), SPOKEN[receiver]
    kinds = [one.kind for one in KINDS.values() if (sender, to) in one.routes and one not in HANDSHAKE_MESSAGES]
    known = [place for place, kind in enumerate(kinds) if kind in spoken]
    for _ in range(300):
        script = receiver + rng.bytes(1) * (receiver == TO_SECONDARY)
        for _ in range(FRAMES):
            content = bytearray(rng.bytes(int(rng.integers(2, 60))))
            how = int(rng.integers(256))
            if rng.random() < 0.5:
                how, content[0] = 4 * int(rng.choice(known)) + LIKELY, int(rng.integers(1, 4))
            script += bytes([how, len(content)]) + content
        yield script


@pytest.mark.parametrize("receiver", [TO_SECONDARY, TO_PRIMARY], ids=["to the secondary", "to the primary"])
def test_three_thousand_frames_from_a_hostile_party(receiver):
    for script in scripts(receiver):
        targets.direct(script)


def test_three_thousand_changed_files_of_a_table():
    rng, (tensors, facts) = np.random.default_rng(7), targets._table_parts()
    targets.save_tensors(targets.FOLDER / "whole", targets.TABLE_FORMAT, tensors, facts)
    whole = (targets.FOLDER / "whole").read_bytes()
    for _ in range(3_000):
        targets.direct(FILE + mutate(rng, whole))


def test_two_thousand_tables_whose_owner_changed_them():
    rng = np.random.default_rng(7)
    for _ in range(2_000):
        targets.direct(PARTS + rng.bytes(5 * int(rng.integers(1, 5))))
