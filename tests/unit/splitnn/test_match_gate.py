"""The match model against a slow one, the laws of the match gate, and vectors of similarities."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from fedsim.errors import InputError, SettingError
from fedsim.splitnn.gates import MIN_VARIANCE, BranchShape, MatchGate, MatchModel, SimilarityInput, fit_match_model
from fedsim.splitnn.layers import initialise_weights
from fedsim.training import restore_model, train
from fedsim.training.data import NeighbourList, check_lists
from fedsim.training.explain import find_matches, merge_attributions, request_records, weight_curves
from fedsim.types import Links
from resume_fixtures import KillAt, run, same_bits, survive
from training_fixtures import (
    MEAN,
    METHODS,
    SPLIT,
    encoded_config,
    small_config,
    small_fields,
    small_primary,
    small_secondaries,
)

numbers = st.floats(-3, 3) | st.just(math.nan)
vectors = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 3)), elements=numbers)


def matched_lists(n_records=600, k=6, share=0.7, n_fields=1, seed=0):
    """Similarities of pairs of which at most one per record is a match, and the place of that one (-1: none)."""
    rng = np.random.default_rng(seed)
    similarity = rng.normal(-0.3, 0.6, (n_records, k, n_fields))
    place = np.where(rng.random(n_records) < share, rng.integers(0, k, n_records), -1)
    known = np.flatnonzero(place >= 0)
    similarity[known, place[known]] = rng.normal(2.5, 0.5, (len(known), n_fields))
    return similarity, place


def slow_responsibilities(model, similarity):
    """Bayes' rule, record by record and pair by pair, with the densities of scipy."""
    found = np.zeros(similarity.shape[:2])
    low, high = model.bounds
    for row, partners in enumerate(similarity):
        likelihood = []
        for vector in partners:
            product = model.share / len(partners)
            for field, value in enumerate(vector):
                if not math.isnan(value):
                    within = min(max(value, low[field]), high[field])
                    product *= norm.pdf(within, model.match_mean[field], math.sqrt(model.match_variance[field]))
                    product /= norm.pdf(within, model.other_mean[field], math.sqrt(model.other_variance[field]))
            likelihood.append(product)
        found[row] = np.array(likelihood) / (1 - model.share + sum(likelihood))
    return found


def gate(similarity, seed=0, **settings):
    shape = BranchShape(similarity.shape[1], (4,), similarity)
    inputs = SimilarityInput(similarity)
    built = MatchGate(**{"min_certainty": 0.0, **settings}).build(shape, inputs)
    initialise_weights(built, torch.Generator().manual_seed(seed))
    return lambda values: built(values, inputs(values)).detach()


@settings(deadline=None)
@given(vectors)
def test_responsibilities_equal_those_computed_pair_by_pair(similarity):
    fields = similarity.shape[2]
    model = MatchModel(np.full(fields, 1.2), np.full(fields, 0.5), np.full(fields, -0.2), np.full(fields, 0.9), 0.4)
    np.testing.assert_allclose(model.responsibilities(similarity), slow_responsibilities(model, similarity), rtol=1e-9)


@pytest.mark.parametrize("n_fields", [1, 2])
def test_the_fit_is_a_fixed_point_of_the_slow_responsibilities(n_fields):
    similarity, _ = matched_lists(n_fields=n_fields)
    model = fit_match_model(similarity)
    weight = slow_responsibilities(model, similarity)
    assert model.share == pytest.approx(weight.sum(axis=1).mean(), abs=1e-3)
    for field in range(n_fields):
        values = similarity[:, :, field]
        mean = np.average(values, weights=weight)
        assert model.match_mean[field] == pytest.approx(mean, abs=5e-3)
        variance = np.average((values - mean) ** 2, weights=weight) + MIN_VARIANCE
        assert model.match_variance[field] == pytest.approx(variance, abs=5e-3)


@pytest.mark.parametrize(("k", "n_fields"), [(6, 1), (6, 2), (2, 1), (1, 1)])
def test_the_fit_finds_the_matches_without_labels(k, n_fields):
    similarity, place = matched_lists(k=k, n_fields=n_fields)
    model = fit_match_model(similarity)
    found = model.responsibilities(similarity)
    assert model.share == pytest.approx(0.7, abs=0.08)
    taken = np.where(found.max(axis=1) > 0.5, found.argmax(axis=1), -1)
    assert (taken == place).mean() > 0.95


def test_a_greater_similarity_never_counts_less():
    model = fit_match_model(matched_lists()[0])
    assert (np.diff(model.log_ratio(np.linspace(-5, 5, 201)[None, :, None])) >= 0).all()


@pytest.mark.parametrize("similarity", [np.zeros((30, 4, 1)), np.zeros((30, 1, 1)), np.full((0, 3, 2), 0.0)])
def test_constant_or_absent_similarities_give_finite_probabilities(similarity):
    values = torch.zeros(2, *similarity.shape[1:])
    found = gate(similarity)(values)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))


def test_a_field_that_is_always_missing_is_ignored_by_the_match_model():
    similarity, _ = matched_lists()
    with_missing = np.concatenate([similarity, np.full_like(similarity, math.nan)], axis=2)
    one, two = fit_match_model(similarity), fit_match_model(with_missing)
    np.testing.assert_allclose(two.responsibilities(with_missing), one.responsibilities(similarity), rtol=1e-9)


def test_permuting_partners_permutes_probabilities():
    similarity, _ = matched_lists(n_fields=2)
    values, order = torch.from_numpy(similarity[:20]).float(), torch.tensor([3, 1, 5, 0, 2, 4])
    found, moved = gate(similarity)(values), gate(similarity)(values[:, order])
    torch.testing.assert_close(moved, torch.cat([found[:, :-1][:, order], found[:, -1:]], dim=1))


def test_the_gate_starts_from_the_match_model():
    similarity, _ = matched_lists()
    shape, inputs = BranchShape(6, (4,), similarity), SimilarityInput(similarity)
    built = MatchGate().build(shape, inputs)
    initialise_weights(built, torch.Generator())
    for parameter in built.correct.parameters():
        torch.nn.init.zeros_(parameter)
    values = torch.from_numpy(similarity).float()
    expected = fit_match_model(similarity).responsibilities(similarity)
    np.testing.assert_allclose(built(values, inputs(values))[:, :-1].detach(), expected, atol=1e-4)


def test_a_list_in_which_no_partner_stands_out_has_no_gate():
    near = np.sort(np.random.default_rng(0).normal(size=(300, 8)), axis=1)[:, ::-1, None]  # as distances of places are
    same, _ = matched_lists()
    built = [MatchGate().build(BranchShape(s.shape[1], (4,), s), SimilarityInput(s)) for s in (near, same)]
    assert built[0] is None
    assert built[1] is not None


def trained(method="fedsim with match gate", parties=2, **changes):
    return train(small_primary(), small_secondaries(parties), SPLIT, small_config(METHODS[method], **changes))


def test_matches_name_partner_probability_and_no_match():
    model = trained().model
    lists = [data.neighbours for data in small_secondaries(2)]
    first, second = find_matches(model, lists)
    assert (first.party, second.party) == ("first", "second")
    assert first.probability.shape == (60, 4)
    np.testing.assert_allclose(first.probability.sum(axis=1) + first.unmatched, 1.0)
    for row, taken in enumerate(first.taken):
        assert taken == -1 or taken in lists[0].partner[row]
    assert find_matches(trained("fedsim").model, lists) == []


def test_contributions_of_the_match_are_a_further_column():
    model = trained().model
    lists = [data.neighbours for data in small_secondaries(2)]
    one = merge_attributions(model, request_records(model, small_primary().features, lists), steps=4)[0]
    assert one.values.shape == (60, 4, 4)
    assert (np.abs(one.values[:, :, 3]).sum(axis=1) > 0).all()


def test_a_restored_model_has_the_gates_of_the_trained_one():
    result = trained()
    model = result.model
    held = [NeighbourList(Links.without_records(k), group) for k, group in zip((4, 3), model.groups, strict=True)]
    weights = result.parts["primary"]
    again = restore_model(model.config, model.target, small_primary().features, held, weights)
    lists = [data.neighbours for data in small_secondaries(2)]
    np.testing.assert_array_equal(
        again.predict(small_primary().features, lists), model.predict(small_primary().features, lists)
    )


def test_a_model_without_match_gate_is_restored_under_a_configuration_that_has_one():
    result = trained("fedsim")
    config = replace(result.model.config, method=METHODS["fedsim with match gate"])
    held = [
        NeighbourList(Links.without_records(k), group) for k, group in zip((4, 3), result.model.groups, strict=True)
    ]
    again = restore_model(config, result.model.target, small_primary().features, held, result.parts["primary"])
    lists = [data.neighbours for data in small_secondaries(2)]
    np.testing.assert_array_equal(
        again.predict(small_primary().features, lists), result.model.predict(small_primary().features, lists)
    )


@pytest.mark.parametrize("step", [2, 5])
def test_a_killed_run_ends_with_the_same_bits(tmp_path, step):
    config = encoded_config(METHODS["fedsim with attention and match gate"], epochs=2)
    whole = run(config, 2)
    assert same_bits(whole, survive(replace(config, save_steps=1), tmp_path, KillAt(step), 2))


def test_a_merge_by_the_mean_refuses_a_match_gate():
    with pytest.raises(SettingError) as caught:
        train(
            small_primary(),
            small_secondaries(1),
            SPLIT,
            small_config(replace(MEAN, match=MatchGate(min_certainty=0.0))),
        )
    assert caught.value.code == "mean-merge-match"


# Vectors of similarities


@pytest.fixture(scope="module")
def several():
    partner, similarity = small_fields(9, 2)
    return [replace(small_secondaries(1)[0], partner=partner, similarity=similarity)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_several_similarities_with_gaps(name, several):
    found = train(small_primary(), several, SPLIT, small_config(METHODS[name]))
    assert np.isfinite(found.predictions["test"]).all()


def test_one_field_is_what_a_matrix_of_similarities_is():
    plain = small_secondaries(1)
    vector = [replace(plain[0], similarity=plain[0].similarity[:, :, None])]
    for name in ("fedsim with attention and match gate", "featuresim"):
        config = small_config(METHODS[name])
        one, other = (train(small_primary(), parties, SPLIT, config).parts["primary"] for parties in (plain, vector))
        assert list(one) == list(other)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_every_field_has_its_own_weight_curve(several):
    model = train(small_primary(), several, SPLIT, small_config()).model
    curves = weight_curves(model, points=5)
    assert len(curves) == 3
    assert len({curve.party for curve in curves}) == 3


def test_the_mark_of_a_missing_field_stays_zero_unless_training_had_gaps():
    similarity = np.zeros((5, 2, 2))
    similarity[0, 0, 1] = math.nan
    marks = SimilarityInput(similarity)(torch.full((1, 1, 2), math.nan))
    assert marks.tolist() == [[[0.0, 0.0, 0.0, 1.0]]]


def test_other_fields_than_in_training_are_refused(several):
    model = train(small_primary(), several, SPLIT, small_config()).model
    with pytest.raises(InputError) as caught:
        model.predict(small_primary().features, [small_secondaries(1)[0].neighbours])
    assert caught.value.code == "other-fields"


def test_a_pair_without_any_similarity_is_refused(several):
    holder = train(small_primary(), several, SPLIT, small_config()).model.groups[0]
    partner, similarity = small_fields(9, 2)
    similarity[3, 1] = math.nan
    with pytest.raises(InputError) as caught:
        check_lists([NeighbourList(Links(partner, similarity), holder)], 60, METHODS["fedsim"].partners)
    assert caught.value.code == "similarity-not-finite"


@settings(deadline=None)
@given(vectors)
def test_the_overall_similarity_is_the_mean_of_the_present_ones(similarity):
    overall = Links(np.zeros(similarity.shape[:2], np.int64), similarity).overall
    for place in np.ndindex(overall.shape):
        present = [value for value in similarity[place] if not math.isnan(value)]
        assert overall[place] == pytest.approx(sum(present) / len(present) if present else math.nan, nan_ok=True)
