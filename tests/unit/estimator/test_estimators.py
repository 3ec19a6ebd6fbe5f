"""Tables in, predictions out: what users of the estimators rely on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from fedsim.estimator import FedSimClassifier, FedSimRegressor
from fedsim.linkage import WeightedField, WeightedSum, diagnose, get_metric, link
from fedsim.privacy.bounds import success_bound
from fedsim.training.boosted_trees import ChosenTrees

QUICK: dict[str, Any] = {"members": 1, "k": 5, "epochs": 2, "batch_size": 64, "device": "cpu", "random_state": 0}
PLACE = ["lat", "lon"]


def quick(town: Any, **settings: Any) -> FedSimRegressor:
    return FedSimRegressor([town.rentals], PLACE, **{**QUICK, **settings})


def test_linked_records_tell_more_than_the_primary_alone(town, flats, price):
    settings = {"epochs": 8, "learning_rate": 5e-3}
    linked, alone = (
        quick(town, method=method, **settings).fit(flats[:450], price[:450]).score(flats[450:], price[450:])
        for method in ("fedsim", "solo")
    )
    assert linked > alone + 0.1
    assert linked > 0.7


@pytest.mark.parametrize("method", ["fedsim", "avgsim", "featuresim", "top1sim", "exact", "solo"])
@pytest.mark.parametrize("preset", ["modern", "paper"])
def test_every_method_trains_and_predicts(town, flats, price, method, preset):
    model = quick(town, method=method, preset=preset, epochs=1).fit(flats[:100], price[:100])
    assert np.isfinite(model.predict(flats[100:110])).all()
    assert len(model.links_) == (method != "solo")


def test_new_records_are_linked_with_the_scale_of_training(town, flats, price):
    model = quick(town).fit(flats[:400], price[:400])
    (linker,) = [party.linker for party in model.federation_.linked]
    (fresh,) = model.links_for(flats[400:])
    plain = link(flats[400:].select(PLACE), town.rentals.select(PLACE), metric="great-circle", k=5, scale=linker.scale)
    np.testing.assert_array_equal(fresh.partner, plain.partner)
    np.testing.assert_array_equal(fresh.similarity, plain.similarity)
    assert linker.scale == model.links_[0].scale


def test_names_link_by_weighted_qgrams_unless_another_metric_is_named(town, flats, price):
    names = [
        pl.Series("name", [f"{word} house {row}" for row, word in enumerate(["ann", "bob"] * (n // 2))])
        for n in (len(flats), len(town.rentals))
    ]
    ours, theirs = flats.with_columns(names[0]), town.rentals.with_columns(names[1])
    model = FedSimRegressor([theirs], {"name": "name"}, **{**QUICK, "epochs": 1}).fit(ours, price)
    assert model.links_[0].metric == "qgram-dice"


def test_one_record_is_predicted_as_among_many(town, flats, price):
    model = quick(town).fit(flats, price)
    np.testing.assert_allclose(model.predict(flats[7:8]), model.predict(flats)[7], rtol=1e-5)


def test_one_seed_gives_one_model_and_another_seed_another(town, flats, price):
    first, again, other = (quick(town, random_state=seed).fit(flats, price).predict(flats) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_predictions_can_leave_the_range_of_the_training_labels():
    area = np.linspace(0, 1, 200)[:, None]
    model = FedSimRegressor(epochs=60, batch_size=32, learning_rate=1e-2, device="cpu", random_state=0)
    model.fit(area[:150], 100 + 10 * area[:150, 0])
    assert model.predict(area[150:]).max() > 107.6


def test_pandas_polars_and_then_arrays_give_the_same_predictions(town, flats, price):
    model = quick(town).fit(flats, price)
    ours = model.predict(flats)
    with pytest.warns(UserWarning, match="feature names"):
        np.testing.assert_array_equal(model.predict(flats.to_numpy()), ours)
    theirs = FedSimRegressor([town.rentals.to_pandas()], PLACE, **QUICK)
    np.testing.assert_array_equal(theirs.fit(flats.to_pandas(), price.to_pandas()).predict(flats.to_pandas()), ours)


def test_identifiers_are_features_only_on_request(town, flats, price):
    without, with_them = (quick(town, use_identifiers=flag).fit(flats, price) for flag in (False, True))
    assert "lat" not in without.federation_.preparation.columns
    assert "lat" in with_them.federation_.preparation.columns
    assert without.n_features_in_ == with_them.n_features_in_ == 5
    assert without.feature_names_in_.tolist() == flats.columns


def test_scales_come_from_the_training_rows_alone(town, flats, price):
    model = quick(town, validation_fraction=0.5).fit(flats, price)
    area = next(one for one in model.federation_.preparation.encoders if one.column == "area")
    assert area.mean != flats["area"].mean()


def test_several_secondaries_with_other_names_and_metrics(town, flats, price):
    names = pl.Series("street", [f"street {row % 40:02}" for row in range(len(flats))])
    shops = pl.DataFrame({"address": [f"Street {row:02}" for row in range(40)], "turnover": np.arange(40.0)})
    model = FedSimRegressor(
        [town.rentals, shops], [PLACE, {"street": "address"}], metric=["great-circle", "qgram-dice"], **QUICK
    )
    model.fit(flats.with_columns(names), price)
    assert [links.metric for links in model.links_] == ["great-circle", "qgram-dice"]
    assert model.predict(flats.with_columns(names)[:3]).shape == (3,)


def test_a_weighted_sum_of_columns_links(town, flats, price):
    euclid = get_metric("euclidean")
    both = WeightedSum((WeightedField("lat", euclid, 2.0), WeightedField("lon", euclid, 1.0)))
    assert quick(town, metric=both).fit(flats, price).links_[0].metric == "weighted-sum"


def test_tau_becomes_noise_that_keeps_the_bound(town, flats, price):
    model = quick(town, tau=0.01, metric="great-circle")
    with pytest.warns(UserWarning, match="tau bounds an attack on whole-number distances"):
        links = model.fit(flats[:200], price[:200]).links_[0]
    assert links.sigma > 0
    assert success_bound(links.sigma, links.scale.deviation) == pytest.approx(0.01)


def test_noise_is_drawn_once_and_predictions_repeat(town, flats, price):
    model = quick(town, sigma=0.5).fit(flats[:200], price[:200])
    np.testing.assert_array_equal(model.predict(flats), model.predict(flats))
    plain = quick(town).fit(flats[:200], price[:200])
    assert (model.links_[0].similarity != plain.links_[0].similarity).all()
    np.testing.assert_array_equal(model.links_[0].partner, plain.links_[0].partner)


def test_validation_by_identifiers_trains(town, flats, price):
    assert quick(town, validation_split="identifiers").fit(flats, price).history_[0]["number"] == 1


def test_records_of_ones_own_choose_the_best_epoch(town, flats, price):
    model = quick(town).fit(flats[:300], price[:300], eval_set=(flats[300:400], price[300:400]))
    figures = model.history_table_
    error = float(np.sqrt(np.mean((model.predict(flats[300:400]) - price[300:400].to_numpy()) ** 2)))
    assert figures["validation_rmse"].min() == pytest.approx(error, rel=1e-4)
    assert len(figures) == 2


def test_trees_learn_validation_records_but_not_an_eval_set(town, flats, price, monkeypatch):
    refitted = []
    monkeypatch.setattr(ChosenTrees, "refit", lambda chosen, *_: refitted.append(chosen) or chosen.model)
    quick(town, method="stacked").fit(flats[:300], price[:300], eval_set=(flats[300:400], price[300:400]))
    assert not refitted
    quick(town, method="stacked").fit(flats[:300], price[:300])
    assert refitted


def test_a_record_of_weight_zero_counts_as_if_it_were_not_there(town, flats, price):
    weights = np.where(np.arange(300) % 3, 2.0, 0.0)
    kept = np.flatnonzero(weights)
    weighted = quick(town).fit(flats[:300], price[:300], sample_weight=weights)
    np.testing.assert_array_equal(weighted.predict(flats), quick(town).fit(flats[kept], price[kept]).predict(flats))


def test_weights_count_in_the_choice_of_the_best_epoch(town, flats, price):
    weights, rest = np.linspace(0.1, 3, 100), slice(300, 400)
    chosen = {"X": flats[rest], "y": price[rest], "sample_weight": weights}
    model = quick(town).fit(flats[:300], price[:300], eval_set=chosen)
    squares = (model.predict(flats[rest]) - price[rest].to_numpy()) ** 2
    assert model.history_table_["validation_rmse"].min() == pytest.approx(np.average(squares, weights=weights) ** 0.5)


def test_patience_ends_training_early(town, flats, price):
    history = quick(town, epochs=50, patience=2, learning_rate=0.05).fit(flats, price).history_
    assert len(history) < 50


@pytest.mark.parametrize("names", [("cheap", "dear"), (False, True), (3, 1), ("a", "b", "c")])
def test_classes_of_any_kind_come_back(town, flats, price, names):
    ranks = np.searchsorted(np.quantile(price, np.linspace(0, 1, len(names) + 1)[1:-1]), price)
    labels = np.array(names)[ranks]
    model = FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, labels)
    chances = model.predict_proba(flats)
    assert model.classes_.tolist() == sorted(names)
    assert set(model.predict(flats)) <= set(names)
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)


def test_a_class_with_a_single_record_still_trains(flats):
    labels = np.array(["usual"] * (len(flats) - 1) + ["rare"])
    model = FedSimClassifier(epochs=1, device="cpu", random_state=0).fit(flats, labels)
    assert model.predict_proba(flats).shape == (len(flats), 2)


def test_gaps_and_unseen_categories_are_predicted(town, flats, price):
    held = flats.with_columns(pl.Series("heating", ["gas", "oil"] * (len(flats) // 2)))
    model = quick(town).fit(held, price)
    odd = held[:2].with_columns(pl.Series("heating", ["wood", None]), pl.Series("age", [None, 3]))
    assert np.isfinite(model.predict(odd)).all()


def test_a_column_constant_in_training_cannot_throw_the_prediction(town, flats, price):
    model = quick(town).fit(flats.with_columns(lifts=pl.lit(1.0)), price)
    usual, odd = (model.predict(flats.with_columns(lifts=pl.lit(value))) for value in (1.0, 1e9))
    np.testing.assert_array_equal(odd, usual)


def test_no_record_shows_in_a_repr(town, flats, price):
    model = quick(town)
    shown = repr(model) + str(model.fit(flats, price).links_) + repr(clone(model).get_params()["secondaries"])
    shown += repr(model.federation_) + model.links_[0]._repr_html_() + repr(diagnose(model.links_[0]))
    assert "table of 300 records x 5 columns" in shown
    assert "secondary-1: 300 records linked by lat, lon" in shown
    assert str(town.rentals["rent"][0]) not in shown
    assert len(shown) < 3_000
    why = model.explain(flats[:1])[0]
    assert (len(repr(why)) < 100, why._repr_html_().count("<svg")) == (True, 1)


@pytest.mark.parametrize("table", ["column", "table"])
def test_flags_of_pandas_come_back_as_flags(flats, price, table):
    labels = pd.Series((price > price.median()).to_list(), dtype="boolean", name="dear")
    model = FedSimClassifier(epochs=1, device="cpu", random_state=0)
    model.fit(flats, labels if table == "column" else labels.to_frame())
    assert model.classes_.dtype == bool
    assert model.predict(flats).dtype == bool


def test_columns_that_pandas_counts_link_by_their_numbers(town, flats, price):
    counted = [frame.to_pandas().set_axis(range(frame.width), axis=1) for frame in (flats, town.rentals)]
    settings = {"metric": "great-circle", **QUICK}
    model = FedSimRegressor([counted[1]], [0, 1], kinds={2: "number"}, **settings).fit(counted[0], price.to_pandas())
    named = FedSimRegressor([town.rentals], PLACE, **settings).fit(flats, price)
    np.testing.assert_array_equal(model.predict(counted[0]), named.predict(flats))


def test_a_secondary_is_prepared_by_the_partners_of_training_records(town, flats, price):
    far = pl.DataFrame({"lat": [80.0], "lon": [0.0], "rooms": [1], "rating": [1.0], "rent": [1e9]})
    more = pl.concat([town.rentals, far.cast(dict(town.rentals.schema))])
    model = FedSimRegressor([more], PLACE, **QUICK).fit(flats, price)
    (rent,) = [one for one in model.federation_.linked[0].preparation.encoders if one.column == "rent"]
    assert rent.mean < 10_000


def test_noise_belongs_to_the_record_and_not_to_its_row(town, flats, price):
    model = quick(town, sigma=0.5).fit(flats, price)
    (linker,) = [party.linker for party in model.federation_.linked]
    turned = linker.link_new(flats.reverse().select(PLACE)).overall[::-1]
    np.testing.assert_array_equal(turned, model.links_[0].similarity)
    np.testing.assert_allclose(model.predict(flats.reverse())[::-1], model.predict(flats), rtol=1e-5)
    np.testing.assert_allclose(model.predict(flats[7:8]), model.predict(flats)[7], rtol=1e-5)
