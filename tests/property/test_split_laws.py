"""Whatever is split, every record lands in exactly one part, and groups never cross."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from fedsim.data.splits import PAPER_PROPORTIONS, group_equal_records, group_matching_records, group_split, random_split
from fedsim.errors import InputError, SettingError
from fedsim.types import Split

seeds = st.integers(0, 2**32 - 1)
shares = np.array(PAPER_PROPORTIONS) / sum(PAPER_PROPORTIONS)


def sizes(split: Split) -> np.ndarray:
    return np.array([len(split.train), len(split.validation), len(split.test)])


def everyone(split: Split) -> list[int]:
    return sorted(np.concatenate([split.train, split.validation, split.test]).tolist())


@given(st.integers(10, 500), seeds)
def test_a_random_split_is_complete_disjoint_and_in_proportion(n_records, seed):
    split = random_split(n_records, np.random.default_rng(seed))
    assert everyone(split) == list(range(n_records))
    assert np.abs(sizes(split) - shares * n_records).max() <= 1


@given(st.lists(st.integers(1, 6), min_size=30, max_size=60), seeds)
def test_groups_never_cross_and_sizes_stay_near(group_sizes, seed):
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(group_sizes)), group_sizes))
    split = group_split(groups, np.random.default_rng(seed))
    parts = [np.unique(groups[rows]) for rows in (split.train, split.validation, split.test)]
    assert everyone(split) == list(range(len(groups)))
    assert sum(map(len, parts)) == len(group_sizes)
    assert np.abs(sizes(split) - shares * len(groups)).max() <= 2 * max(group_sizes)


@given(seeds)
def test_one_seed_gives_one_split(seed):
    first, second = (random_split(50, np.random.default_rng(seed)) for _ in range(2))
    np.testing.assert_array_equal(first.train, second.train)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=30))
def test_records_are_equal_exactly_where_all_their_identifiers_are(records):
    frame = pl.DataFrame(records, schema=["place", "name"], orient="row")
    number = group_equal_records(frame)
    alike = [[number[left] == number[right] for right in range(len(records))] for left in range(len(records))]
    assert alike == [[left == right for right in records] for left in records]


@given(st.lists(st.sampled_from(["a", "A", "b", "B", "c"]), min_size=1, max_size=30))
def test_records_compared_as_equal_are_numbered_in_the_order_they_are_written_in(names):
    written = pl.DataFrame({"name": names})
    number = group_matching_records([written], [written.select(pl.col("name").str.to_lowercase())])
    first = {name.lower(): min(other for other in names if other.lower() == name.lower()) for name in names}
    order = sorted(first.values())
    assert number.tolist() == [order.index(first[name.lower()]) for name in names]
    np.testing.assert_array_equal(group_matching_records([written], [written]), group_equal_records(written))


def test_a_part_of_zero_stays_empty():
    assert sizes(random_split(10, np.random.default_rng(0), parts=(9, 1, 0))).tolist() == [9, 1, 0]


def test_too_few_records_or_groups_are_refused():
    with pytest.raises(InputError, match="3 records cannot be split 7:1:2: no validation record"):
        random_split(3, np.random.default_rng(0))
    with pytest.raises(InputError, match="100 records in 1 groups"):
        group_split(np.zeros(100, dtype=int), np.random.default_rng(0))


@pytest.mark.parametrize("parts", [(7, 1), (0, 1, 2), (7, -1, 2), (float("nan"), 1, 2)])
def test_parts_without_meaning_are_refused(parts):
    with pytest.raises(SettingError, match="three numbers"):
        random_split(10, np.random.default_rng(0), parts=parts)
