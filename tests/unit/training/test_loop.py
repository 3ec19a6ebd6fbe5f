"""Training as its users meet it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from error_fixtures import raises
from fedsim.errors import DeviceError, InputError, SettingError
from fedsim.splitnn import Features, Solo
from fedsim.splitnn.methods import FedSimNetwork, member_networks
from fedsim.splitnn.party_model import AdamW, describe, resolve_device
from fedsim.training import Hook, PrimaryData, SecondaryData, StandardLabel, loop, modern_preset, train
from fedsim.training.loop import Epoch, EpochPlan, ProgressBar, best_epoch, is_better
from fedsim.types import Links, Split
from fedsim_lab.paper_networks import paper_preset
from training_fixtures import MEAN, METHODS, SPLIT, small_config, small_primary, small_secondaries


def epochs(*errors):
    history = ()
    for number, error in enumerate(errors, start=1):
        metrics = {"rmse": error}
        history += (Epoch(number, 0.0, 0.0, metrics, 0.0, is_better(metrics, history)),)
    return history


def test_the_best_epoch_is_the_first_with_the_least_error():
    assert best_epoch(epochs(3.0, 1.0, 2.0, 1.0)).number == 2


def test_patience_ends_a_run_that_no_longer_improves():
    assert not EpochPlan(9, patience=2).is_over(epochs(3.0, 1.0, 2.0))
    assert EpochPlan(9, patience=2).is_over(epochs(3.0, 1.0, 2.0, 2.0))
    assert EpochPlan(2, patience=None).is_over(epochs(3.0, 2.0))


def test_a_run_that_no_longer_improves_goes_on_with_the_end_of_its_schedule():
    plan, waited = EpochPlan(40, patience=2, cooling=8), (3.0, 1.0, 2.0, 2.0)
    assert [plan.place(epochs(*waited[:done])) for done in range(5)] == [0, 1, 2, 3, 32]
    assert not plan.is_over(epochs(*waited, 0.9, 0.8, 0.9))
    assert plan.place(epochs(*waited, 0.9, 0.8, 0.9)) == 35
    assert plan.is_over(epochs(*waited, 0.9, 0.8, 0.9, 0.9))
    assert plan.is_over(epochs(*waited, 1.0, 1.0))
    assert plan.is_over(epochs(*waited, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2))


def test_the_end_of_the_schedule_starts_from_the_best_weights(monkeypatch):
    config = small_config(epochs=20, patience=2, optimiser=AdamW(rate=0.3))  # too fast to go on improving
    with_end = train(small_primary(), small_secondaries(), SPLIT, config)
    monkeypatch.setattr(loop, "COOLING_SHARE", 1000)
    without = train(small_primary(), small_secondaries(), SPLIT, config)
    done = len(without.history)
    assert [replace(one, seconds=0.0) for one in with_end.history[:done]] == [
        replace(one, seconds=0.0) for one in without.history
    ]
    assert len(with_end.history) > done
    assert with_end.history[done].validation["rmse"] < without.history[-1].validation["rmse"]


def test_the_model_has_the_weights_of_the_best_epoch():
    config = small_config(epochs=6, optimiser=AdamW(rate=0.3))  # too fast to end at its best
    result = train(small_primary(), small_secondaries(), SPLIT, config)
    assert result.best.number < 6
    assert result.metrics["validation"] == result.best.validation


def test_prediction_for_new_records_equals_that_of_the_test_rows():
    result = train(small_primary(), small_secondaries(2), SPLIT, small_config())
    features = small_primary().features.take(SPLIT.test)
    lists = [Links(data.partner[SPLIT.test], data.similarity[SPLIT.test]) for data in small_secondaries(2)]
    np.testing.assert_allclose(result.model.predict(features, lists), result.predictions["test"], rtol=1e-6)


def test_the_minmax_label_keeps_predictions_within_the_training_range_and_the_standard_label_does_not():
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(60, 1))
    split = Split(*np.split(np.argsort(numbers[:, 0]), [40, 50]))
    primary = PrimaryData(numbers, 100 * numbers[:, 0])
    highest = primary.labels[split.train].max()
    bounded = train(primary, [], split, small_config(METHODS["solo"], epochs=40))
    config = small_config(Solo((20,)), epochs=40, optimiser=AdamW(rate=2e-2), label=StandardLabel())
    free = train(primary, [], split, config)
    assert bounded.predictions["test"].max() <= highest
    assert free.predictions["test"].max() > highest


@pytest.mark.parametrize("classes", [1, 3])
def test_weights_train_as_repeated_records_do(classes):
    times = np.where(np.arange(60) < 20, 3, 1)
    primary, first = small_primary(classes), small_secondaries()[0]
    rows = np.repeat(np.arange(60), times)
    split = Split(*(np.flatnonzero(np.isin(rows, part)) for part in (SPLIT.train, SPLIT.validation, SPLIT.test)))
    repeated = replace(primary, features=primary.features.take(rows), labels=primary.labels[rows])
    secondary = replace(first, partner=first.partner[rows], similarity=first.similarity[rows])
    method = METHODS["avgsim"] if classes > 1 else MEAN
    config = small_config(method, epochs=5, batch=200, optimiser=AdamW(rate=1e-2))  # one batch, no dropout
    weighted = train(replace(primary, weights=times.astype(float)), [first], SPLIT, config)
    expected = train(repeated, [secondary], split, config)
    plain = train(primary, [first], SPLIT, config)
    np.testing.assert_allclose(weighted.predictions["test"], expected.predictions["test"], rtol=1e-3)
    learnt = [np.concatenate([part.ravel() for part in one.parts["primary"].values()]) for one in (weighted, plain)]
    assert not np.allclose(*learnt, rtol=1e-2)
    losses = [[epoch.loss for epoch in result.history] for result in (weighted, expected)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_classes_may_be_any_whole_numbers():
    result = train(small_primary(classes=3), small_secondaries(), SPLIT, small_config())
    assert result.model.target.classes == (5, 6, 7)
    assert result.predictions["test"].shape == (10, 3)
    np.testing.assert_allclose(result.predictions["test"].sum(axis=1), 1, rtol=1e-6)


def test_a_model_survives_copying_and_pickling():
    result = train(small_primary(), small_secondaries(), SPLIT, small_config(epochs=1))
    lists = [small_secondaries()[0].neighbours]
    expected = result.model.predict(small_primary().features, lists)
    for again in (copy.deepcopy(result.model), pickle.loads(pickle.dumps(result.model))):  # noqa: S301
        assert (again.predict(small_primary().features, lists) == expected).all()


def test_hooks_see_the_whole_run():
    seen = []

    class Notebook(Hook):
        def started(self, outline):
            seen.append(("started", outline.epochs, outline.steps_per_epoch))

        def stepped(self, step):
            seen.append(step)

        def epoch_ended(self, epoch):
            seen.append(("epoch", epoch.number))

        def ended(self, metrics):
            seen.append(("ended", *metrics))

    train(small_primary(), small_secondaries(), SPLIT, small_config(), hooks=[Notebook()])
    assert seen == [("started", 2, 3), 0, 1, 2, ("epoch", 1), 3, 4, 5, ("epoch", 2), ("ended", "validation", "test")]


@pytest.mark.parametrize("preset", [paper_preset, modern_preset])
def test_presets_train(preset):
    config = replace(preset(epochs=1), device="cpu")
    result = train(small_primary(), small_secondaries(), SPLIT, config)
    assert np.isfinite(result.predictions["test"]).all()


def test_without_test_rows_there_is_no_test_metric():
    split = replace(SPLIT, test=np.zeros(0, dtype=np.int64))
    assert set(train(small_primary(), small_secondaries(), split, small_config()).metrics) == {"validation"}


def with_value(value, place=(3, 1)):
    numbers = small_primary().features.numbers.astype(float)
    numbers[place] = value
    return replace(small_primary(), features=Features(numbers, names=("area", "floor", "age")))


FIRST = small_secondaries()[0]
BAD = {
    "feature-not-finite": {"primary": with_value(np.nan)},
    "label-not-finite": {"primary": replace(small_primary(), labels=np.full(60, np.inf))},
    "label-shape": {"primary": replace(small_primary(), labels=np.zeros(59))},
    "one-class": {"primary": replace(small_primary(2), labels=np.ones(60, int))},
    "class-not-integer": {"primary": replace(small_primary(2), labels=np.ones(60))},
    "no-secondary": {"secondaries": []},
    "repeated-name": {"secondaries": [FIRST, FIRST]},
    "repeated-name ": {"secondaries": [replace(FIRST, name="primary")]},
    "list-shape": {"secondaries": [replace(FIRST, partner=FIRST.partner[:9])]},
    "partner-out-of-range": {"secondaries": [replace(FIRST, partner=FIRST.partner + 9)]},
    "no-partner-list": {"secondaries": [replace(FIRST, partner=None)]},
    "missing-partners": {"secondaries": [replace(FIRST, partner=FIRST.partner - 1)]},
    "similarity-not-finite": {"secondaries": [replace(FIRST, similarity=FIRST.similarity * np.nan)]},
    "party-name": {"secondaries": [replace(FIRST, name="../first")]},
    "aligned-sizes": {"secondaries": [FIRST, SecondaryData(np.zeros((8, 1)), name="x", aligned_with="first")]},
    "unknown-alignment": {"secondaries": [FIRST, SecondaryData(np.zeros((9, 1)), name="x", aligned_with="y")]},
    "weight-not-positive": {"primary": replace(small_primary(), weights=np.arange(60.0))},
    "split-overlap": {"split": replace(SPLIT, validation=SPLIT.test)},
    "split-empty": {"split": replace(SPLIT, validation=SPLIT.test[:0])},
    "split-rows": {"split": replace(SPLIT, train=SPLIT.train + 60)},
}


@pytest.mark.parametrize("code", BAD)
def test_bad_input_is_refused_without_showing_it(code):
    given = {"primary": small_primary(), "secondaries": [FIRST], "split": SPLIT, "config": small_config(), **BAD[code]}
    with pytest.raises((InputError, SettingError)) as caught:
        train(**given)
    assert caught.value.code == code.strip()
    assert "nan" not in str(caught.value)


@pytest.mark.parametrize("change", [{"epochs": 0}, {"batch": 0}, {"patience": 0}, {"optimiser": AdamW(rate=0.0)}])
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(SettingError):
        small_config(**change)


def test_a_run_that_diverges_says_so():
    config = small_config(METHODS["solo"], optimiser=AdamW(rate=1e30), label=StandardLabel())
    with pytest.raises(SettingError) as caught:
        train(small_primary(), [], SPLIT, config)
    assert (caught.value.code, caught.value.details["learning_rate"]) == ("diverged", 1e30)


def test_codes_need_their_cardinalities():
    features = Features(np.zeros((60, 1)), np.ones((60, 2), dtype=np.int64))
    with raises(InputError, "feature-shape"):
        train(replace(small_primary(), features=features), [FIRST], SPLIT, small_config())


def test_other_columns_at_prediction_are_refused():
    model = train(small_primary(), small_secondaries(), SPLIT, small_config(epochs=1)).model
    with raises(InputError, "other-columns"):
        model.predict(np.zeros((60, 2)), [FIRST.neighbours])


def test_unknown_and_absent_devices_are_told_apart(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises(SettingError, "unknown-device"):
        resolve_device("tpu")
    with pytest.raises(DeviceError):
        resolve_device("cuda")
    assert resolve_device("auto").type == "cpu"


def test_a_member_learns_what_it_would_learn_alone():
    """Without dropout and partners nothing is shared; the first member starts with the weights of a single network."""
    config = small_config(Solo((6, 5)), epochs=1, optimiser=AdamW(rate=1e-2))
    alone, together = (train(small_primary(), [], SPLIT, replace(config, members=n)).parts["primary"] for n in (1, 3))
    for name, weights in alone.items():
        torch.testing.assert_close(together[f"networks.0.{name}"], weights)
        assert not torch.equal(together[f"networks.1.{name}"], together[f"networks.2.{name}"])


def test_one_member_is_the_network_itself():
    result = train(small_primary(), small_secondaries(), SPLIT, small_config(members=1))
    assert isinstance(result.model.primary.model.network, FedSimNetwork)
    assert describe(small_config(members=1)) == describe(small_config())
    assert describe(small_config(members=2))["members"] == 2


def test_the_error_of_averaged_members_is_at_most_their_mean_error():
    result = train(small_primary(), small_secondaries(2), SPLIT, small_config(members=4, label=StandardLabel()))
    model, labels = result.model, small_primary().labels[SPLIT.test]
    lists = [data.neighbours.take(SPLIT.test) for data in small_secondaries(2)]
    batch = model.primary.batch(model.records(small_primary().features.take(SPLIT.test), lists), np.arange(10))
    errors = [
        np.square(model.target.decode_predictions(member(batch)[:, 0].detach().numpy()) - labels).mean()
        for member in member_networks(model.primary.model.network)
    ]
    assert result.metrics["test"]["rmse"] ** 2 <= np.mean(errors)


def test_a_progress_bar_prints_a_line_per_epoch_without_a_terminal(capsys):
    train(small_primary(), small_secondaries(), SPLIT, small_config(), hooks=[ProgressBar()])
    printed = capsys.readouterr()
    assert (printed.out, [line.split(":")[0] for line in printed.err.splitlines()]) == (
        "",
        ["epoch 1 of 2", "epoch 2 of 2"],
    )


def test_a_progress_bar_ends_at_the_last_epoch(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any output for a terminal
    bar = ProgressBar()
    train(small_primary(), small_secondaries(), SPLIT, small_config(), hooks=[bar])
    (task,) = bar._bar.tasks
    assert (task.fields["epoch"], task.completed) == (2, task.total)
