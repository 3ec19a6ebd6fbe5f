"""Checkpoints are whole or not there, and belong to one job."""

from __future__ import annotations

import json
import resource

import pytest
import torch

from fedsim.errors import FileError
from fedsim.splitnn.checkpoint_store import CheckpointStore

JOB = {"party": "primary", "config": {"batch": 128, "seed": 1}}
TENSORS = {"now/weight": torch.arange(6.0).view(2, 3), "now/bias": torch.zeros(3, dtype=torch.float64)}


@pytest.fixture
def shelf(tmp_path):
    return CheckpointStore(tmp_path / "primary", JOB)


@pytest.fixture
def full_disk():
    """No file may grow beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_saved_is_loaded_bit_for_bit(shelf):
    shelf.save(7, TENSORS, {"history": [1, 2]})
    tensors, facts = shelf.load(7)
    assert facts == {"history": [1, 2]}
    assert all(
        torch.equal(tensors[name], tensor) and tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )


def test_older_checkpoints_go_when_told(shelf):
    for step in (5, 10, 15):
        shelf.save(step, TENSORS, {})
    shelf.forget_before(10)
    assert shelf.steps() == [10, 15]


def test_a_checkpoint_of_another_configuration_is_refused_by_name(shelf):
    shelf.save(7, TENSORS, {})
    other = CheckpointStore(shelf.folder, {"party": "primary", "config": {"batch": 512, "seed": 1}})
    with pytest.raises(FileError, match=r"another job: job\.config\.batch is 512 here, 128 there"):
        other.load(7)


def test_a_checkpoint_of_another_version_is_refused(shelf):
    shelf.save(7, TENSORS, {})
    place = shelf.folder / "step-000000007" / "facts.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "format": "fedsim checkpoint 9"}))
    with pytest.raises(FileError, match="written as 'fedsim checkpoint 9'"):
        shelf.load(7)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_refused(shelf, damage):
    shelf.save(7, TENSORS, {})
    place = shelf.folder / "step-000000007" / "tensors.safetensors"
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    if damage == "remove":
        place.unlink()
    else:
        place.write_bytes(content if damage == "flip" else content[:-8])
    with pytest.raises(FileError, match="step-000000007"):
        shelf.load(7)


@pytest.mark.usefixtures("full_disk")
def test_the_first_checkpoint_on_a_full_disk_says_so(shelf):
    with pytest.raises(FileError, match=r"step 7 .*none was kept before"):
        shelf.save(7, TENSORS, {})
    assert shelf.steps() == []


def test_a_full_disk_leaves_the_previous_checkpoint_intact(shelf, request):
    shelf.save(7, TENSORS, {"history": [1]})
    request.getfixturevalue("full_disk")
    with pytest.raises(FileError, match="the checkpoint of step 7 is intact: make room"):
        shelf.save(14, TENSORS, {})
    assert shelf.steps() == [7]
    assert torch.equal(shelf.load(7)[0]["now/weight"], TENSORS["now/weight"])


def test_what_a_killed_run_left_half_written_is_no_checkpoint(shelf):
    shelf.save(7, TENSORS, {})
    (shelf.folder / ".step-000000014.part").mkdir()
    assert shelf.steps() == [7]
    shelf.save(14, TENSORS, {})
    assert shelf.steps() == [7, 14]
