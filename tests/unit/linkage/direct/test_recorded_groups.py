"""Groups for life: whatever comes, goes or changes, no difference of two releases shows fewer than m rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.linkage.direct.groups import GROUPS_FORMAT, LEFT_OUT, RecordedGroups, group_by_features
from fedsim.storage.tensor_file import save_tensors

M = 3


def assign(known, rows, identities=None):
    rows = np.asarray(rows)

    def group(places):
        return group_by_features(rows[places, np.newaxis].astype(np.float64), M)

    return known.assign(rows, rows if identities is None else np.asarray(identities), group)


def released(rows, grouping):
    """The sets of rows behind the averages."""
    return {frozenset(np.asarray(rows)[grouping.group == one].tolist()) for one in set(grouping.group) - {LEFT_OUT}}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sets(st.integers(0, 30), max_size=25), min_size=1, max_size=5))
def test_two_groups_of_any_two_releases_are_equal_or_disjoint(tables):
    known, shown = RecordedGroups.empty(), set()
    for table in tables:
        grouping, known = assign(known, sorted(table))
        shown |= released(sorted(table), grouping)
    assert all(len(one) >= M for one in shown)
    assert all(not one & other for one in shown for other in shown if one != other)


def test_the_same_table_in_another_order_has_the_same_groups():
    rows = np.arange(20)
    first, known = assign(RecordedGroups.empty(), rows)
    again, same = assign(known, rows[::-1])
    np.testing.assert_array_equal(again.group[::-1], first.group)
    assert same is known


def test_a_row_that_goes_takes_its_group_along_until_it_returns():
    rows = np.arange(9)
    first, known = assign(RecordedGroups.empty(), rows)
    fewer, known = assign(known, rows[1:])
    assert (fewer.group == LEFT_OUT).sum() == M - 1
    assert released(rows[1:], fewer) < released(rows, first)
    again, _ = assign(known, rows)
    assert released(rows, again) == released(rows, first)


def test_new_rows_are_grouped_among_themselves_once_they_are_enough():
    rows = np.arange(6)
    first, known = assign(RecordedGroups.empty(), rows)
    few, known = assign(known, np.arange(8))
    assert few.group[6:].tolist() == [LEFT_OUT] * 2
    more, _ = assign(known, np.arange(9))
    assert released(np.arange(9), more) == released(rows, first) | {frozenset({6, 7, 8})}


def test_a_row_whose_cells_changed_is_left_out():
    names = np.arange(9)
    _, known = assign(RecordedGroups.empty(), names)
    found, _ = assign(known, np.where(names == 4, 100, names), names)
    assert found.group[4] == LEFT_OUT
    assert (found.group == LEFT_OUT).sum() == M


def test_equal_rows_count_by_themselves():
    found, known = assign(RecordedGroups.empty(), np.zeros(M, np.int64))
    assert released(range(M), found) == {frozenset(range(M))}
    assert not released(range(M - 1), assign(known, np.zeros(M - 1, np.int64))[0])


def test_a_record_is_read_as_it_was_written(tmp_path):
    _, known = assign(RecordedGroups.empty(), np.arange(7))
    known.save(tmp_path / "groups")
    again = RecordedGroups.load(tmp_path / "groups")
    assert assign(again, np.arange(7))[1] is again
    assert again.grouping.level.tolist() == known.grouping.level.tolist()


def test_a_file_that_lacks_something_is_refused(tmp_path):
    save_tensors(tmp_path / "groups", GROUPS_FORMAT, {"rows": np.zeros(1)}, {})
    with raises(FileError, "damaged-file"):
        RecordedGroups.load(tmp_path / "groups")


@pytest.mark.parametrize("fresh", [False, True])
def test_groups_drawn_anew_show_the_row_that_came(fresh):
    """Without the record an attacker subtracts two averages; with it nothing is left to subtract."""
    _, known = assign(RecordedGroups.empty(), np.arange(M))
    grouping, _ = assign(RecordedGroups.empty() if fresh else known, np.arange(M + 1))
    shown = released(range(M + 1), grouping)
    assert any(len(one ^ set(range(M))) == 1 for one in shown) is fresh
