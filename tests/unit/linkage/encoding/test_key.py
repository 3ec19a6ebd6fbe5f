"""The shared secret: stored safely, never shown, split into independent subkeys."""

from __future__ import annotations

import hashlib
import hmac
import stat
import traceback
from pathlib import Path

import pytest

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.linkage.encoding import Key

SECRET = bytes(range(32))


def test_a_subkey_is_hkdf_sha256_of_the_secret():
    extracted = hmac.digest(b"fedsim linkage key 1", SECRET, hashlib.sha256)
    assert Key(SECRET).derive("age") == hmac.digest(extracted, b"age\x01", hashlib.sha256)


def test_a_key_survives_writing_and_reading(tmp_path: Path):
    key, path = Key.generate(), tmp_path / "project.key"
    key.write(path)
    assert Key.read(path) == key
    assert [file.name for file in tmp_path.iterdir()] == ["project.key"]


def test_a_path_may_be_text(tmp_path: Path):
    Key(SECRET).write(str(tmp_path / "project.key"))
    assert Key.read(str(tmp_path / "project.key")) == Key(SECRET)


def test_only_the_owner_may_read_a_key_file(tmp_path: Path):
    path = tmp_path / "project.key"
    Key(SECRET).write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_file_is_never_overwritten(tmp_path: Path):
    path = tmp_path / "project.key"
    Key(SECRET).write(path)
    with pytest.raises(FileError) as caught:
        Key.generate().write(path)
    assert caught.value.code == "file-exists"
    assert Key.read(path) == Key(SECRET)


@pytest.mark.parametrize("text", ["", "00" * 31, "zz" * 32, "name,age\n", "ä" * 64])
def test_a_file_that_holds_no_key_is_refused_without_quoting_it(tmp_path: Path, text: str):
    path = tmp_path / "project.key"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError) as caught:
        Key.read(path)
    assert caught.value.code == "bad-key-file"
    assert "zzzz" not in "".join(traceback.format_exception(caught.value))


def test_a_missing_key_file_is_a_file_error(tmp_path: Path):
    with pytest.raises(FileError) as caught:
        Key.read(tmp_path / "absent.key")
    assert caught.value.code == "not-readable"


def test_a_key_cannot_be_written_into_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(FileError) as caught:
        Key(SECRET).write(tmp_path / "absent" / "project.key")
    assert caught.value.code == "not-writable"


@pytest.mark.parametrize("secret", [b"", bytes(31), "0" * 64])
def test_a_short_secret_is_refused(secret: bytes):
    with pytest.raises(SettingError) as caught:
        Key(secret)
    assert caught.value.code == "key-too-short"


def test_a_key_shows_nothing_of_itself():
    shown = f"{Key(SECRET)} {Key(SECRET)!r} {[Key(SECRET)]}"
    assert SECRET.hex()[:8] not in shown
    assert str(SECRET)[2:10] not in shown


def test_every_label_has_its_own_subkey():
    subkeys = {Key(SECRET).derive(label) for label in ("", "a", "b", "ab", "a b")}
    assert len(subkeys) == 5
    assert all(len(subkey) == 32 and subkey != SECRET for subkey in subkeys)


def test_a_key_that_everybody_may_read_is_refused(tmp_path):
    Key(SECRET).write(tmp_path / "linkage.key")
    (tmp_path / "linkage.key").chmod(0o604)
    with raises(FileError, "exposed-key"):
        Key.read(tmp_path / "linkage.key")
