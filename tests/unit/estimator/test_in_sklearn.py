"""The estimators at work inside scikit-learn's own machinery, with secondaries."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from fedsim.data.splits import group_equal_records
from fedsim.estimator import FedSimClassifier, FedSimRegressor
from fedsim.linkage import link

QUICK: dict[str, Any] = {"members": 1, "k": 3, "epochs": 1, "batch_size": 64, "device": "cpu", "random_state": 0}
PLACE = ["lat", "lon"]


def test_cross_validation_works_with_pandas_and_with_polars(town, flats, price):
    model = FedSimRegressor([town.rentals], PLACE, **QUICK)
    ours = cross_val_score(model, flats, price, cv=2, error_score="raise")
    theirs = cross_val_score(model, flats.to_pandas(), price.to_pandas(), cv=2, error_score="raise")
    assert ours.tolist() == theirs.tolist()


def test_groups_of_equal_places_cross_validate(town, flats, price):
    model = FedSimClassifier([town.rentals], PLACE, **QUICK)
    places = group_equal_records(flats.select(PLACE))
    scores = cross_val_score(model, flats, price > price.median(), groups=places, cv=GroupKFold(2), error_score="raise")
    assert len(scores) == 2


def test_a_grid_search_chooses_among_numbers_of_partners(town, flats, price):
    search = GridSearchCV(FedSimRegressor([town.rentals], PLACE, **QUICK), {"k": [2, 4]}, cv=2, error_score="raise")
    search.fit(flats, price)
    assert search.best_params_["k"] in (2, 4)
    assert search.predict(flats[:2]).shape == (2,)


def test_a_pipeline_that_keeps_the_columns_works(town, flats, price):
    older = FunctionTransformer(lambda table: table.with_columns(age=pl.col("age") + 1))
    steps = [("older", older), ("model", FedSimRegressor([town.rentals], PLACE, **QUICK))]
    assert Pipeline(steps).fit(flats, price).predict(flats[:2]).shape == (2,)


def test_identifiers_pass_by_a_scaler_that_would_destroy_the_links(town, flats, price):
    model = FedSimRegressor([town.rentals], PLACE, **QUICK)
    scaler = StandardScaler().set_output(transform="polars")
    with pytest.warns(UserWarning, match="near the values of secondary-1"):
        Pipeline([("scale", scaler), ("model", model)]).fit(flats, price)
    place = flats.select(PLACE)
    with config_context(enable_metadata_routing=True):
        model = model.set_fit_request(identifiers=True).set_predict_request(identifiers=True)
        routed = Pipeline([("scale", scaler), ("model", model)]).fit(flats, price, identifiers=place)
        found = routed.predict(flats[:2], identifiers=place[:2])
    why = routed["model"].explain(routed["scale"].transform(flats[:2]), identifiers=place[:2])
    assert [one.prediction for one in why] == pytest.approx(found.tolist())
    plain = link(place, town.rentals.select(PLACE), metric="great-circle", k=3)
    np.testing.assert_array_equal(routed["model"].links_[0].partner, plain.partner)


def test_a_trained_model_travels_to_another_process(town, flats, price):
    model = FedSimRegressor([town.rentals], PLACE, **QUICK).fit(flats, price)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - joblib does this; our own files never need it
    np.testing.assert_array_equal(again.predict(flats), model.predict(flats))


@pytest.mark.parametrize("kind", [FedSimRegressor, FedSimClassifier])
def test_a_clone_has_equal_parameters_and_nothing_learnt(kind, town, flats, price):
    model = kind([town.rentals], PLACE, **QUICK).fit(flats, price > price.median())
    copy = clone(model)
    assert copy.get_params()["link_on"] == PLACE
    assert copy.get_params()["secondaries"][0].equals(town.rentals)
    assert not hasattr(copy, "federation_")
