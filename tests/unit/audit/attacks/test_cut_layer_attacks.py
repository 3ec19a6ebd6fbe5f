"""Attacks on what crosses the cut: labels from gradients, features from activations."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import DataConversionWarning

from fedsim.config.stored_audit import Adversary, AttackKind
from fedsim.errors import InputError
from fedsim_audit.attacks.cut_layer_attacks import (
    Eavesdropper,
    completion_attack,
    direction_attack,
    inversion_attack,
    joint_inversion_attack,
    listing_records,
    mean_by_row,
    mean_label_by_row,
    mean_r2,
    norm_attack,
)
from fedsim_audit.attacks.similarity_attacks import LinksByPartner, PrimaryView

N = 1_200


def chance(seed=0) -> np.random.Generator:
    return np.random.default_rng(seed)


def leaky_gradients(seed=0):
    """What a logistic loss sends back: (probability - label) times the head's weights; a tenth of the labels is one."""
    rng = chance(seed)
    labels = rng.random(N) < 0.1
    probability = np.clip(rng.beta(2, 14, N) + 0.2 * labels, 0, 1)
    gradients = (probability - labels)[:, None] * (rng.normal(size=8) + 0.1 * rng.normal(size=(N, 8)))
    return gradients, labels


def activations_of(features, width=8, seed=1):
    return np.maximum(features @ chance(seed).normal(size=(features.shape[1], width)), 0.0)


KNOWN = np.arange(40)


def test_length_and_direction_of_gradients_give_labels_away():
    gradients, labels = leaky_gradients()
    assert norm_attack(gradients, labels, rng=chance()).score.low > 0.9
    found = direction_attack(gradients, labels, KNOWN, rng=chance())
    assert found.score.low > 0.95
    assert found.adversary is Adversary.SECONDARY


def test_gradients_without_labels_in_them_say_nothing():
    _, labels = leaky_gradients()
    found = direction_attack(chance(5).normal(size=(N, 8)), labels, KNOWN, rng=chance())
    assert found.score.low < 0.5 < found.score.high


def test_a_wide_cut_gives_features_back():
    features = chance().normal(size=(600, 5))
    wide = activations_of(features, width=16)
    known = np.arange(0, 600, 10)
    assert inversion_attack(wide, features, known, rng=chance()).score.low > 0.6


def test_similarities_links_and_activations_together_give_more_back_than_each_alone():
    rng = chance()
    own = rng.normal(size=(N, 2))
    partner = rng.integers(0, 300, (N, 4))
    named = LinksByPartner.of(PrimaryView(partner, rng.normal(size=partner.shape)))
    behind = listing_records(named, own)
    features = np.hstack([behind[:, :2] / behind[:, :2].std(axis=0), rng.normal(size=(len(named), 2))])
    sent, known = activations_of(features[:, 2:]), np.arange(0, len(named), 5)
    alone = [inversion_attack(inputs, features, known, rng=chance()).score for inputs in (sent, behind)]
    joint = joint_inversion_attack(sent, behind, features, known, rng=chance())
    assert max(score.high for score in alone) < joint.score.low
    assert (joint.attack, joint.kind) == ("joint inversion", AttackKind.INVERSION)


def test_a_single_feature_is_guessed_without_a_warning_of_the_models():
    features = np.random.default_rng(0).normal(size=(120, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataConversionWarning)
        found = inversion_attack(np.hstack([features, features**2]), features, np.arange(60), rng=chance())
    assert found.score.value > 0.9


def test_inversion_judges_only_rows_it_did_not_know_and_features_that_vary():
    features = np.column_stack([chance().normal(size=100), np.ones(100)])
    found = inversion_attack(features[:, :1], features, np.arange(20), rng=chance())
    assert found.targets == 80
    assert found.score.value > 0.99
    assert mean_r2(np.full((4, 1), 9.0), np.arange(4.0)[:, None]) == 0.0


def test_a_head_of_its_own_finds_the_labels_its_part_was_trained_for():
    features, rng = chance().normal(size=(N, 30)), chance(2)
    labels = features[:, 0] * features[:, 1] > 0
    trained = np.column_stack([features[:, 0] * features[:, 1], rng.normal(size=N)])
    found = completion_attack(trained, features, labels, rng.choice(N, 60, replace=False), rng=chance())
    assert found.score.low > 0.95
    assert found.figures["AUC from raw features"] < 0.7


def test_labels_of_a_shared_row_are_the_mean_of_those_who_name_it():
    partner, labels = np.array([[0, -1], [0, 1]]), np.array([1, 0])
    np.testing.assert_array_equal(mean_label_by_row(partner, labels, 3), [0.5, 0.0, np.nan])


class Party:
    """The smallest secondary: doubles its rows and takes gradients."""

    name = "echo"

    def activations(self, rows, step):
        return 2.0 * rows[:, None].float()

    def descend(self, gradients, step):
        self.taken = gradients


def test_an_eavesdropper_notes_what_crosses_and_changes_nothing():
    party = Party()
    glass = Eavesdropper(party, first_step=1)
    for step in range(2):
        reply = glass.activations(torch.tensor([3, 5]), step)
        glass.descend(torch.ones(2, 1), step)
    assert glass.name == "echo"
    assert reply.tolist() == [[6.0], [10.0]]
    assert party.taken.tolist() == [[1.0], [1.0]]
    assert [(crossing.step, crossing.rows.tolist()) for crossing in glass.recorded_steps] == [(1, [3, 5])]


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (lambda: norm_attack(np.zeros((3, 2)), np.arange(3), rng=chance()), "not-binary"),
        (lambda: norm_attack(np.zeros((3, 2)), np.array([0, 1]), rng=chance()), "shape-mismatch"),
        (
            lambda: direction_attack(np.zeros((2, 2)), np.array([0, 1]), np.array([], int), rng=chance()),
            "too-few-known",
        ),
        (lambda: inversion_attack(np.zeros((9, 2)), np.zeros((9, 1)), np.arange(9), rng=chance()), "too-few-known"),
        (
            lambda: completion_attack(*[np.zeros((9, 2))] * 2, np.arange(9) > 4, np.arange(4), rng=chance()),
            "too-few-known",
        ),
        (lambda: mean_by_row(np.array([], int), np.zeros((0, 1))), "nothing-recorded"),
    ],
)
def test_invalid_inputs_are_refused(attack, code):
    with pytest.raises(InputError) as caught:
        attack()
    assert caught.value.code == code


def test_a_single_feature_is_turned_back_as_well():
    features = chance().normal(size=(400, 1))
    assert inversion_attack(activations_of(features), features, KNOWN, rng=chance()).score.low > 0.8
