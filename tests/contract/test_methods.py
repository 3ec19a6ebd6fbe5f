"""What every method must do; add yours to ``METHODS`` in ``training_fixtures`` and these tests cover it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from e2e.party_threads import run_in_threads
from fedsim import registry
from fedsim.runs.run_folder import TRAINED_MODEL, run_path
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn import methods
from fedsim.splitnn.layers import FeatureTensors
from fedsim.splitnn.methods import PartnerRequirement
from fedsim.splitnn.party_model import AdamW, describe
from fedsim.training import train
from fedsim.types import Links
from fedsim_lab.faults.local_job import RENTALS, create_local_job
from training_fixtures import METHODS, SPLIT, small_config, small_features, small_primary, small_secondaries

EVERY = pytest.mark.parametrize("name", METHODS)
ORDERED = pytest.mark.parametrize("name", [name for name in METHODS if "without sort" not in name])
LINKED = pytest.mark.parametrize("name", [name for name in METHODS if name != "solo"])


def trained(name, *, classes=1, parties=2, **changes):
    secondaries = small_secondaries(parties)
    return train(small_primary(classes), secondaries, SPLIT, small_config(METHODS[name], **changes))


def lists_of(secondaries, rows=slice(None)):
    return [Links(data.partner[rows], data.similarity[rows]) for data in secondaries if data.partner is not None]


def lists_for(model, rows=slice(None)):
    return lists_of(small_secondaries(2), rows) if model.groups else []


def test_every_method_of_the_library_is_held_to_this_contract():
    assert {type(method).__name__ for method in METHODS.values()} == set(methods.__all__)


@EVERY
@pytest.mark.parametrize(("classes", "shape"), [(1, (10,)), (2, (10, 2)), (3, (10, 3))])
def test_it_predicts_numbers_two_classes_and_many(name, classes, shape):
    found = trained(name, classes=classes).predictions["test"]
    assert found.shape == shape
    assert np.isfinite(found).all()


@EVERY
def test_it_learns(name):
    history = trained(name, epochs=12, optimiser=AdamW(rate=2e-2)).history
    assert history[-1].loss < history[0].loss


@ORDERED
def test_a_prediction_does_not_depend_on_the_records_beside_it(name):
    model = trained(name).model
    together = model.predict(small_primary().features, lists_for(model))
    for row in (0, 31):
        rows = np.array([row])
        alone = model.predict(small_primary().features.take(rows), lists_for(model, rows))
        np.testing.assert_allclose(alone, together[rows], rtol=1e-4)


@LINKED
def test_it_is_blind_to_the_numbering_of_a_secondarys_rows(name):
    plain = small_secondaries(1)
    order = np.random.default_rng(0).permutation(9)
    numbered = [replace(plain[0], features=plain[0].features.take(order), partner=np.argsort(order)[plain[0].partner])]
    found = [
        train(small_primary(), parties, SPLIT, small_config(METHODS[name])).predictions["test"]
        for parties in (plain, numbered)
    ]
    np.testing.assert_allclose(*found, rtol=1e-3)


@LINKED
def test_the_features_of_every_secondary_reach_the_prediction(name):
    model, lists = trained(name).model, lists_of(small_secondaries(2))
    before = model.predict(small_primary().features, lists)
    for group in model.groups:
        kept = group[0].features
        rows = small_features(len(kept), kept.numbers.shape[1], seed=77)
        group[0].features = FeatureTensors.of(rows, torch.device("cpu"))
        assert not np.allclose(model.predict(small_primary().features, lists), before)
        group[0].features = kept


@EVERY
def test_members_side_by_side_score_as_one_by_one(name):
    model = trained(name, members=3).model
    records = model.records(small_primary().features, lists_for(model))
    batch = model.primary.batch(records, np.arange(12))
    network = model.primary.model.network
    apart = torch.cat([member(batch) for member in methods.member_networks(network)], dim=1)
    torch.testing.assert_close(network(batch), apart)
    assert len(apart[0].unique()) == apart[0].numel()


@EVERY
def test_a_member_gets_the_gradient_of_its_own_loss_and_what_is_shared_the_mean(name):
    model = trained(name, epochs=1, members=3).model
    batch = model.primary.batch(model.records(small_primary().features, lists_for(model)), np.arange(12))
    network, labels = model.primary.model.network, torch.linspace(0, 1, 12)
    members, task = methods.member_networks(network), model.target.task
    task.loss(network(batch), labels).backward()
    together = {place: weight.grad.clone() for place, weight in network.named_parameters()}
    network.zero_grad()
    sum(task.loss(member(batch), labels) for member in members).backward()
    for place, weight in network.named_parameters():
        share = 3 if place.startswith("networks.0.lists") and getattr(members[0], "shared", ()) else 1
        torch.testing.assert_close(together[place] * share, weight.grad)


def weights_of(model):
    parts = [model.primary.model, *(holder.model for group in model.groups for holder in group)]
    return [parameter for part in parts for parameter in part.network.parameters()]


@EVERY
def test_every_weight_gets_a_gradient(name):
    """After some steps no tensor is what it was drawn as."""
    first, later = (trained(name, epochs=1, optimiser=AdamW(rate=rate)) for rate in (1e-12, 1e-2))
    for before, after in zip(weights_of(first.model), weights_of(later.model), strict=True):
        assert not torch.equal(before, after)


@EVERY
def test_it_asks_for_partners_as_it_says(name):
    method = METHODS[name]
    parties = trained(name, epochs=1).parts
    assert (set(parties) == {"primary"}) == (method.partners is PartnerRequirement.NONE)


@EVERY
def test_its_description_is_plain_and_its_own(name):
    descriptions = [describe(method) for method in METHODS.values()]
    assert descriptions.count(describe(METHODS[name])) == 1


@dataclass(frozen=True)
class NarrowCut(methods.Top1Sim):
    """A method from outside the package whose secondaries send seven numbers per row."""


def test_a_method_registered_from_outside_trains_over_grpc_with_the_secondary_network_it_names(tmp_path):
    with registry.METHODS.temporarily("narrow", NarrowCut, secondary_network=lambda local: replace(local, cut=7)):
        place = create_local_job(tmp_path / "job", training={"method": "narrow"})
        run_in_threads(place)
        weights, _ = RunStore(run_path(place.job, place.own(RENTALS)), place.job).load_weights(TRAINED_MODEL)
    assert weights["perceptron.others.0.weight"].shape[0] == 7
