"""FEDERAL numeric filters against the paper's definition, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import IdentifierColumn, NumericFilter, column_encodings
from reference_distances import hamming_of_ranks

SUBKEY = bytes(32)


def unpacked(filters):
    return np.unpackbits(filters, axis=1)


def test_a_bit_is_one_where_its_pivot_lies_within_the_threshold():
    code, values = NumericFilter(-10, 30, 2.5, bits=256), np.linspace(-10, 30, 41)
    expected = np.abs(values[:, None] - code.pivots(SUBKEY)) <= 2.5
    assert (unpacked(code.encode(IdentifierColumn(values), SUBKEY)) == expected).all()


def test_ranks_are_the_run_of_ones_in_the_order_of_the_pivots():
    code, column = NumericFilter(0, 1, 0.1, bits=128), IdentifierColumn([0, 0.5, 1])
    in_order = unpacked(code.encode(column, SUBKEY))[:, np.argsort(code.pivots(SUBKEY))]
    for (first, last), ones in zip(code.ranks(column, SUBKEY), in_order, strict=True):
        assert np.flatnonzero(ones).tolist() == list(range(first, last))


def test_rank_hamming_broadcasts_to_all_pairs():
    code = NumericFilter(0, 1, 0.1, bits=512)
    ranks = code.ranks(IdentifierColumn(np.linspace(0, 1, 30)), SUBKEY)
    bits = unpacked(code.encode(IdentifierColumn(np.linspace(0, 1, 30)), SUBKEY))
    assert (hamming_of_ranks(ranks[:, None], ranks) == (bits[:, None] != bits).sum(axis=2)).all()


def test_values_at_the_border_have_as_many_ones_as_others():
    code = NumericFilter(0, 100, 10, bits=1 << 16)
    ones = unpacked(code.encode(IdentifierColumn([0, 50, 100]), SUBKEY)).sum(axis=1)
    assert np.allclose(ones / code.bits, 20 / 120, rtol=0.03)


def test_pivots_come_from_the_agreed_range_alone():
    pivots = NumericFilter(5, 6, 0.5, bits=4096).pivots(SUBKEY)
    assert 4.5 <= pivots.min() < 4.51
    assert 6.49 < pivots.max() <= 6.5


def test_filters_larger_than_a_tile_are_the_same(monkeypatch):
    code, column = NumericFilter(0, 1, 0.1, bits=512), IdentifierColumn(np.linspace(0, 1, 50))
    whole = code.encode(column, SUBKEY)
    monkeypatch.setattr(column_encodings, "TILE_BYTES", 512 * 7)
    assert (code.encode(column, SUBKEY) == whole).all()


@pytest.mark.parametrize(
    ("value", "code"),
    [(-0.125, "outside-range"), (100.125, "outside-range"), (float("inf"), "not-finite"), (-1e400, "not-finite")],
)
def test_a_value_outside_the_range_is_named_by_row_and_never_shown(value, code):
    with pytest.raises(InputError) as caught:
        NumericFilter(0, 100, 5).encode(IdentifierColumn([0, value], "size", "secondary"), SUBKEY)
    assert "125" not in str(caught.value)
    assert (caught.value.code, caught.value.table, caught.value.row) == (code, "secondary", 2)


BAD_SETTINGS = [
    {"high": 0},
    {"high": float("nan")},
    {"high": float("inf")},
    {"high": 10**400},
    {"low": "0"},
    {"threshold": 0},
    {"threshold": -1},
    {"threshold": True},
    {"bits": 100},
    {"bits": 0},
    {"bits": 8.0},
    {"bits": True},
    {"bits": 1 << 40},
]


@pytest.mark.parametrize("change", BAD_SETTINGS)
def test_a_setting_outside_its_range_is_refused_by_name(change):
    (name,) = change
    with pytest.raises(SettingError) as caught:
        NumericFilter(**{"low": 0, "high": 100, "threshold": 5, **change})
    assert caught.value.name == name
