"""Files that version 0.1 wrote stay readable."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim.linkage.link_files import load_encoded, load_links
from fedsim.linkage.private_linkage import load_linkage_state, load_private_links
from fedsim.types import Scale

FOLDER = Path(__file__).parent


def test_an_encoded_table_of_version_0_1_is_readable():
    table = load_encoded(FOLDER / "encoded_table_1.safetensors")
    assert table.bits.tolist() == [[255, 248]]
    assert (table.n_bits, table.fingerprint) == (13, "ab" * 32)


def test_a_linkage_state_of_version_0_1_is_readable():
    state = load_linkage_state(FOLDER / "linked_list_1.safetensors")
    assert (state.scale, state.sigma, state.tau, state.metric) == (Scale(-2.0, 1.5), 0.5, None, "hamming")
    assert state.order.tolist() == [0]
    assert state.candidates.bits.tolist() == [[255, 248]]


def test_private_links_of_version_0_1_are_readable():
    links = load_private_links(FOLDER / "delivery_1.safetensors")
    assert (links.partner.dtype, links.overall.dtype) == (np.int32, np.float32)
    assert (links.partner.tolist(), links.overall.tolist()) == ([[0]], [[0.25]])


def test_links_of_version_0_1_are_readable():
    links = load_links(FOLDER / "links_1.parquet")
    assert repr(links) == "Links(6 records x 3 partners of 9, euclidean)"
    assert (links.partner[0].tolist(), links.next_distance.shape) == ([8, 2, 6], (6,))
