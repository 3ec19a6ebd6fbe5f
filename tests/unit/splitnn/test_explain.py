"""Integrated gradients against captum, and what must hold of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients

from error_fixtures import raises
from fedsim.errors import SettingError
from fedsim.splitnn.gates import WeightedOutputs
from fedsim.splitnn.methods import member_networks
from fedsim.splitnn.secondary_model import AbsentSecondary
from fedsim.training import train
from fedsim.training.boosted_trees import POOLED_COLUMNS, SIMILARITY_COLUMNS, TreeColumns
from fedsim.training.data import TaskType, as_features
from fedsim.training.explain import (
    TypicalInputs,
    average_sent,
    explain_records,
    integrated_gradients,
    merge_attributions,
    merge_contributions,
    merge_importance,
    predict_records,
    request_records,
    typical_from_state,
    weight_curves,
)
from training_fixtures import METHODS, SPLIT, small_config, small_primary, small_secondaries


@pytest.fixture(scope="module")
def trained():
    return train(small_primary(), small_secondaries(2), SPLIT, small_config()).model


def records(model):
    lists = [data.neighbours for data in small_secondaries(2)]
    return model.records(small_primary().features, lists)


def test_contributions_of_the_merge_gate_equal_captums(trained):
    network = trained.primary.model.network
    batch = trained.primary.batch(records(trained), np.arange(12))
    ours = merge_contributions(network, batch)
    primary, lists = network.weighted(batch)
    weights = [weighted.weight.detach() for weighted in lists]

    def forward(first, second, cut, *weight):
        pairs = [WeightedOutputs(outputs, entry) for outputs, entry in zip((first, second), weight, strict=True)]
        return network.task.predict(network.merge(pairs, cut, None)).squeeze(1)

    inputs = tuple(weighted.outputs.detach() for weighted in lists)
    others = (primary.detach(), *weights)
    theirs = IntegratedGradients(forward).attribute(inputs, additional_forward_args=others, n_steps=50)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right.float(), rtol=1e-4, atol=1e-7)


def test_contributions_add_up_to_the_change_of_the_output():
    def function(inputs):
        return (inputs[0].sigmoid() * inputs[1]).sum(dim=1)

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(5, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    found = sum(part.sum(dim=1) for part in integrated_gradients(function, inputs))
    torch.testing.assert_close(found, function(inputs) - function([entry * 0 for entry in inputs]))


def test_importance_has_a_row_per_partner_and_a_column_per_output(trained):
    lists = [data.neighbours for data in small_secondaries(2)]
    first, second = merge_importance(trained, small_primary().features, lists, steps=8)
    assert (first.party, second.party) == ("first", "second")
    assert (first.values.shape, second.values.shape) == ((4, 3), (3, 3))
    assert (first.values >= 0).all()


def test_single_records_taken_apart_average_to_the_importance(trained):
    lists, features = [data.neighbours for data in small_secondaries(2)], small_primary().features
    found = merge_attributions(trained, request_records(trained, features, lists), steps=8)
    for one, mean, listed in zip(found, merge_importance(trained, features, lists, steps=8), lists, strict=True):
        np.testing.assert_allclose(np.abs(one.values).mean(axis=0), mean.values, rtol=1e-4)
        np.testing.assert_array_equal(one.similarity, np.sort(listed.overall.astype(np.float32), axis=1))
        assert one.partner.shape == one.weight.shape == one.values.shape[:2]


def test_the_weight_curve_is_what_the_gate_does(trained):
    curves = weight_curves(trained, points=7)
    assert [curve.party for curve in curves] == ["first", "second"]
    assert curves[0].similarity[[0, -1]].tolist() == [-3, 3]
    gate = trained.primary.model.network.lists[0].weigh
    again = gate(torch.tensor(curves[0].similarity, dtype=torch.float32)[None, :, None])[0]
    np.testing.assert_allclose(curves[0].weight, again.detach().numpy(), rtol=1e-6)


def test_a_method_without_gates_says_so():
    model = train(small_primary(), [], SPLIT, small_config(METHODS["solo"], epochs=1)).model
    with raises(SettingError, "no-gates"):
        weight_curves(model)


def test_members_are_explained_by_their_mean():
    model = train(small_primary(), small_secondaries(2), SPLIT, small_config(members=3)).model
    batch = model.primary.batch(records(model), np.arange(12))
    members = member_networks(model.primary.model.network)
    apart = [merge_contributions(member, batch)[0] for member in members]
    torch.testing.assert_close(merge_contributions(model.primary.model.network, batch)[0], sum(apart) / 3)
    assert all(member.lists is members[0].lists for member in members)


def explain_all(model, primary, secondaries, **changes):
    """Explanations of all records, against the first one as the typical record."""
    features, lists = as_features(primary.features), [data.neighbours for data in secondaries]
    linked = request_records(model, features, lists)
    typical = TypicalInputs(features.take(np.arange(1)), average_sent(linked), {"a": ((0,), ()), "b": ((1, 2), ())})
    return explain_records(model, linked, typical, steps=8, **changes), features, lists


@pytest.mark.parametrize("name", ["fedsim with attention and match gate", "avgsim", "featuresim", "exact", "solo"])
def test_every_method_is_explained_by_effects_that_add_up(name):
    primary, secondaries = small_primary(), small_secondaries(2) if name != "solo" else []
    model = train(primary, secondaries, SPLIT, small_config(METHODS[name], epochs=1, members=2)).model
    found, features, lists = explain_all(model, primary, secondaries)
    numbers = features.numbers.copy()
    numbers[:, [1, 2]] = numbers[0, [1, 2]]
    values = model.predict(features, lists)
    changed = values - model.predict(replace(features, numbers=numbers), lists)
    assert [one.value for one in found] == pytest.approx(values, rel=1e-4, abs=1e-4)
    assert [one.columns["b"] for one in found] == pytest.approx(changed, rel=1e-3, abs=1e-4)
    for one in found:
        assert one.average + sum(partner.effect for partner in one.partners) == pytest.approx(one.value)
        assert set(one.without) == {data.name for data in secondaries}


@pytest.mark.parametrize(("party_dropout", "compared"), [(0.0, "with average records of"), (0.25, "without")])
def test_a_printed_explanation_names_records_columns_and_what_it_is_compared_with(party_dropout, compared):
    primary, secondaries = small_primary(), small_secondaries(1)
    config = small_config(epochs=1, party_dropout=party_dropout)
    found, *_ = explain_all(train(primary, secondaries, SPLIT, config).model, primary, secondaries)
    name, partner, printed = secondaries[0].name, found[0].partners[0].partner, str(found[0])
    assert f"  effect of record {partner} of {name}: similarity" in printed
    assert "  effect of column a\n" in f"{printed}\n"
    assert f"  {compared} {name}" in printed
    assert [row["name"] for row in found[0].rows() if row["part"] == compared] == [name]


def test_an_explanation_without_partners_is_compared_with_none():
    primary = small_primary()
    found, *_ = explain_all(train(primary, [], SPLIT, small_config(METHODS["solo"], epochs=1)).model, primary, [])
    ends = {f"{side} end of the interval" for side in ("lower", "upper")}
    assert {row["part"] for row in found[0].rows()} - ends == {"prediction", "effect of a column"}
    assert "partner records" not in found[0].plot()._repr_html_().partition("<table")[0]


def add_names(values, ends, features, columns):
    """As trees that see names would change a prediction."""
    return values + columns.names @ [1.0, 2.0, 4.0], ends


def test_names_that_trees_see_are_explained_by_their_mean():
    primary, secondaries = small_primary(), small_secondaries(1)
    model = train(primary, secondaries, SPLIT, small_config(epochs=1)).model
    features, lists = as_features(primary.features), [data.neighbours for data in secondaries]
    names = np.random.default_rng(0).integers(0, 3, (len(features), 3)).astype(np.float32)
    columns = replace(TreeColumns.none(len(features)), names=names)
    linked = request_records(model, features, lists, columns)
    typical = TypicalInputs(
        features.take(np.arange(1)), average_sent(linked), {}, {"street": [1.0], "name": [0.5, 2.0]}
    )
    found = explain_records(model, linked, typical_from_state(typical.state()), combine=add_names, steps=8)
    expected = (names - [1.0, 0.5, 2.0]) * [1.0, 2.0, 4.0]
    assert [one.columns["street"] for one in found] == pytest.approx(expected[:, 0], abs=1e-5)
    assert [one.columns["name"] for one in found] == pytest.approx(expected[:, 1:].sum(axis=1), abs=1e-5)


def test_partner_records_that_all_send_the_same_have_no_effect():
    alike = [replace(data, features=np.ones_like(as_features(data.features).numbers)) for data in small_secondaries(2)]
    primary = small_primary()
    model = train(primary, [alike[0], small_secondaries(2)[1]], SPLIT, small_config(epochs=1)).model
    found, _, _ = explain_all(model, primary, [alike[0], small_secondaries(2)[1]])
    for one in found:
        assert one.without["first"] == pytest.approx(one.value, rel=1e-5)
        effects = {name: [p.effect for p in one.partners if p.secondary == name] for name in ("first", "second")}
        assert effects["first"] == pytest.approx([0.0] * 4, abs=1e-5)
        assert max(map(abs, effects["second"])) > 1e-5


@pytest.mark.parametrize("classes", [2, 3])
def test_the_probability_of_the_predicted_class_is_explained(classes):
    labels = np.arange(60) % classes
    primary = replace(small_primary(), labels=labels, task_type=TaskType.CLASSES)
    model = train(primary, small_secondaries(1), SPLIT, small_config(epochs=1)).model
    found, features, lists = explain_all(model, primary, small_secondaries(1), classes=["x", "y", "z"][:classes])
    probability = model.predict(features, lists)
    assert [one.prediction for one in found] == ["xyz"[place] for place in probability.argmax(axis=1)]
    for one, row in zip(found, probability, strict=True):
        assert one.value == pytest.approx(row.max(), rel=1e-5)
        assert one.average + sum(partner.effect for partner in one.partners) == pytest.approx(one.value)


def test_what_a_secondary_sends_does_not_matter_while_it_is_away():
    primary, secondaries = small_primary(), small_secondaries(2)
    name = "fedsim with attention and match gate"
    model = train(primary, secondaries, SPLIT, small_config(METHODS[name], epochs=1, party_dropout=0.5)).model
    features, lists = as_features(primary.features), [data.neighbours for data in secondaries]
    moved = replace(lists[1], partner=(lists[1].partner + 1) % 7)
    linked, other = (request_records(model, features, found) for found in (lists, [lists[0], moved]))
    before, after = (predict_records(model, one.without(1))[0] for one in (linked, other))
    np.testing.assert_array_equal(before, after)
    assert not np.array_equal(before, predict_records(model, linked)[0])


def pooled_only(values, ends, features, columns):
    """As trees with all the weight that see partners only, and take a missing one for 7."""
    return np.nan_to_num(columns.lists, nan=7.0).sum(axis=(1, 2)), ends


def test_a_secondary_that_is_away_has_no_effect_on_what_trees_see():
    primary, secondaries = small_primary(), small_secondaries(2)
    model = train(primary, secondaries, SPLIT, small_config(epochs=1, party_dropout=0.5)).model
    features, lists = as_features(primary.features), [data.neighbours for data in secondaries]
    typical = TypicalInputs(features.take(np.arange(1)), average_sent(request_records(model, features, lists)), {})
    (first, second), n = model.groups, len(features)
    away = AbsentSecondary(second[0].name, second[0].width, second[0].n_records)
    model = replace(model, groups=(first, (away,)))
    pooled = np.random.default_rng(0).normal(size=(n, 2, POOLED_COLUMNS)).astype(np.float32)
    columns = replace(TreeColumns.none(n), lists=pooled).without(1)
    linked = request_records(model, features, lists, columns)
    for one, record in zip(explain_records(model, linked, typical, combine=pooled_only, steps=8), pooled, strict=True):
        assert {partner.secondary for partner in one.partners} == {"first"}
        assert one.average + sum(partner.effect for partner in one.partners) == pytest.approx(one.value)
        assert one.value - one.average == pytest.approx(record[0, SIMILARITY_COLUMNS:].sum(), rel=1e-4, abs=1e-4)


def test_only_fedsim_can_do_without_a_partner():
    with raises(SettingError, "needs-every-secondary"):
        small_config(METHODS["avgsim"], party_dropout=0.1)
