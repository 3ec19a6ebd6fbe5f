"""Each party's features are learnt from its training rows and replayed, whatever arrives later."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.data.features import DISPLACEMENT, FeaturePreprocessor, FeatureRules, fit_preprocessor
from fedsim.errors import FileError, InputError, SettingError

CANARY = "Rumpelstiltskin"


def fit(table: Any, **settings: Any) -> FeaturePreprocessor:
    return fit_preprocessor(table, party="primary", **settings)


def test_numbers_have_mean_zero_and_deviation_one_in_the_training_rows():
    frame = pl.DataFrame({"area": [10.0, 20.0, 30.0, 1000.0], "rooms": [1, 2, 4, 9]})
    numbers = fit(frame, rows=np.arange(3)).apply(frame).numbers
    assert numbers.dtype == np.float32
    np.testing.assert_allclose(numbers[:3].mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(numbers[:3].std(axis=0), 1.0, atol=1e-6)


@pytest.mark.parametrize("constant", [0.0, 7.0, 0.1 + 0.2, 1e19])
def test_a_column_constant_in_training_stays_zero(constant: float):
    preparation = fit(pl.DataFrame({"places": [constant] * 5}))
    later = preparation.apply(pl.DataFrame({"places": [constant, 1e9, -1e19, None]}))
    assert not later.numbers.any()


def test_a_nearly_constant_column_stays_bounded():
    preparation = fit(pl.DataFrame({"places": [71.0] * 999 + [71.001]}))
    assert np.abs(preparation.apply(pl.DataFrame({"places": [1e6, -1e6]})).numbers).max() < 32


@pytest.mark.parametrize("size", [9e19, 1e-300])
def test_numbers_of_any_accepted_size_are_standardised(size):
    prepared = fit(pl.DataFrame({"x": [size, -size]})).apply(pl.DataFrame({"x": [size, 0.0]}))
    np.testing.assert_allclose(prepared.numbers, [[1.0], [0.0]])


def test_a_number_that_cannot_be_meant_is_refused_in_training_and_prediction():
    with raises(InputError, "number-too-large", column="x", row=2):
        fit(pl.DataFrame({"x": [1.0, 1e308]}))
    with raises(InputError, "number-too-large", column="x", row=1):
        fit(pl.DataFrame({"x": [1.0, 2.0]})).apply(pl.DataFrame({"x": [-1e308]}))


def test_missing_numbers_become_the_mean_and_say_so_where_training_had_them():
    preparation = fit(pl.DataFrame({"age": [1.0, None, 3.0], "area": [1.0, 2.0, 3.0]}))
    assert preparation.names == ("age", "age is missing", "area")
    later = preparation.apply(pl.DataFrame({"age": [None, 2.0], "area": [float("nan"), 2.0]})).numbers
    np.testing.assert_array_equal(later, [[0, 1, 0], [0, 0, 0]])


def test_a_column_without_any_number_in_training_is_zero():
    preparation = fit(pl.DataFrame({"gone": [None, None]}))
    assert not preparation.apply(pl.DataFrame({"gone": [5.0, None]})).numbers.any()


def test_few_categories_get_a_column_each_and_unseen_ones_none():
    preparation = fit(pl.DataFrame({"town": ["b", "a", "b", "a"]}))
    assert preparation.names == ("town=a", "town=b")
    later = preparation.apply(pl.DataFrame({"town": ["b", "zzz", None]})).numbers
    np.testing.assert_array_equal(later, [[0, 1], [0, 0], [0, 0]])


def test_seldom_and_missing_categories_teach_what_unseen_ones_get():
    preparation = fit(pl.DataFrame({"town": ["a", "a", "once", None, None]}))
    assert preparation.names == ("town=a", "town is missing", "town is other")
    later = preparation.apply(pl.DataFrame({"town": ["a", "zzz", None]})).numbers
    np.testing.assert_array_equal(later, [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


def test_many_categories_become_codes_and_unseen_ones_code_zero():
    towns = [f"t{place:02}" for place in range(20)]
    preparation = fit(pl.DataFrame({"town": [*towns, *towns, None, None]}))
    later = preparation.apply(pl.DataFrame({"town": ["t00", "t19", "zzz", None]}))
    assert later.codes[:, 0].tolist() == [1, 20, 0, 21]
    assert later.cardinalities == (22,)
    assert later.numbers.shape == (4, 0)


def test_a_whole_number_is_the_same_category_with_and_without_decimals():
    preparation = fit(pl.DataFrame({"zip": [7, 7, 8, 8]}), rules=FeatureRules({"zip": "category"}))
    later = preparation.apply(pl.DataFrame({"zip": [7.0, None]}))
    np.testing.assert_array_equal(later.numbers, [[1, 0], [0, 0]])


def test_dates_tell_days_season_and_weekday():
    sold = [date(2020, 1, 6), date(2020, 7, 6), date(2021, 1, 4), None]  # three Mondays
    preparation = fit(pl.DataFrame({"sold": sold}))
    numbers = preparation.apply(pl.DataFrame({"sold": sold})).numbers
    assert [*preparation.names[:3]] == ["sold", "sold is missing", "sold year cos"]
    np.testing.assert_allclose(numbers[0, 4:], numbers[1, 4:], atol=1e-5)
    np.testing.assert_allclose(numbers[0, 2:], numbers[2, 2:], atol=0.05)
    np.testing.assert_array_equal(numbers[3], [0, 1, 0, 0, 0, 0])


def test_the_time_of_day_counts_where_it_is_told():
    moments = pl.DataFrame({"sold": [datetime(2020, 1, 1, 6), datetime(2020, 1, 1, 18)]})
    numbers = fit(moments).apply(moments).numbers
    assert numbers[0, -1] == pytest.approx(1.0)
    assert numbers[1, -1] == pytest.approx(-1.0)


def test_text_is_read_as_what_it_is_declared_to_be():
    rules = FeatureRules({"area": "number", "sold": "date"})
    frame = pl.DataFrame({"area": ["10", " 30.0", ""], "sold": ["2020-01-01", "2020-01-02 12:00:00", None]})
    numbers = fit(frame, rules=rules).apply(frame).numbers
    np.testing.assert_allclose(numbers[:, 0], [-1.0, 1.0, 0.0])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, lambda data: pl.DataFrame(data).to_arrow()])
def test_every_kind_of_frame_gives_the_same_features(make: Any):
    data = {
        "area": [1.5, None, 3.0],
        "rooms": [1, 2, 3],
        "lift": [True, False, True],
        "town": ["a", "b", "a"],
        "sold": [date(2020, 1, 1), date(2021, 1, 1), None],
    }
    expected = fit(pl.DataFrame(data)).apply(pl.DataFrame(data))
    found = fit(make(data)).apply(make(data))
    np.testing.assert_array_equal(found.numbers, expected.numbers)


def test_pandas_categories_and_nullable_columns_are_understood():
    frame = pd.DataFrame(
        {"town": pd.Categorical(["a", "b", "a", "b"]), "rooms": pd.array([1, None, 2, 3], dtype="Int64")}
    )
    assert fit(frame).names == ("town=a", "town=b", "rooms", "rooms is missing")


def test_saving_and_loading_changes_nothing():
    towns = [f"t{place:02}" for place in range(40)] * 2
    data = {"town": towns, "x": [0.1 * row for row in range(80)], "lift": [True] * 80, "kind": ["a", "b"] * 40}
    frame = pl.DataFrame(data | {"sold": [date(2020, 1, 1 + row % 28) for row in range(80)]})
    preparation = fit(frame)
    again = FeaturePreprocessor.from_json(preparation.to_json())
    assert again == preparation
    np.testing.assert_array_equal(again.apply(frame).numbers, preparation.apply(frame).numbers)


def test_columns_of_many_values_are_those_of_the_training_rows():
    frame = pl.DataFrame(
        {"flag": [0, 1, 1], "area": [1.0, 2.0, 3.0], "town": ["a", "a", "b"], "sold": [date(2020, 1, 1)] * 3}
    )
    preparation = fit(frame)
    assert [preparation.names[place] for place in preparation.spread][:2] == ["area", "sold year cos"]
    assert preparation.apply(frame[:1]).spread == preparation.spread


def test_latitude_longitude_and_numeric_identifiers_are_periodic():
    frame = pl.DataFrame({name: [1.0, 2.5, 4.0, None] for name in ("area", "home lat", "home lng", "house_no")})
    preparation = fit(frame, rules=FeatureRules(identifiers=("house_no",)))
    assert [preparation.names[place] for place in preparation.periodic] == ["home lat", "home lng", "house_no"]
    assert preparation.describe() == {"area": "number"} | dict.fromkeys(("home lat", "home lng", "house_no"), "place")
    assert FeaturePreprocessor.from_json(preparation.to_json()).apply(frame).periodic == preparation.periodic


TRIPS = pl.DataFrame(
    {
        "start_lat": [1.30, 1.31, 1.32, None, 95.0],
        "start_lon": [103.8, 103.8, 103.8, 103.8, 103.8],
        "end_lat": [1.30, 1.31, 1.36, 1.30, 1.30],
        "end_lon": [103.81, 103.84, 103.8, 103.8, 103.8],
    }
)


def test_two_places_of_a_record_give_the_distance_and_direction_between_them():
    preparation = fit(TRIPS, rows=np.arange(3))
    (way,) = preparation.displacements
    metres = [1_111.66, 4_446.64, 4_447.80]  # one, four and, to the north, four hundredths of a degree
    scores = preparation.apply(TRIPS).numbers[:, -3:]
    np.testing.assert_allclose(scores[:3, 0], (metres - np.mean(metres)) / np.std(metres), atol=1e-4)
    np.testing.assert_allclose(scores[:3, 1] * way.parts[1].deviation + way.parts[1].mean, [*metres[:2], 0], atol=0.1)
    assert not scores[3:].any()  # a place is missing, and one lies outside the globe


def test_places_that_are_compared_are_one_column_of_an_explanation():
    preparation = fit(TRIPS.with_columns(area=pl.Series([1.0, 2.0, 3.0, 4.0, 5.0])))
    assert sorted(map(len, (numbers for numbers, _ in preparation.places.values()))) == [
        1,
        8,
    ]  # one coordinate has gaps
    assert set(preparation.spread) >= set(range(len(preparation.names) - 3, len(preparation.names)))


def test_the_way_between_two_places_is_described_in_one_row():
    described = fit(TRIPS).describe()
    (way,) = fit(TRIPS).displacements
    assert described.pop(way.names[0]) == DISPLACEMENT
    assert list(described) == TRIPS.columns


def test_displacements_are_stored_and_one_place_has_none():
    preparation = fit(TRIPS)
    assert FeaturePreprocessor.from_json(preparation.to_json()) == preparation
    assert not fit(TRIPS.drop("end_lat")).displacements
    assert "displacements" not in fit(TRIPS.drop("end_lat")).to_json()


def test_a_latitude_without_longitude_is_a_number():
    assert fit(pl.DataFrame({"lat": [1.0, 2.0, 3.0], "late": [1.0, 2.0, 3.0]})).periodic == ()


def test_features_stored_before_periodic_embeddings_have_none():
    stored = fit(pl.DataFrame({"lat": [1.0, 2.0, 3.0], "lon": [4.0, 5.0, 9.0]})).to_json()
    earlier = stored.replace('"many": true,\n   "periodic": true', '"many": true')
    assert earlier != stored
    assert FeaturePreprocessor.from_json(earlier).periodic == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "fedsim features 0"}', '{"format": "fedsim features 1"}'])
def test_a_foreign_file_is_refused(text: str):
    with pytest.raises(FileError):
        FeaturePreprocessor.from_json(text)


FAULTS = {
    "infinite": (pl.DataFrame({"area": [1.0, float("inf")]}), "not-finite"),
    "nested": (pl.DataFrame({"tags": [["a"], ["b"]]}), "wrong-type"),
    "mixed": (pd.DataFrame({"area": [1, CANARY]}), "wrong-type"),
    "twice": (pd.DataFrame([[1, 2]], columns=["a", "a"]), "duplicate-column"),
    "series": (pl.Series([1]), "unknown-table-type"),
    "vector": (np.ones(3), "unknown-table-type"),
    "free text": (pl.DataFrame({"name": [f"{CANARY} {row}" for row in range(50)]}), "free-text"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_party_and_column_and_no_value(fault: str):
    table, code = FAULTS[fault]
    with pytest.raises(InputError) as caught:
        fit(table)
    assert caught.value.code == code
    assert "primary" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_text_where_numbers_are_declared_names_the_row():
    frame = pl.DataFrame({"area": ["12", CANARY]})
    with pytest.raises(InputError) as caught:
        fit(frame, rules=FeatureRules({"area": "number"}))
    assert (caught.value.code, caught.value.column, caught.value.row) == ("not-a-number", "area", 2)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("later", [["x"], [date(2020, 1, 1)]])
def test_another_type_at_prediction_is_refused(later: list[Any]):
    with pytest.raises(InputError, match="column 'area'"):
        fit(pl.DataFrame({"area": [1.0, 2.0]})).apply(pl.DataFrame({"area": later}))


def test_other_columns_at_prediction_are_refused_by_name():
    preparation = fit(pl.DataFrame({"area": [1.0, 2.0], "rooms": [1, 2]}))
    for frame, code, column in (
        (pl.DataFrame({"area": [1.0]}), "missing-column", "rooms"),
        (pl.DataFrame({"area": [1.0], "rooms": [1], "price": [2]}), "unknown-column", "price"),
    ):
        with pytest.raises(InputError) as caught:
            preparation.apply(frame)
        assert (caught.value.code, caught.value.column) == (code, column)


def test_the_label_is_no_feature():
    with pytest.raises(InputError) as caught:
        fit(pl.DataFrame({"price": [1.0]}), label="price")
    assert caught.value.code == "label-in-features"


def test_an_unknown_kind_lists_the_kinds():
    with pytest.raises(SettingError) as caught:
        fit(pl.DataFrame({"area": [1.0]}), rules=FeatureRules({"area": "nmber"}))
    assert caught.value.code == "unknown-kind"


def test_no_value_shows_in_a_repr():
    frame = pl.DataFrame({"name": [CANARY] * 4, "area": [31415.0] * 4})
    preparation = fit(frame)
    shown = repr(preparation) + repr(preparation.encoders) + repr(preparation.apply(frame))
    assert CANARY not in shown
    assert "31415" not in shown


def test_the_typical_record_has_medians_and_the_most_frequent_category():
    frame = pl.DataFrame({"lat": [1.0, 2.0, 9.0, 99.0], "town": ["b", "a", "b", "c"], "lon": [3.0, 4.0, None, 0.0]})
    rows = np.arange(3)
    fitted = fit_preprocessor(frame, party="city", rows=rows)
    expected = fitted.apply(pl.DataFrame({"lat": [2.0], "town": ["b"], "lon": [4.0]}))
    np.testing.assert_array_equal(fitted.typical_record(frame, rows).numbers, expected.numbers)
    assert fitted.places == {"town": ((1, 2), ()), "lat and lon": ((0, 3, 4), ())}
