"""Trees as arrays predict what scikit-learn predicts, and survive a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from fedsim.splitnn import Features
from fedsim.splitnn.party_model import CheckpointStore
from fedsim.training import PrimaryData, TaskType, boosted_trees
from fedsim.training.boosted_trees import (
    EmbeddedPartners,
    PartnerPool,
    StackedTrees,
    TreeColumns,
    TreeInputs,
    fit_trees,
)
from fedsim.training.data import classification_metrics
from fedsim.types import Links, Split

N = 400
SPLIT = Split(np.arange(250), np.arange(250, 320), np.arange(320, N))


def records(task: TaskType, n_classes: int = 0) -> PrimaryData:
    """Numbers with gaps and codes, some of which no training row has."""
    rng = np.random.default_rng(1)
    numbers, codes = rng.normal(size=(N, 2)).astype(np.float32), rng.integers(0, 9, (N, 1))
    codes[SPLIT.train] %= 7
    signal = numbers[:, 0] + (codes[:, 0] % 3) + 0.1 * rng.normal(size=N)
    numbers[::7, 1] = np.nan
    labels = signal if not n_classes else np.digitize(signal, np.quantile(signal, np.arange(1, n_classes) / n_classes))
    return PrimaryData(Features(numbers, codes, (9,)), labels, task)


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_arrays_predict_what_scikit_learn_predicts(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = HistGradientBoostingClassifier if n_classes else HistGradientBoostingRegressor
    fitted = []
    fit = kind.fit
    monkeypatch.setattr(kind, "fit", lambda self, *args, **more: fitted.append(self) or fit(self, *args, **more))
    data = records(TaskType.CLASSES if n_classes else TaskType.NUMBERS, n_classes)
    monkeypatch.setattr(boosted_trees, "FITS", 1)
    found = fit_trees(data, SPLIT, seed=0, settings=[(0.1, 15)], rounds=30).model
    codes = np.where(data.features.codes < 7, data.features.codes, np.nan)  # codes that no training row has
    staged = fitted[0].staged_predict_proba if n_classes else fitted[0].staged_predict
    expected = list(staged(np.hstack([codes, data.features.numbers])))[found.rounds - 1]
    np.testing.assert_allclose(found.predict(data.features), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_classes", [0, 3])
def test_several_fits_predict_their_mean(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = records(TaskType.CLASSES if n_classes else TaskType.NUMBERS, n_classes)
    found = fit_trees(data, SPLIT, seed=0, settings=[(0.1, 15)], rounds=5).model
    singles, fit = [], boosted_trees._fit
    monkeypatch.setattr(boosted_trees, "_fit", lambda *args: singles.append(fit(*args)) or singles[-1])
    fit_trees(data, SPLIT, seed=0, settings=[(0.1, 15)], rounds=5)
    columns = np.hstack([np.where(data.features.codes < 7, data.features.codes, np.nan), data.features.numbers])
    each = np.array([one.trees.raw(columns) for one in singles])
    assert len(each) == boosted_trees.FITS
    assert not np.array_equal(each[0], each[1])
    np.testing.assert_allclose(found.trees.raw(columns), each.mean(axis=0), rtol=1e-12, atol=1e-14)


def test_trees_survive_a_file(tmp_path: Path) -> None:
    data = records(TaskType.NUMBERS)
    data.features.numbers[::7, 1] = 0.5
    data.features.numbers[:40, 1] = np.nan  # one value or none: a threshold that parts them is infinite
    data = replace(data, labels=data.labels + 5 * np.isnan(data.features.numbers[:, 1]))
    found = StackedTrees(fit_trees(data, SPLIT, seed=0, rounds=10).model, 0.5, False)
    store = CheckpointStore(tmp_path, {})
    store.save(0, *found.state())
    again = StackedTrees.from_state(*store.load(0))
    np.testing.assert_array_equal(again.model.predict(data.features), found.model.predict(data.features))


def test_records_are_predicted_alike_in_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    data = records(TaskType.NUMBERS)
    found = fit_trees(data, SPLIT, seed=0, rounds=5).model
    whole = found.predict(data.features)
    monkeypatch.setattr(boosted_trees, "PREDICTION_PAIRS", 7 * len(found.trees.root))
    np.testing.assert_array_equal(found.predict(data.features), whole)
    assert found.predict(data.features.take(np.arange(0))).shape == (0,)


def test_records_of_more_weight_count_more() -> None:
    data, heavy = records(TaskType.NUMBERS), np.arange(N) % 2 == 0
    data = replace(data, labels=np.where(heavy, 5.0, 0.0), features=Features(np.zeros((N, 1)), np.zeros((N, 0), int)))
    found = fit_trees(replace(data, weights=np.where(heavy, 3.0, 1.0)), SPLIT, seed=0, rounds=3).model
    assert found.predict(data.features)[0] == pytest.approx(3.75, abs=0.05)


def embedded(n: int = N) -> EmbeddedPartners:
    rng = np.random.default_rng(3)
    similarity = np.sort(rng.normal(size=(n, 4)))[:, ::-1]
    return EmbeddedPartners(
        rng.normal(size=(90, 24)).astype(np.float32), Links(rng.integers(0, 90, (n, 4)), similarity)
    )


def test_partners_are_pooled_as_a_loop_over_records_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "POOLED_RECORDS", 7)
    partners = embedded(30)
    pool = PartnerPool.fit(partners.rows)
    plain = (partners.rows - pool.centre) @ pool.directions
    for found, partner, similarity in zip(
        pool.pool(partners), partners.neighbours.partner, partners.neighbours.overall, strict=True
    ):
        weight = np.exp(similarity) / np.exp(similarity).sum()
        mean = sum(share * plain[row] for share, row in zip(weight, partner, strict=True))
        expected = [similarity.max(), similarity.mean(), *mean, *plain[partner[similarity.argmax()]]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("helps", [True, False])
def test_trees_see_partners_where_these_help(helps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "ROUNDS", 30)
    data, partners = records(TaskType.NUMBERS), embedded()
    if not helps:
        partners = EmbeddedPartners(0 * partners.rows, Links(partners.neighbours.partner, np.zeros((N, 4))))
    signal = 4 * PartnerPool.fit(partners.rows).pool(partners)[:, -16]
    data = replace(data, labels=data.labels + signal)
    network = np.zeros(len(SPLIT.validation)), None
    inputs = TreeInputs(np.zeros((N, 0), np.float32), [partners], dropout=0.2 * helps)
    stacked = StackedTrees.fit(data, SPLIT, network, seed=0, log=False, inputs=inputs).final
    assert len(stacked.pools) == helps
    again, rows = StackedTrees.from_state(*stacked.state()), SPLIT.test
    found = [
        again.combine(np.zeros(len(rows)), None, data.features.take(rows), again.columns(seen).take(rows))[0]
        for seen in (inputs, replace(inputs, lists=[None]))
    ]
    assert np.isfinite(found[1]).all()
    errors = [np.square(values - data.labels[rows]).mean() for values in found]
    assert errors[0] < 0.7 * errors[1] if helps else errors[0] == errors[1]


def test_trees_with_and_without_partners_are_averaged_where_that_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "ROUNDS", 30)
    data, partners = records(TaskType.NUMBERS), embedded()
    codes = np.hstack([data.features.codes, np.arange(N)[:, None] % 300])  # the second as a number, after all others
    data = replace(data, features=replace(data.features, codes=codes, cardinalities=(9, 300)))
    data = replace(data, labels=data.labels + codes[:, 1] / 100)
    fitted, fit = [], boosted_trees._fit_seeing
    monkeypatch.setattr(boosted_trees, "_fit_seeing", lambda *args: fitted.append(fit(*args)) or fitted[-1])
    rows, inputs = SPLIT.validation, TreeInputs(np.zeros((N, 0), np.float32), [partners])
    StackedTrees.fit(data, SPLIT, (np.zeros(len(rows)), None), seed=0, log=False, inputs=inputs)
    mean = (fitted[0].trees + fitted[1].trees) / 2
    data.labels[rows] = mean  # which only the mean of both predicts
    both = StackedTrees.fit(data, SPLIT, (np.zeros(len(rows)), None), seed=0, log=False, inputs=inputs)
    stacked = both.chosen
    found = stacked.model.predict(stacked.columns(inputs.take(rows)).beside(data.features.take(rows)))
    assert len(stacked.pools) == 1
    assert stacked.model.rounds == sum(one.model.rounds for one in fitted[2:])
    expected = (fitted[2].trees + fitted[3].trees) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    own, seeing = fitted[2].refit(), fitted[3].refit()
    refitted = boosted_trees._move_columns(own, fitted[2].validation, fitted[3].validation), seeing
    expected = np.mean([model.predict(fitted[3].validation) for model in refitted], axis=0)
    np.testing.assert_allclose(both.final.model.predict(fitted[3].validation), expected, rtol=1e-9)


@pytest.mark.parametrize("log", [False, True])
def test_trees_beside_a_network_are_never_worse_than_it_on_the_validation_records(log: bool) -> None:
    data, rows = records(TaskType.NUMBERS), SPLIT.validation
    labels = np.exp(data.labels) if log else data.labels
    network = (labels * np.random.default_rng(2).uniform(0.5, 1.5, N))[rows]
    intervals = np.sort(np.column_stack([0.9 * network, 1.1 * network]), axis=1)
    stacked = StackedTrees.fit(replace(data, labels=labels), SPLIT, (network, intervals), seed=0, log=log).chosen
    again = StackedTrees.from_state(*stacked.state())
    inputs = network, intervals, data.features.take(rows), TreeColumns.none(len(rows))
    found, ends = again.combine(*inputs)
    np.testing.assert_array_equal(found, stacked.combine(*inputs)[0])
    scale = np.log if log else np.asarray
    errors = [np.square(scale(each) - scale(labels[rows])).mean() for each in (found, network)]
    assert errors[0] <= errors[1]
    assert ((ends[:, 0] <= labels[rows]) & (labels[rows] <= ends[:, 1])).mean() == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_what_an_overconfident_network_and_trees_say_together_is_calibrated(n_classes: int) -> None:
    data, rng = records(TaskType.CLASSES, n_classes), np.random.default_rng(2)
    labels = np.where(rng.random(N) < 0.4, rng.integers(0, n_classes, N), data.labels)
    labels[SPLIT.train] = data.labels[SPLIT.train]  # only the training records are that clear
    sure = np.where(data.labels[:, None] == np.arange(n_classes), 0.999, 0.001 / (n_classes - 1))
    data = replace(data, labels=labels)
    stacked = StackedTrees.fit(data, SPLIT, (sure[SPLIT.validation], None), seed=0, log=False).final
    assert stacked.temperature > 1.2
    plain, again = replace(stacked, temperature=1.0), StackedTrees.from_state(*stacked.state())
    rows = SPLIT.test
    before, after = (
        classification_metrics(
            one.combine(sure[rows], None, data.features.take(rows), TreeColumns.none(len(rows)))[0], labels[rows]
        )
        for one in (plain, again)
    )
    assert after["log_loss"] < before["log_loss"]
    assert after["accuracy"] == before["accuracy"]
    tensors, facts = stacked.state()
    earlier = StackedTrees.from_state(tensors, {name: one for name, one in facts.items() if name != "temperature"})
    assert earlier.temperature == 1.0


@pytest.mark.parametrize("n_classes", [0, 3])
def test_what_was_chosen_is_fitted_again_to_training_and_validation_rows(
    n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosted_trees, "FITS", 1)
    data = records(TaskType.CLASSES if n_classes else TaskType.NUMBERS, n_classes)
    chosen = fit_trees(data, SPLIT, seed=0, settings=[(0.1, 15)], rounds=30)
    kind = HistGradientBoostingClassifier if n_classes else HistGradientBoostingRegressor
    rounds = chosen.fits[0].rounds
    plain = kind(
        max_iter=rounds,
        max_leaf_nodes=15,
        max_features=0.5,
        random_state=chosen.fits[0].seed,
        early_stopping=False,
        categorical_features=[True, False, False],
    )
    columns, rows = np.hstack([data.features.codes, data.features.numbers]), np.r_[SPLIT.train, SPLIT.validation]
    plain.fit(columns[rows], data.labels[rows])
    expected = plain.predict_proba(columns) if n_classes else plain.predict(columns)
    found = chosen.refit(data, SPLIT)
    np.testing.assert_allclose(found.predict(data.features), expected, rtol=1e-9, atol=1e-12)
    assert rounds == chosen.model.rounds == found.rounds


@pytest.mark.parametrize("sees_partners", [True, False])
def test_only_the_final_trees_know_the_labels_of_validation_records(
    sees_partners: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosted_trees, "ROUNDS", 30)
    data, partners, rows = records(TaskType.NUMBERS), embedded(), SPLIT.validation
    only_there = data.features.codes[:, 0] > 6  # categories that no training record has
    data = replace(data, labels=data.labels + 50 * only_there)
    inputs = TreeInputs(np.zeros((N, 0), np.float32), [partners] if sees_partners else [], dropout=0.2)
    fitted = StackedTrees.fit(data, SPLIT, (np.zeros(len(rows)), None), seed=0, log=False, inputs=inputs)
    new = SPLIT.test[only_there[SPLIT.test]]
    before, after = (
        trees.model.predict(trees.columns(inputs.take(new)).beside(data.features.take(new)))
        for trees in (fitted.chosen, fitted.final)
    )
    assert (after > before + 2).all()


def test_refitted_trees_do_without_partners_as_often_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "ROUNDS", 2)
    seen, fit = [], boosted_trees._fit
    monkeypatch.setattr(boosted_trees, "_fit", lambda data, *more: seen.append(data) or fit(data, *more))
    data = replace(records(TaskType.NUMBERS), features=Features(np.zeros((N, 1)), np.zeros((N, 0), int)))
    inputs = TreeInputs(np.zeros((N, 0), np.float32), [embedded()], dropout=0.5)
    boosted_trees._fit_seeing(inputs, data, SPLIT, 0, 1.0).refit()
    before, after = (np.isnan(one.features.numbers).any(axis=1) for one in (seen[0], seen[-1]))
    np.testing.assert_array_equal(after[SPLIT.train], before[SPLIT.train])
    assert not before[SPLIT.validation].any()
    assert after[SPLIT.validation].mean() == pytest.approx(0.5, abs=0.25)
    assert not after[SPLIT.test].any()


def test_trees_without_weight_are_dropped() -> None:
    data = records(TaskType.NUMBERS)
    perfect = data.labels[SPLIT.validation], None
    assert StackedTrees.fit(data, SPLIT, perfect, seed=0, log=False) is None


@pytest.mark.parametrize("n_classes", [0, 3])
def test_trees_of_many_records_are_fitted_to_a_sample_and_predict_all(
    n_classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosted_trees, "ROUNDS", 5)
    monkeypatch.setattr(boosted_trees, "POOL_ROWS", 30)
    data, partners = records(TaskType.CLASSES if n_classes else TaskType.NUMBERS, n_classes), embedded()
    inputs = TreeInputs(np.ones((N, 2), np.float32), [partners])
    monkeypatch.setattr(boosted_trees, "MAX_TREE_RECORDS", len(SPLIT.train) - 20)
    some, split, seen = boosted_trees.tree_sample(data, SPLIT, inputs)
    assert (len(split.train), len(split.validation)) == (len(SPLIT.train) - 20, len(SPLIT.validation))
    np.testing.assert_array_equal(some.labels[split.validation], data.labels[SPLIT.validation])
    np.testing.assert_array_equal(
        seen.lists[0].neighbours.partner[split.validation], partners.neighbours.partner[SPLIT.validation]
    )
    shape = (len(SPLIT.validation), *[n_classes][:n_classes])
    stacked = StackedTrees.fit(data, SPLIT, (np.full(shape, 0.3), None), seed=0, log=False, inputs=inputs).final
    fitted, fit = [], boosted_trees._fit
    monkeypatch.setattr(boosted_trees, "_fit", lambda data, *more: fitted.append(more[0]) or fit(data, *more))
    boosted_trees._fit_seeing(seen, some, split, 0, 0.5).refit()
    half = len(split.validation) // 2  # as many of the validation records as of the training records
    assert len(fitted[-1].train) - len(fitted[0].train) == half
    rows = SPLIT.test
    assert len(stacked.model.predict(stacked.columns(inputs.take(rows)).beside(data.features.take(rows)))) == len(rows)
