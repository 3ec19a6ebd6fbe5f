"""Tensor files return what was written, and any change is noticed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedsim.errors import FileError
from fedsim.storage.tensor_file import load_tensors, save_tensors, write_safetensors

KIND = "fedsim example 1"
TENSORS = {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "a": np.zeros((0, 4), np.float32)}
FACTS = {"mean": (0.1).hex(), "name": "rents"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "file", KIND, TENSORS, FACTS)
    return tmp_path / "file"


def test_tensors_and_facts_survive_their_file(path: Path):
    tensors, facts = load_tensors(path, KIND)
    assert facts == FACTS
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(tensors[name], tensor)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_equal_content_gives_equal_bytes_in_any_order(path: Path):
    save_tensors(path.with_name("again"), KIND, dict(reversed(TENSORS.items())), FACTS)
    assert path.with_name("again").read_bytes() == path.read_bytes()


def test_a_transposed_array_is_stored_as_it_is_seen(path: Path):
    save_tensors(path, KIND, {"t": TENSORS["b"].T}, {})
    np.testing.assert_array_equal(load_tensors(path, KIND)[0]["t"], TENSORS["b"].T)


def test_another_kind_and_a_file_without_facts_are_refused(path: Path):
    with pytest.raises(FileError) as caught:
        load_tensors(path, "fedsim example 2")
    assert (caught.value.code, caught.value.kind) == ("damaged-file", "fedsim example 2")
    write_safetensors(path, TENSORS, {"format": KIND})
    with pytest.raises(FileError):
        load_tensors(path, KIND)


def test_changed_facts_are_noticed(path: Path):
    metadata = {"format": KIND, "facts": json.dumps({**FACTS, "name": "sales"}), "sha256": "0" * 64}
    path.write_bytes(safetensors.numpy.save(TENSORS, metadata))
    with pytest.raises(FileError) as caught:
        load_tensors(path, KIND)
    assert caught.value.code == "damaged-file"
