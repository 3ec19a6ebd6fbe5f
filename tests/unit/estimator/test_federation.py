"""A saved model predicts the same elsewhere; each party's folder holds its own part and no table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV

from error_fixtures import raises
from fedsim.errors import FileError, InputError, SettingError
from fedsim.estimator import FedSimClassifier, FedSimRegressor
from fedsim.linkage import WeightedField, WeightedSum, get_metric
from fedsim.splitnn.methods import AvgSim
from fedsim.training import boosted_trees
from fedsim_lab.datasets.generated import firms

QUICK: dict[str, Any] = {"members": 1, "k": 4, "epochs": 1, "batch_size": 64, "device": "cpu", "random_state": 0}
PLACE = ["lat", "lon"]


@pytest.fixture(scope="module")
def model(town, flats, price) -> FedSimRegressor:
    return FedSimRegressor([town.rentals], PLACE, sigma=0.1, **QUICK).fit(flats, price)


def test_every_party_has_its_own_folder(model, tmp_path):
    model.save(tmp_path / "model")
    found = sorted(str(path.relative_to(tmp_path / "model")) for path in tmp_path.rglob("*.*") if path.is_file())
    assert found == [
        "coordinator/links.json",
        "primary/features.json",
        "primary/model.json",
        "primary/weights.safetensors",
        "secondary-1/features.json",
        "secondary-1/weights.safetensors",
    ]


def test_a_loaded_model_predicts_the_same(model, town, flats, tmp_path):
    model.save(tmp_path / "model")
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu")
    np.testing.assert_array_equal(again.predict(flats), model.predict(flats))
    assert again.get_params()["k"] == 4
    assert again.history_ == model.history_
    assert again.feature_names_in_.tolist() == flats.columns


def test_trees_beside_the_network_are_saved_and_explained(town, flats, price, tmp_path, monkeypatch):
    monkeypatch.setattr(boosted_trees, "ROUNDS", 15)
    settings = {"method": "stacked", "party_dropout": 0.2, **QUICK}
    model = FedSimRegressor([town.rentals], PLACE, **settings).fit(flats[:300], price[:300])
    trees = model.federation_.trees
    assert trees.stacked.weight < 1
    model.save(tmp_path / "model")
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu")
    found = again.predict(flats[300:310])
    np.testing.assert_array_equal(found, model.predict(flats[300:310]))
    network, _ = replace(model.federation_, trees=None).predict(flats[300:310])
    assert not np.allclose(found, network)
    for one, value in zip(again.explain(flats[300:303]), found, strict=False):
        assert one.average + sum(partner.effect for partner in one.partners) == pytest.approx(value, rel=1e-4)
        assert one.away  # what ``without`` is about, as the model was trained with party dropout


@pytest.mark.parametrize("method", ["solo", "top1sim", "exact", "featuresim"])
@pytest.mark.parametrize("preset", ["modern", "paper"])
def test_every_method_is_rebuilt(town, flats, price, tmp_path, method, preset):
    towns = pl.Series("town", [f"t{row % 30}" for row in range(len(flats))])
    wide = flats.with_columns(towns)
    model = FedSimRegressor([town.rentals], PLACE, method=method, preset=preset, **QUICK).fit(wide, price)
    model.save(tmp_path / "model")
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu")
    np.testing.assert_array_equal(again.predict(wide), model.predict(wide))


@pytest.mark.parametrize("names", [("low", "middle", "high"), (2, 1, 7), (True, False)])
def test_classes_survive(town, flats, price, tmp_path, names):
    labels = np.array(names)[np.arange(len(flats)) % len(names)]
    model = FedSimClassifier([town.rentals], PLACE, **QUICK).fit(flats, labels)
    model.save(tmp_path / "model")
    again = FedSimClassifier.load(tmp_path / "model", [town.rentals], device="cpu")
    np.testing.assert_array_equal(again.predict(flats), model.predict(flats))
    np.testing.assert_array_equal(again.predict_proba(flats), model.predict_proba(flats))
    assert again.federation_.model.target.temperature == model.federation_.model.target.temperature != 1.0
    assert again.classes_.dtype == model.classes_.dtype


def test_metrics_and_methods_that_are_objects_survive(town, flats, price, tmp_path):
    euclid = get_metric("euclidean")
    both = WeightedSum((WeightedField("lat", euclid, 2.0), WeightedField("lon", euclid, 1.0)))
    model = FedSimRegressor([town.rentals], PLACE, metric=both, method=AvgSim(hidden=20), **QUICK).fit(flats, price)
    model.save(tmp_path / "model")
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], method=AvgSim(hidden=20), device="cpu")
    np.testing.assert_array_equal(again.predict(flats), model.predict(flats))
    with raises(SettingError, "custom-method"):
        FedSimRegressor.load(tmp_path / "model", [town.rentals])
    with raises(FileError, "other-configuration") as caught:
        FedSimRegressor.load(tmp_path / "model", [town.rentals], method=AvgSim(hidden=30))
    assert "setting.method.hidden" in caught.value.difference


def test_no_row_of_a_table_is_stored(model, town, flats, tmp_path):
    model.save(tmp_path / "model")
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    rows = [str(value).encode() for value in (*town.rentals["lat"][:50], *flats["lon"][:50])]
    assert not [row for row in rows if row in written]


def test_a_model_is_replaced_whole_and_anything_else_not_at_all(model, tmp_path):
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "letters").mkdir()
    with raises(FileError, "not-a-model"):
        model.save(tmp_path / "letters")


def test_a_disk_that_refuses_leaves_the_earlier_model(model, town, flats, tmp_path, monkeypatch):
    model.save(tmp_path / "model")
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with raises(FileError, "not-writable", reason="No space left on device"):
        model.save(tmp_path / "model")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert len(FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu").predict(flats)) == len(flats)


def test_a_spoilt_or_foreign_folder_is_refused(model, town, tmp_path):
    folder = tmp_path / "model"
    with raises(FileError, "damaged-model"):
        FedSimRegressor.load(folder, [town.rentals])
    model.save(folder)
    with raises(FileError, "other-estimator", estimator="FedSimRegressor"):
        FedSimClassifier.load(folder, [town.rentals])
    (folder / "secondary-1" / "weights.safetensors").write_bytes(b"\0" * 9)
    with raises(FileError, "damaged-model"):
        FedSimRegressor.load(folder, [town.rentals])


def test_another_version_is_refused(model, town, tmp_path):
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "primary" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": "fedsim estimator 0"}))
    with raises(FileError, "other-version", found="fedsim estimator 0"):
        FedSimRegressor.load(tmp_path / "model", [town.rentals])


def test_a_model_without_all_its_facts_is_refused(model, town, tmp_path):
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "primary" / "model.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "seed"}))
    with raises(FileError, "missing-fact", fact="seed"):
        FedSimRegressor.load(tmp_path / "model", [town.rentals])


def test_the_secondaries_must_come_as_they_were(model, town, tmp_path):
    model.save(tmp_path / "model")
    with raises(SettingError, "secondary-count", limit=1):
        FedSimRegressor.load(tmp_path / "model")
    with raises(InputError, "missing-column", column="rent"):
        FedSimRegressor.load(tmp_path / "model", [town.rentals.drop("rent")])


NUMPY: dict[str, Any] = {
    "k": np.int64(4),
    "epochs": np.int64(1),
    "batch_size": np.int32(64),
    "sigma": np.float32(0.5),
    "learning_rate": np.float32(0.01),
    "patience": np.int64(1),
    "validation_fraction": np.float32(0.25),
    "use_identifiers": np.bool_(True),
    "verbose": np.bool_(False),
    "link_on": pd.Index(PLACE),
    "preset": np.str_("modern"),
}


def test_parameters_of_numpy_and_pandas_survive(town, flats, price, tmp_path):
    model = FedSimRegressor([town.rentals], device="cpu", random_state=0, **NUMPY).fit(flats, price)
    model.save(tmp_path / "model")
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu")
    np.testing.assert_array_equal(again.predict(flats), model.predict(flats))
    assert all(model.get_params()[name] is value for name, value in NUMPY.items())
    assert type(again.k) is int
    assert again.link_on == PLACE


def test_the_best_model_of_a_search_is_saved(town, flats, price, tmp_path):
    start = FedSimRegressor([town.rentals], PLACE, **QUICK)
    search = GridSearchCV(start, {"k": np.arange(2, 4)}, cv=2, error_score="raise").fit(flats, price)
    search.best_estimator_.save(tmp_path / "model")
    assert FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu").k in (2, 3)


def test_a_model_from_before_the_match_gate_is_loaded(town, flats, price, tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr("fedsim.splitnn.gates.MatchGate", lambda: None)
        model = FedSimRegressor([town.rentals], PLACE, **QUICK).fit(flats, price)
        model.save(tmp_path / "model")
    assert "match" not in json.loads((tmp_path / "model/primary/model.json").read_text())["config"]["method"]
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu")
    np.testing.assert_array_equal(again.predict(flats[:20]), model.predict(flats[:20]))


def test_matches_of_names_are_found_and_survive_saving(tmp_path):
    names = firms(np.random.default_rng(0), ours=300, theirs=500)
    settings = {**QUICK, "metric": "levenshtein-normalised"}
    model = FedSimRegressor([names.theirs], ["name"], **settings).fit(names.ours, names.ours["staff"].to_numpy())
    (found,) = model.find_matches(names.ours)
    taken = found.taken >= 0
    assert (found.taken[taken] == names.truth[taken]).mean() > 0.7
    model.save(tmp_path / "model")
    (again,) = FedSimRegressor.load(tmp_path / "model", [names.theirs], device="cpu").find_matches(names.ours)
    np.testing.assert_array_equal(again.probability, found.probability)


def test_places_have_no_matches(model, flats):
    assert model.find_matches(flats[:20]) == []


def test_explanations_add_up_and_survive_saving(model, town, flats, tmp_path):
    found = model.explain(flats[:3])
    assert [one.value for one in found] == pytest.approx(model.predict(flats[:3]), rel=1e-5)
    for one in found:
        assert one.average + sum(partner.effect for partner in one.partners) == pytest.approx(one.value)
        assert list(one.columns.values()) == sorted(one.columns.values(), key=abs, reverse=True)
    model.save(tmp_path / "model")
    again = FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu").explain(flats[:3])
    assert list(map(str, again)) == list(map(str, found))
    facts = json.loads((tmp_path / "model/primary/model.json").read_text())
    del facts["typical"]
    (tmp_path / "model/primary/model.json").write_text(json.dumps(facts))
    with raises(FileError, "no-explanations"):
        FedSimRegressor.load(tmp_path / "model", [town.rentals], device="cpu").explain(flats[:3])
