"""Whatever is wrong is said in one sentence that names party and column, and shows no value."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    "method": ({"method": "fedsin"}, "method='fedsin' is unknown; did you mean 'fedsim'"),
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
    with pytest.raises(InputError, match="column 'price' of the primary table is the label and a feature"):
        quick(town).fit(town.flats, town.flats["price"])


@pytest.mark.parametrize(
    ("party", "change"),
    [("primary", {"area": [float("inf")]}), ("primary", {"age": [CANARY]}), ("primary", {"storey": [[1]]})],
)
def test_a_bad_feature_names_party_and_column(town, flats, price, party, change):
    ((name, values),) = change.items()
    bad = flats.with_columns(pl.Series(name, values * len(flats)))
    kinds = {name: "number"}
    with pytest.raises(InputError, match=f"{party} table, column '{name}'") as caught:
        quick(town, kinds=kinds).fit(bad, price)
    assert CANARY not in str(caught.value)


def test_a_bad_feature_of_a_secondary_names_it(town, flats, price):
    bad = town.rentals.with_columns(host=pl.Series([f"{CANARY} {row}" for row in range(300)]))
    with pytest.raises(InputError, match="secondary-1 table, column 'host': in 300 of 300") as caught:
        quick(town, secondaries=[bad]).fit(flats, price)
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
    with pytest.raises(InputError, match="primary table, column 'age', row 1 is not a number"):
        model.predict(flats.with_columns(age=pl.lit(CANARY)))


def test_a_table_without_records_is_refused(town, flats, price):
    with pytest.raises(InputError, match="0 records"):
        quick(town).fit(flats[:0], price[:0])


def test_a_refused_training_leaves_the_earlier_model(town, flats, price):
    model = quick(town).fit(flats, price)
    before = model.predict(flats)
    with pytest.raises(FedSimError):
        model.fit(flats, np.full(len(flats), np.nan))
    np.testing.assert_array_equal(model.predict(flats), before)
