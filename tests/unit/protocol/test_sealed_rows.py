"""Rows that the primary cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import PeerError
from fedsim.protocol.roles.coordinator_role import linked_rows
from fedsim.protocol.transport import LinkedRows, derive_seal_key, seal_links, unseal_links
from fedsim.types import Links

DELIVERY = Links(np.array([[4, 2], [4, 0]], np.int32), np.array([[0.5, 0.1], [0.2, 0.2]], np.float32))
ORDER = np.array([9, 8, 7, 6, 5], np.int32)
KEY = derive_seal_key(bytes(32), "rentals")


def links_of(rows):
    return LinkedRows(np.arange(len(rows), dtype=np.int32), rows, np.array([7, 2**64 - 1], np.uint64))


def test_the_secondary_finds_its_own_row_behind_every_number():
    assert linked_rows(DELIVERY, ORDER).tolist() == [5, 7, 5, 9]


def test_what_is_sealed_is_read_with_the_key_alone_and_not_after_a_change():
    closed = seal_links(KEY, links_of(linked_rows(DELIVERY, ORDER)))
    found = unseal_links(KEY, closed)
    assert (found.rows.tolist(), found.numbers.tolist()) == ([5, 7, 5, 9], [0, 1, 2, 3])
    assert found.records.tolist() == [7, 2**64 - 1]
    for damaged in (closed[:-1], closed[:5], np.r_[closed[:-1], closed[-1] ^ 1]):
        with raises(PeerError, "bad-seal"):
            unseal_links(KEY, damaged.astype(np.uint8))
    with pytest.raises(PeerError):
        unseal_links(derive_seal_key(bytes(32), "schools"), closed)


def test_the_same_rows_are_sealed_to_the_same_bytes_and_others_to_others():
    rows = np.arange(50, dtype=np.int32)
    assert seal_links(KEY, links_of(rows)).tobytes() == seal_links(KEY, links_of(rows)).tobytes()
    assert seal_links(KEY, links_of(rows)).tobytes() != seal_links(KEY, links_of(rows[::-1])).tobytes()
