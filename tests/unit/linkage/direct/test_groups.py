"""Groups are disjoint, have at least m rows, and are those of a slow oracle; averages show no value of fewer rows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from error_fixtures import raises
from fedsim.data.features import FeatureRules, fit_preprocessor
from fedsim.errors import SettingError
from fedsim.linkage.direct import CodeTokens, NumberTokens, PlaceTokens, TextTokens, TokenField, TokenSchema
from fedsim.linkage.direct.groups import (
    AVERAGES,
    LEFT_OUT,
    MAX_LOST,
    ROWS,
    average_features,
    group_by_cells,
    group_by_features,
    group_sizes,
)
from fedsim.linkage.encoding.column_encodings import IdentifierColumn
from fedsim.types import Features

AGES = TokenSchema((TokenField(("age",), NumberTokens(width=1.0, levels=7)),))


def leaves_by_definition(cells: list[tuple[int, ...]], m: int) -> dict[tuple[int, int], list[int]]:
    """Split cells, given by the numbers of each row's cells from the narrowest, as the definition says."""
    found: dict[tuple[int, int], list[int]] = {}

    def split(level: int, rows: list[int]) -> None:
        parts = defaultdict(list)
        for row in rows:
            parts[cells[row][level - 1]].append(row)
        kept = [part for part in parts.values() if len(part) >= m]
        if level and kept and sum(map(len, kept)) >= (1 - MAX_LOST) * len(rows):
            for part in kept:
                split(level - 1, part)
        else:
            found[level, cells[rows[0]][level]] = rows

    widest = defaultdict(list)
    for row, of in enumerate(cells):
        widest[of[-1]].append(row)
    for rows in widest.values():
        if len(rows) >= m:
            split(len(cells[0]) - 1, rows)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 130), min_size=1, max_size=80), st.integers(2, 6))
def test_cells_are_split_as_the_definition_says(ages, m):
    (of,) = AGES.row_tokens({"age": ages})
    found = group_by_cells(of.tokens.token.reshape(len(ages), -1), m)
    expected = leaves_by_definition([tuple(age >> level for level in range(7)) for age in ages], m)
    groups = [np.flatnonzero(found.group == one).tolist() for one in range(found.group.max(initial=-1) + 1)]
    assert sorted(groups) == sorted(sorted(rows) for rows in expected.values())
    assert {int(found.level[rows[0]]) for rows in groups} == {level for level, _ in expected}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 90), st.integers(1, 4), st.integers(2, 7), st.integers(0, 10**6))
def test_groups_of_features_cover_all_rows_once_with_m_to_twice_m_in_each(n, d, m, seed):
    columns = np.random.default_rng(seed).normal(size=(n, d)).round(1)
    group = group_by_features(columns, m).group
    if n < m:
        assert (group == LEFT_OUT).all()
        return
    size = np.bincount(group)
    assert size.sum() == n
    assert (m <= size.min()) & (size.max() < 2 * m)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 10**6))
def test_the_order_of_rows_changes_no_average(n, m, seed):
    rng = np.random.default_rng(seed)
    columns, order = rng.integers(0, 4, (n, 2)).astype(np.float64), rng.permutation(n)

    def averages(rows):
        group = group_by_features(columns[rows], m).group
        return sorted(average_features(Features(columns[rows]), [], group, m).numbers.tolist()) if n >= m else []

    assert averages(np.arange(n)) == averages(order)


def test_close_rows_share_a_group():
    columns = np.concatenate([np.random.default_rng(at).normal(10 * at, 0.1, (5, 2)) for at in range(4)])
    np.testing.assert_array_equal(
        group_by_features(columns, 5).group, np.repeat(group_by_features(columns, 5).group[::5], 5)
    )
    assert len(set(group_by_features(columns, 5).group)) == 4


def test_an_average_is_of_at_least_m_present_values_or_missing():
    frame = pl.DataFrame({"rent": [10.0, None, None, 40.0, 50.0, 60.0], "town": ["a", "a", "b", "b", "b", "rare"]})
    fitted = fit_preprocessor(frame, party="rentals", rules=FeatureRules(seldom=2, codes=False))
    group = np.array([0, 0, 0, 1, 1, 1])
    found = average_features(fitted.apply(frame), fitted.gaps, group, 2).numbers
    rent, gap = fitted.names.index("rent"), fitted.names.index("rent is missing")
    assert (found[0, rent], found[0, gap]) == (0.0, 1.0)  # one row has a rent
    assert found[1, rent] == pytest.approx((50.0 - 40.0) / frame["rent"].std(ddof=0))
    assert "town=rare" not in fitted.names


def test_a_distance_between_two_places_is_missing_where_too_few_have_both():
    trips = pl.DataFrame(
        {"from_lat": [1.0, 1.1, 1.2, 1.3], "from_lon": 103.0, "to_lat": [1.5, None, None, 1.7], "to_lon": 103.1}
    )
    fitted = fit_preprocessor(trips, party="taxi")
    found = average_features(fitted.apply(trips), fitted.gaps, np.zeros(4, np.int64), 3).numbers[0]
    assert not found[[at for at, name in enumerate(fitted.names) if " to " in name]].any()
    assert found[fitted.names.index("to_lat is missing")] == 1.0


def test_a_column_of_many_categories_keeps_the_most_frequent():
    frame = pl.DataFrame({"make": [f"m{at}" for at in range(40) for _ in range(2 + at)]})
    fitted = fit_preprocessor(frame, party="cars", rules=FeatureRules(most_one_hot=3, codes=False))
    assert fitted.names == ("make=m37", "make=m38", "make=m39", "make is other")
    assert not fitted.cardinalities


@pytest.mark.parametrize("narrowest", [0, 2])
def test_a_cell_is_listed_once_with_its_middle(narrowest):
    kind = PlaceTokens(metres=100, levels=8, narrowest=narrowest)
    schema = TokenSchema((TokenField(("lat", "lon"), kind),))
    (of,) = schema.row_tokens({"lat": [1.3000, 1.3004, 1.36, 1.3601], "lon": [103.8] * 4})
    grouping = AVERAGES.group([of], Features(np.zeros((4, 1))), 2)
    listing = AVERAGES.list(schema, [of], grouping)
    assert len(listing.group) == listing.tokens[0].n == len(listing.tokens[0].tokens.token) == 2
    middles = kind.middles(listing.tokens[0].tokens.hint)
    assert np.abs(middles[listing.place[[0, 2]]] - [[1.3002, 103.8], [1.36, 103.8]]).max() < 0.005


@pytest.mark.parametrize("level", range(4))
def test_the_middle_of_a_cell_is_the_middle(level):
    kind, ages = NumberTokens(width=1.0), np.arange(-20, 20)
    middle = kind.middle(ages, np.full(40, level))
    np.testing.assert_array_equal(middle, np.floor(ages / 2**level) * 2**level + 2**level // 2)


@pytest.mark.parametrize("narrowest", [0, 1, 3])
def test_the_middle_of_a_listed_cell_does_not_depend_on_the_narrowest_one(narrowest):
    schema = TokenSchema((TokenField(("age",), NumberTokens(width=1.0, levels=7, narrowest=narrowest)),))
    tokens, ages = schema.row_tokens({"age": np.arange(16.0)}), Features(np.arange(16.0)[:, np.newaxis])
    listing = AVERAGES.list(schema, tokens, AVERAGES.group(tokens, ages, 16))
    assert listing.tokens[0].tokens.hint.tolist() == [8]


def test_rows_that_miss_a_cell_are_in_no_group():
    fields = AGES.row_tokens({"age": [5, None, 5, 5]})
    grouping = AVERAGES.group(fields, Features(np.zeros((4, 1))), 3)
    assert grouping.group.tolist() == [0, LEFT_OUT, 0, 0]
    assert AVERAGES.list(AGES, fields, grouping).place.tolist() == [0, LEFT_OUT, 0, 0]


def test_rows_are_listed_by_their_own_tokens_without_those_that_are_in_no_group():
    names = TokenSchema((TokenField(("name",), TextTokens(samples=4)),))
    fields = names.row_tokens({"name": ["ada", "bob", "cleo"]})
    grouping = ROWS.group(fields, Features(np.zeros((3, 1))), 3)
    grouping.group[1] = LEFT_OUT
    listing = ROWS.list(names, fields, grouping)
    assert listing.place.tolist() == [0, LEFT_OUT, 1]
    np.testing.assert_array_equal(
        listing.tokens[0].tokens.token, names.row_tokens({"name": ["ada", "cleo"]})[0].tokens.token
    )


def test_names_and_several_fields_have_no_cells():
    text, code = TokenField(("name",), TextTokens()), TokenField(("code",), CodeTokens())
    AVERAGES.check(TokenSchema((code,)))
    for fields in ((text,), (code, AGES.fields[0])):
        with raises(SettingError, "no-cells"):
            AVERAGES.check(TokenSchema(fields))


def test_codes_are_grouped_by_their_value():
    kind = CodeTokens()
    tokens = kind.row_tokens([IdentifierColumn(["a", "b", "a", "b", "c"], "code")])
    assert len(set(group_by_cells(tokens.token.reshape(5, 1), 2).group[[0, 1, 4]])) == 3


def test_sizes_of_groups_are_those_of_the_groups_themselves():
    ages = np.random.default_rng(0).integers(0, 90, 200)
    (of,) = AGES.row_tokens({"age": ages})
    for sizes in group_sizes(AGES, {"age": ages}):
        found = group_by_cells(of.tokens.token.reshape(len(ages), -1), sizes.m)
        levels = [int(found.level[found.group == group][0]) for group in range(len(found.size))]
        assert (sizes.groups, sizes.rows) == (len(found.size), np.median(found.size))
        assert sizes.covered == np.mean(found.group >= 0)
        assert float(sizes.cell) == 2.0 ** int(np.median(levels))


def test_a_table_of_too_few_rows_has_no_groups():
    assert [(of.groups, of.covered) for of in group_sizes(AGES, {"age": [1, 50]})] == [(0, 0.0)] * 4
