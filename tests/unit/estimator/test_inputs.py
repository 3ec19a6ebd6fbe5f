"""Whatever is wrong is said in one sentence that names party and column, and shows no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.errors import FedSimError, InputError, SettingError
from fedsim.estimator import FedSimClassifier, FedSimRegressor

QUICK: dict[str, Any] = {"members": 1, "k": 5, "epochs": 1, "device": "cpu", "random_state": 0}
PLACE = ["lat", "lon"]
CANARY = "Rumpelstiltskin"


def quick(town: Any, **settings: Any) -> FedSimRegressor:
    return FedSimRegressor(**{"secondaries": [town.rentals], "link_on": PLACE, **QUICK, **settings})


SETTINGS = [  # settings, code and details of the error
    ({"k": 301}, "k-too-large", {"limit": 300}),
    ({"k": 0}, "out-of-range", {"name": "k", "limit": 300}),
    ({"metric": "euclidian"}, "unknown-metric", {"value": "euclidian"}),
    ({"metric": ["days", "days"]}, "secondary-count", {"name": "metric"}),
    ({"method": "fedsin"}, "unknown-method", {"value": "fedsin"}),
    ({"method": "avgsim", "party_dropout": 0.1}, "needs-every-secondary", {}),
    ({"preset": "papr"}, "unknown-preset", {"value": "papr"}),
    ({"link_on": []}, "no-identifiers", {"party": "secondary-1"}),
    ({"link_on": [["lat"], ["lon"]]}, "secondary-count", {"name": "link_on"}),
    ({"secondaries": pl.DataFrame({"lat": [1.0]})}, "not-a-list", {}),
    ({"sigma": -1.0}, "out-of-range", {"name": "sigma", "value": -1.0}),
    ({"sigma": 1.0, "tau": 0.5}, "two-noises", {}),
    ({"tau": 2.0}, "bad-tau", {}),
    ({"epochs": 0}, "out-of-range", {"name": "epochs", "value": 0}),
    ({"validation_fraction": 1.0}, "out-of-range", {"name": "validation_fraction", "value": 1.0}),
    ({"validation_split": "by place"}, "unknown-validation-split", {"value": "by place"}),
    ({"kinds": {"area": "nmber"}}, "unknown-kind", {"column": "area"}),
    ({"device": "gpu"}, "unknown-device", {"value": "gpu"}),
    *(
        ({name: value}, "invalid-type", {"name": name})
        for name, value in [
            ("k", "4"),
            ("k", None),
            ("k", True),
            ("epochs", "3"),
            ("epochs", 1.5),
            ("batch_size", 1.5),
            ("batch_size", "3"),
            ("learning_rate", "x"),
            ("validation_fraction", None),
            ("tau", "x"),
            ("sigma", "x"),
            ("link_on", None),
            ("kinds", ["z"]),
            ("method", None),
            ("preset", None),
            ("use_identifiers", "no"),
            ("random_state", "x"),
        ]
    ),
    ({"link_on": [0.5]}, "invalid-column-name", {}),
    ({"link_on": ["lat", "lat"]}, "column-named-twice", {"column": "lat", "party": "secondary-1"}),
    ({"link_on": {"lat": "lat", "lon": "lat"}}, "column-named-twice", {"column": "lat", "party": "secondary-1"}),
    ({"kinds": {"aera": "number"}}, "unknown-column", {"column": "aera"}),
    ({"kinds": {"lat": "number"}}, "column-is-identifier", {"column": "lat"}),
]


@pytest.mark.parametrize(
    ("settings", "code", "details"), SETTINGS, ids=[str(list(case[0].items())) for case in SETTINGS]
)
def test_a_setting_out_of_range_is_named(town, flats, price, settings, code, details):
    with raises(SettingError, code, **details):
        quick(town, **settings).fit(flats, price)


def test_an_absent_identifier_names_the_party(town, flats, price):
    with raises(InputError, "missing-column", party="primary", column="lon"):
        quick(town).fit(flats.drop("lon"), price)
    with raises(InputError, "missing-column", party="secondary-1", column="lon"):
        quick(town, secondaries=[town.rentals.drop("lon")]).fit(flats, price)


def test_a_table_without_features_names_the_party(town, flats, price):
    with raises(InputError, "no-features", party="secondary-1"):
        quick(town, secondaries=[town.rentals.select(PLACE)]).fit(flats, price)
    with raises(InputError, "no-features", party="primary"):
        quick(town).fit(flats.select(PLACE), price)


def test_the_label_among_the_features_is_refused(town):
    with raises(InputError, "label-in-features"):
        quick(town).fit(town.flats, town.flats["price"])


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("area", float("inf"), "not-finite"),
        ("area", 1e308, "number-too-large"),
        ("age", CANARY, "not-a-number"),
        ("storey", [1], "wrong-type"),
    ],
)
def test_a_bad_feature_names_party_and_column(town, flats, price, name, value, code):
    bad = flats.with_columns(pl.Series(name, [value] * len(flats)))
    with raises(InputError, code, table="primary", column=name) as caught:
        quick(town, kinds={name: "number"}).fit(bad, price)
    assert CANARY not in str(caught.value)


def test_a_bad_feature_of_a_secondary_names_it(town, flats, price):
    bad = town.rentals.with_columns(host=pl.Series([f"{CANARY} {row}" for row in range(300)]))
    with raises(InputError, "free-text", party="secondary-1", column="host") as caught:
        quick(town, secondaries=[bad]).fit(flats, price)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("label", [float("nan"), float("inf"), None])
def test_a_missing_or_infinite_label_names_its_row(town, flats, price, label):
    bad = [*price[:9], label, *price[10:]]
    with raises(InputError, "label-missing", row=10):
        quick(town).fit(flats, bad)


def test_the_labels_column_in_a_secondary_is_no_feature(town, flats, price, tmp_path):
    twin = town.rentals.with_columns(price=town.rentals["rent"] * 2)
    labels = pl.Series("price", price)
    with pytest.warns(UserWarning, match="'price' of secondary-1"):
        model = quick(town, secondaries=[twin]).fit(flats, labels)
    same = quick(town).fit(flats, labels)
    np.testing.assert_array_equal(model.predict(flats), same.predict(flats))
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", [twin])
    np.testing.assert_array_equal(model.predict(flats), loaded.predict(flats))


def test_a_label_that_cannot_be_meant_is_refused(town, flats, price):
    with raises(InputError, "label-too-large"):
        quick(town).fit(flats, [*price[:9], 1e100, *price[10:]])


def test_labels_that_are_no_numbers_are_refused(town, flats):
    with raises(InputError, "labels-not-numbers") as caught:
        quick(town).fit(flats, [CANARY] * len(flats))
    assert CANARY not in str(caught.value)


def test_labels_of_one_class_are_refused(town, flats):
    with raises(InputError, "one-class"):
        FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, ["same"] * len(flats))


def test_a_missing_class_names_its_row(town, flats):
    with raises(InputError, "label-missing", row=3):
        FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, ["a", "b", None, *["a"] * (len(flats) - 3)])


def test_unequal_numbers_of_records_and_labels_are_refused(town, flats, price):
    with pytest.raises(InputError, match="inconsistent numbers of samples"):  # scikit-learn's words, as its checks ask
        quick(town).fit(flats, price[1:])


@pytest.mark.parametrize(
    ("weights", "code"),
    [
        (np.ones(3), "weight-count"),
        (np.zeros(600), "invalid-weight"),
        (-np.ones(600), "invalid-weight"),
        ([float("nan")] * 600, "invalid-weight"),
        ([CANARY] * 600, "weight-not-a-number"),
    ],
)
def test_weights_that_cannot_be_used_are_refused_and_not_shown(town, flats, price, weights, code):
    with raises(InputError, code) as caught:
        quick(town).fit(flats, price, sample_weight=weights)
    assert CANARY not in str(caught.value)


def test_records_that_choose_the_best_epoch_need_labels_and_the_identifiers_that_x_has(town, flats, price):
    with raises(InputError, "invalid-eval-set"):
        quick(town).fit(flats, price, eval_set=flats)
    with raises(InputError, "eval-set-without-identifiers"):
        quick(town).fit(flats, price, identifiers=flats.select(PLACE), eval_set=(flats, price))


def test_other_columns_at_prediction_are_refused(town, flats, price):
    model = quick(town).fit(flats, price)
    for other in (flats.drop("area"), flats.with_columns(more=pl.lit(1)), flats.rename({"area": "size"})):
        with pytest.raises(InputError, match="feature names should match"):
            model.predict(other)


def test_another_type_at_prediction_is_refused(town, flats, price):
    model = quick(town).fit(flats, price)
    with raises(InputError, "not-a-number", column="age", row=1):
        model.predict(flats.with_columns(age=pl.lit(CANARY)))


def test_a_table_without_records_is_refused(town, flats, price):
    with raises(InputError, "empty-table"):
        quick(town).fit(flats[:0], price[:0])


def test_a_refused_training_leaves_the_earlier_model(town, flats, price):
    model = quick(town).fit(flats, price)
    before = model.predict(flats)
    with pytest.raises(FedSimError):
        model.fit(flats.select("lat", "lon", "area"), price[1:])
    with pytest.raises(FedSimError):
        model.set_params(k=301).fit(flats.drop("age").to_numpy(), price)
    assert (model.n_features_in_, model.feature_names_in_.tolist()) == (5, flats.columns)
    np.testing.assert_array_equal(model.predict(flats), before)


def test_a_refused_training_of_a_classifier_keeps_its_classes(town, flats, price):
    model = FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, price > price.median())
    with pytest.raises(SettingError):
        model.set_params(k=301).fit(flats, ["a", "b", "c"] * 200)
    assert model.classes_.tolist() == [False, True]


@pytest.mark.parametrize("kind", [FedSimRegressor, FedSimClassifier])
def test_complex_labels_are_refused_and_not_shown(town, flats, price, kind):
    with pytest.raises(InputError, match="Complex data not supported") as caught:
        kind([town.rentals], PLACE, **QUICK).fit(flats, price.to_numpy() + 1j)
    assert str(price[0]) not in str(caught.value).replace("e+05", "")
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    "table", [[1234.5, 2.0], np.float64(1234.5), np.array([[np.inf, 1234.5]]), [[{}], [1234.5, 2]]]
)
def test_no_value_of_an_odd_table_is_shown(table):
    with pytest.raises(InputError) as caught:
        FedSimRegressor(**QUICK).fit(table, [1.0, 2.0])
    assert "1234" not in str(caught.value)


def test_labels_of_several_types_are_refused(town, flats):
    with raises(InputError, "sklearn-check"):
        FedSimClassifier(**QUICK).fit(flats, np.array(["a", 1] * 300, dtype=object))


def test_a_column_that_stands_twice_is_named(town, flats, price):
    frame = flats.to_pandas()
    twice = pd.concat([frame, frame[["area"]]], axis=1)
    with raises(InputError, "duplicate-column", party="primary", column="area"):
        quick(town).fit(twice, price)
    with raises(InputError, "duplicate-column", party="secondary-1", column="area"):
        quick(town, secondaries=[twice]).fit(flats, price)


@pytest.mark.parametrize("table", ["polars", "pandas"])
def test_a_label_in_a_table_of_its_own_is_found_among_the_features(town, table):
    labels = town.flats.select("price")
    with raises(InputError, "label-in-features"):
        quick(town).fit(town.flats, labels if table == "polars" else labels.to_pandas())


MISSING = {
    "no time": pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02", None] * 200)),
    "NA in text": pd.Series(["a", "b", pd.NA] * 200, dtype="string"),
    "NA in objects": np.array(["a", "b", pd.NA] * 200, dtype=object),
    "NA in flags": pd.Series([True, False, pd.NA] * 200, dtype="boolean"),
    "no time in an array": np.array(["2020-01-01", "2020-01-02", "NaT"] * 200, dtype="datetime64[D]"),
}


@pytest.mark.parametrize("form", MISSING)
def test_whatever_stands_for_a_missing_class_is_refused(flats, form):
    with raises(InputError, "label-missing", row=3):
        FedSimClassifier(**QUICK).fit(flats, MISSING[form])


def test_a_missing_number_of_pandas_is_refused(flats):
    with raises(InputError, "label-missing", row=3):
        FedSimRegressor(**QUICK).fit(flats, np.array([1.0, 2.0, pd.NA] * 200, dtype=object))
