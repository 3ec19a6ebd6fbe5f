"""Files of encoded tables: whole, or refused before anything is decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedsim.errors import FileError
from fedsim.linkage.link_files import load_encoded, save_encoded
from fedsim.types import EncodedTable


def table(n_rows=7, n_bits=128) -> EncodedTable:
    ones = np.random.default_rng(0).integers(0, 2, (n_rows, n_bits), dtype=np.uint8)
    return EncodedTable(np.packbits(ones, axis=1), n_bits, "ab" * 32)


@pytest.mark.parametrize(("n_rows", "n_bits"), [(7, 128), (0, 8), (3, 13), (1, 1)])
def test_a_table_survives_its_file(tmp_path: Path, n_rows, n_bits):
    path, saved = tmp_path / "people.enc", table(n_rows, n_bits)
    save_encoded(saved, path)
    loaded = load_encoded(path)
    assert (loaded.bits == saved.bits).all()
    assert (loaded.n_bits, loaded.fingerprint, len(loaded)) == (n_bits, "ab" * 32, n_rows)
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_may_be_text(tmp_path: Path):
    save_encoded(table(), str(tmp_path / "people.enc"))
    assert len(load_encoded(str(tmp_path / "people.enc"))) == 7


def test_other_programs_can_read_the_file(tmp_path: Path):
    save_encoded(table(), tmp_path / "people.enc")
    assert (safetensors.numpy.load_file(tmp_path / "people.enc")["filters"] == table().bits).all()


def test_equal_tables_give_equal_files(tmp_path: Path):
    for name in ("one.enc", "two.enc"):
        save_encoded(table(), tmp_path / name)
    assert (tmp_path / "one.enc").read_bytes() == (tmp_path / "two.enc").read_bytes()


def test_no_file_cut_short_is_taken_for_whole(tmp_path: Path):
    path = tmp_path / "people.enc"
    save_encoded(table(), path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError):
            load_encoded(path)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path):
    path, rng = tmp_path / "people.enc", np.random.default_rng(1)
    save_encoded(table(), path)
    whole = path.read_bytes()
    for place, bit in zip(rng.integers(len(whole), size=2000), rng.integers(8, size=2000), strict=True):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
        with pytest.raises(FileError):
            load_encoded(path)


METADATA = '{"__metadata__": {"format": "fedsim encoded table 1"%s}%s}'
FOREIGN = [
    b"",
    b"name,age\nAda,36\n",
    b"\xff" * 64,
    (1 << 62).to_bytes(8, "little") + b"{}",
    (4096).to_bytes(8, "little") + b"[" * 4096,
    (2).to_bytes(8, "little") + b"{}",
    (4).to_bytes(8, "little") + b"null",
]
FORGED = [
    ("", ""),
    (', "n_bits": "8"', ', "filters": {"shape": [1e999, 1]}'),
    (', "n_bits": "8"', ', "filters": {"shape": [-1, -1]}'),
    (', "n_bits": "8"', ', "filters": {"shape": [999999999999, 1]}'),
    (', "n_bits": "-8"', ', "filters": {"shape": [0, 1]}'),
    (', "n_bits": "many"', ', "filters": {"shape": [0, 1]}'),
    (', "n_bits": "8"', ', "filters": [1, 2]'),
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path: Path, content):
    path = tmp_path / "people.enc"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        load_encoded(path)
    assert caught.value.code == "damaged-file"


@pytest.mark.parametrize("forged", FORGED)
def test_a_header_that_lies_is_refused(tmp_path: Path, forged):
    path, header = tmp_path / "people.enc", (METADATA % forged).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    with pytest.raises(FileError) as caught:
        load_encoded(path)
    assert caught.value.code == "damaged-file"


def test_spare_bits_must_be_zero(tmp_path: Path):
    path = tmp_path / "people.enc"
    save_encoded(EncodedTable(np.array([[255]], np.uint8), 7, "ab" * 32), path)
    with pytest.raises(FileError) as caught:
        load_encoded(path)
    assert caught.value.code == "damaged-file"


def test_a_missing_file_and_a_missing_folder_are_file_errors(tmp_path: Path):
    with pytest.raises(FileError) as caught:
        load_encoded(tmp_path / "absent.enc")
    assert caught.value.code == "not-readable"
    with pytest.raises(FileError) as caught:
        save_encoded(table(), tmp_path / "absent" / "people.enc")
    assert caught.value.code == "not-writable"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch):
    path = tmp_path / "people.enc"
    save_encoded(table(), path)

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", disk_full)
    with pytest.raises(FileError):
        save_encoded(table(n_rows=1), path)
    assert list(tmp_path.iterdir()) == [path]
    assert len(load_encoded(path)) == 7
