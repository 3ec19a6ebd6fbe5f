"""Whatever is wrong is said in one sentence that names party and column, and shows no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedsim.errors import FedSimError, InputError, SettingError
from fedsim.estimator import FedSimClassifier, FedSimRegressor

QUICK: dict[str, Any] = {"k": 5, "epochs": 1, "device": "cpu", "random_state": 0}
PLACE = ["lat", "lon"]
CANARY = "Rumpelstiltskin"


def quick(town: Any, **settings: Any) -> FedSimRegressor:
    return FedSimRegressor(**{"secondaries": [town.rentals], "link_on": PLACE, **QUICK, **settings})


SETTINGS = {
    "k too large": ({"k": 301}, "secondary-1 has 300 records; choose k between 1 and 300"),
    "k zero": ({"k": 0}, "choose k between 1 and 300"),
    "metric": ({"metric": "euclidian"}, "did you mean 'euclidean'"),
    "metrics": ({"metric": ["days", "days"]}, "2 metrics for 1 secondaries"),
    "method": ({"method": "fedsin"}, "method 'fedsin' is unknown; did you mean 'fedsim'"),
    "preset": ({"preset": "papr"}, "did you mean 'paper'"),
    "no columns": ({"link_on": []}, "link_on names no column for secondary-1"),
    "lists": ({"link_on": [["lat"], ["lon"]]}, "2 lists of columns for 1 secondaries"),
    "one table": ({"secondaries": pl.DataFrame({"lat": [1.0]})}, "give a list of tables"),
    "sigma": ({"sigma": -1.0}, "sigma=-1.0"),
    "both noises": ({"sigma": 1.0, "tau": 0.5}, "give one of them"),
    "tau": ({"tau": 2.0}, "tau=2.0"),
    "epochs": ({"epochs": 0}, "epochs=0"),
    "fraction": ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
    "split": ({"validation_split": "by place"}, "validation_split='by place' is unknown"),
    "kind": ({"kinds": {"area": "nmber"}}, "number, category, date"),
    "device": ({"device": "gpu"}, "device 'gpu' is unknown"),
    "k as text": ({"k": "4"}, "k='4'; give a whole number"),
    "k none": ({"k": None}, "k=None; give a whole number"),
    "k true": ({"k": True}, "k=True; give a whole number"),
    "epochs as text": ({"epochs": "3"}, "epochs='3'; give a whole number or None"),
    "epochs in parts": ({"epochs": 1.5}, "epochs=1.5; give a whole number or None"),
    "batch in parts": ({"batch_size": 1.5}, "batch_size=1.5; give a whole number or None"),
    "batch as text": ({"batch_size": "3"}, "batch_size='3'"),
    "rate as text": ({"learning_rate": "x"}, "learning_rate='x'; give a number or None"),
    "fraction none": ({"validation_fraction": None}, "validation_fraction=None; give a number"),
    "tau as text": ({"tau": "x"}, "tau='x'; give a number or None"),
    "sigma as text": ({"sigma": "x"}, "sigma='x'; give a number"),
    "link_on none": ({"link_on": None}, "link_on=None; give a word or a whole number or a list or a mapping"),
    "link_on of floats": ({"link_on": [0.5]}, "link_on holds a float for a column"),
    "link_on twice": ({"link_on": ["lat", "lat"]}, "names column 'lat' twice for secondary-1"),
    "their column twice": ({"link_on": {"lat": "lat", "lon": "lat"}}, "names column 'lat' twice for secondary-1"),
    "kinds list": ({"kinds": ["z"]}, "kinds=<list>; give a mapping or None"),
    "kinds of no column": ({"kinds": {"aera": "number"}}, "column 'aera', which no table has; did you mean 'area'"),
    "kinds of an identifier": ({"kinds": {"lat": "number"}}, "column 'lat', which identifies records"),
    "method none": ({"method": None}, "method is a NoneType"),
    "preset none": ({"preset": None}, "preset=None; give a word"),
    "flag as text": ({"use_identifiers": "no"}, "use_identifiers='no'; give True or False"),
    "random state": ({"random_state": "x"}, "random_state='x'; give a whole number"),
}


@pytest.mark.parametrize("fault", SETTINGS)
def test_a_setting_out_of_range_is_named(town, flats, price, fault):
    settings, said = SETTINGS[fault]
    with pytest.raises(SettingError, match=said.replace("(", r"\(")):
        quick(town, **settings).fit(flats, price)


def test_an_absent_identifier_names_the_party(town, flats, price):
    with pytest.raises(InputError, match="the primary table has no column 'lon' to link on"):
        quick(town).fit(flats.drop("lon"), price)
    with pytest.raises(InputError, match="the secondary-1 table has no column 'lon' to link on"):
        quick(town, secondaries=[town.rentals.drop("lon")]).fit(flats, price)


def test_a_table_without_features_names_the_party(town, flats, price):
    with pytest.raises(InputError, match="the secondary-1 table has no columns beside its identifiers"):
        quick(town, secondaries=[town.rentals.select(PLACE)]).fit(flats, price)
    with pytest.raises(InputError, match="the primary table has no columns beside its identifiers"):
        quick(town).fit(flats.select(PLACE), price)


def test_the_label_among_the_features_is_refused(town):
    with pytest.raises(InputError) as caught:
        quick(town).fit(town.flats, town.flats["price"])
    assert caught.value.code == "label-in-features"


@pytest.mark.parametrize(
    ("party", "change"),
    [("primary", {"area": [float("inf")]}), ("primary", {"age": [CANARY]}), ("primary", {"storey": [[1]]})],
)
def test_a_bad_feature_names_party_and_column(town, flats, price, party, change):
    ((name, values),) = change.items()
    bad = flats.with_columns(pl.Series(name, values * len(flats)))
    kinds = {name: "number"}
    with pytest.raises(InputError, match=party) as caught:
        quick(town, kinds=kinds).fit(bad, price)
    assert caught.value.column == name
    assert CANARY not in str(caught.value)


def test_a_bad_feature_of_a_secondary_names_it(town, flats, price):
    bad = town.rentals.with_columns(host=pl.Series([f"{CANARY} {row}" for row in range(300)]))
    with pytest.raises(InputError, match="secondary-1") as caught:
        quick(town, secondaries=[bad]).fit(flats, price)
    assert (caught.value.code, caught.value.column) == ("free-text", "host")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("label", [float("nan"), float("inf"), None])
def test_a_missing_or_infinite_label_names_its_row(town, flats, price, label):
    bad = [*price[:9], label, *price[10:]]
    with pytest.raises(InputError, match="the label of row 10"):
        quick(town).fit(flats, bad)


def test_labels_that_are_no_numbers_are_refused(town, flats):
    with pytest.raises(InputError, match="numbers") as caught:
        quick(town).fit(flats, [CANARY] * len(flats))
    assert CANARY not in str(caught.value)


def test_labels_of_one_class_are_refused(town, flats):
    with pytest.raises(InputError, match="one class"):
        FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, ["same"] * len(flats))


def test_a_missing_class_names_its_row(town, flats):
    with pytest.raises(InputError, match="the label of row 3"):
        FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, ["a", "b", None, *["a"] * (len(flats) - 3)])


def test_unequal_numbers_of_records_and_labels_are_refused(town, flats, price):
    with pytest.raises(InputError, match="inconsistent numbers of samples"):
        quick(town).fit(flats, price[1:])


def test_other_columns_at_prediction_are_refused(town, flats, price):
    model = quick(town).fit(flats, price)
    for other in (flats.drop("area"), flats.with_columns(more=pl.lit(1)), flats.rename({"area": "size"})):
        with pytest.raises(InputError, match="feature names should match"):
            model.predict(other)


def test_another_type_at_prediction_is_refused(town, flats, price):
    model = quick(town).fit(flats, price)
    with pytest.raises(InputError) as caught:
        model.predict(flats.with_columns(age=pl.lit(CANARY)))
    assert (caught.value.code, caught.value.column, caught.value.row) == ("not-a-number", "age", 1)


def test_a_table_without_records_is_refused(town, flats, price):
    with pytest.raises(InputError, match="0 records"):
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
    with pytest.raises(InputError, match="labels"):
        FedSimClassifier(**QUICK).fit(flats, np.array(["a", 1] * 300, dtype=object))


def test_a_column_that_stands_twice_is_named(town, flats, price):
    frame = flats.to_pandas()
    twice = pd.concat([frame, frame[["area"]]], axis=1)
    with pytest.raises(InputError, match="the primary table has two columns of one name, 'area'"):
        quick(town).fit(twice, price)
    with pytest.raises(InputError, match="the secondary-1 table has two columns of one name, 'area'"):
        quick(town, secondaries=[twice]).fit(flats, price)


@pytest.mark.parametrize("table", ["polars", "pandas"])
def test_a_label_in_a_table_of_its_own_is_found_among_the_features(town, table):
    labels = town.flats.select("price")
    with pytest.raises(InputError) as caught:
        quick(town).fit(town.flats, labels if table == "polars" else labels.to_pandas())
    assert caught.value.code == "label-in-features"


MISSING = {
    "no time": pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02", None] * 200)),
    "NA in text": pd.Series(["a", "b", pd.NA] * 200, dtype="string"),
    "NA in objects": np.array(["a", "b", pd.NA] * 200, dtype=object),
    "NA in flags": pd.Series([True, False, pd.NA] * 200, dtype="boolean"),
    "no time in an array": np.array(["2020-01-01", "2020-01-02", "NaT"] * 200, dtype="datetime64[D]"),
}


@pytest.mark.parametrize("form", MISSING)
def test_whatever_stands_for_a_missing_class_is_refused(flats, form):
    with pytest.raises(InputError, match="the label of row 3 is NaN, missing or infinite"):
        FedSimClassifier(**QUICK).fit(flats, MISSING[form])


def test_a_missing_number_of_pandas_is_refused(flats):
    with pytest.raises(InputError, match="the label of row 3 is NaN, missing or infinite"):
        FedSimRegressor(**QUICK).fit(flats, np.array([1.0, 2.0, pd.NA] * 200, dtype=object))
