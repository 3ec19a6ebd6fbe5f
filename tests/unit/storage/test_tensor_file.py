"""Tensor files return what was written, and any change is noticed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedsim.errors import FileError
from fedsim.storage import tensor_file
from fedsim.storage.tensor_file import load_tensors, save_tensors, scratch_array, write_safetensors

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


def test_mapped_arrays_equal_those_in_memory_and_never_change_the_file(path: Path):
    write = {**TENSORS, "c": np.array([True, False]), "d": np.arange(3, dtype=np.uint64), "e": np.ones(2, np.float16)}
    save_tensors(path, KIND, write, FACTS)
    (plain, facts), (mapped, again) = load_tensors(path, KIND), load_tensors(path, KIND, mapped=True)
    assert facts == again
    for name, array in plain.items():
        assert mapped[name].dtype == array.dtype
        np.testing.assert_array_equal(mapped[name], array)
    mapped["b"][:] = 7
    np.testing.assert_array_equal(load_tensors(path, KIND, mapped=True)[0]["b"], TENSORS["b"])
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(FileError) as caught:
        load_tensors(path, KIND, mapped=True)
    assert caught.value.code == "damaged-file"


def test_a_file_has_the_bytes_that_the_library_would_write(path: Path):
    content = safetensors.numpy.save(TENSORS)
    write_safetensors(path, TENSORS, {})
    assert path.read_bytes()[-24:] == content[-24:]
    np.testing.assert_array_equal(safetensors.numpy.load(path.read_bytes())["b"], TENSORS["b"])


def test_a_large_scratch_array_lies_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert not isinstance(scratch_array((2, 3), np.int32, tmp_path), np.memmap)
    monkeypatch.setattr(tensor_file, "MAPPED_BYTES", 1)
    found = scratch_array((2, 3), np.int32, tmp_path / "run")
    found[:] = 7
    assert isinstance(found, np.memmap)
    assert found.sum() == 42
    assert not any((tmp_path / "run").iterdir())
    assert not isinstance(scratch_array((2, 3), np.int32, None), np.memmap)
    (tmp_path / "file").touch()
    with pytest.raises(FileError) as caught:
        scratch_array((2, 3), np.int32, tmp_path / "file")
    assert caught.value.code == "not-writable"
