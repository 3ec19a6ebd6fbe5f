"""Checkpoints are whole or not there, and belong to one job."""

from __future__ import annotations

import json
import resource

import pytest
import torch

from error_fixtures import raises
from fedsim.errors import FedSimError, FileError
from fedsim.splitnn.party_model import CheckpointStore, DamagedCheckpoint

JOB = {"party": "primary", "config": {"batch": 128, "seed": 1}}
TENSORS = {"now/weight": torch.arange(6.0).view(2, 3), "now/bias": torch.zeros(3, dtype=torch.float64)}


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "primary", JOB)


@pytest.fixture
def full_disk():
    """No file may grow beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_saved_is_loaded_bit_for_bit(store):
    store.save(7, TENSORS, {"history": [1, 2]})
    tensors, facts = store.load(7)
    assert facts == {"history": [1, 2]}
    assert all(
        torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(store, value):
    store.save(7, TENSORS, {})
    with raises(FedSimError, "not-finite", step=8):
        store.save(8, {**TENSORS, "now/bias": torch.tensor([0.0, value])}, {})
    assert store.steps() == [7]


def test_older_checkpoints_go_when_told(store):
    for step in (5, 10, 15):
        store.save(step, TENSORS, {})
    store.forget_before(10)
    assert store.steps() == [10, 15]


def test_a_checkpoint_of_another_configuration_is_refused_by_name(store):
    store.save(7, TENSORS, {})
    other = CheckpointStore(store.folder, {"party": "primary", "config": {"batch": 512, "seed": 1}})
    with pytest.raises(FileError) as caught:
        other.load(7)
    assert caught.value.code == "checkpoint-of-another-job"
    assert caught.value.difference == "job.config.batch is 512 here, 128 there"


def test_a_checkpoint_of_another_version_is_refused(store):
    store.save(7, TENSORS, {})
    place = store.folder / "step-000000007" / "facts.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "format": "fedsim checkpoint 9"}))
    with pytest.raises(FileError) as caught:
        store.load(7)
    assert caught.value.code == "checkpoint-format"


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_refused(store, damage):
    store.save(7, TENSORS, {})
    place = store.folder / "step-000000007" / "tensors.safetensors"
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    if damage == "remove":
        place.unlink()
    else:
        place.write_bytes(content if damage == "flip" else content[:-8])
    with pytest.raises(DamagedCheckpoint) as caught:
        store.load(7)
    assert caught.value.code == "damaged-checkpoint"


@pytest.mark.usefixtures("full_disk")
def test_the_first_checkpoint_on_a_full_disk_says_so(store):
    with pytest.raises(FileError) as caught:
        store.save(7, TENSORS, {})
    assert (caught.value.code, caught.value.last) == ("checkpoint-not-written", None)
    assert store.steps() == []


def test_a_full_disk_leaves_the_previous_checkpoint_intact(store, request):
    store.save(7, TENSORS, {"history": [1]})
    request.getfixturevalue("full_disk")
    with pytest.raises(FileError) as caught:
        store.save(14, TENSORS, {})
    assert (caught.value.code, caught.value.last) == ("checkpoint-not-written", 7)
    assert store.steps() == [7]
    assert torch.equal(store.load(7)[0]["now/weight"], TENSORS["now/weight"])


def test_what_a_killed_run_left_half_written_is_no_checkpoint(store):
    store.save(7, TENSORS, {})
    (store.folder / ".step-000000014.part").mkdir()
    assert store.steps() == [7]
    store.save(14, TENSORS, {})
    assert store.steps() == [7, 14]
