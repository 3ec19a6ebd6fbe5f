"""The secret of a party is made once, and only its owner may read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedsim.errors import FileError
from fedsim.storage.files import load_or_create_secret


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path):
    path = tmp_path / "secret"
    made = load_or_create_secret(path)
    assert len(made) == 32
    assert load_or_create_secret(str(path)) == made != load_or_create_secret(tmp_path / "other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other", "secret"]


@pytest.mark.parametrize(
    "content", [b"", b"ca11ab1e", b"z" * 64, b"ca11ab1e" * 9, b"\xff" * 64, b"ca11ab1e" * 7 + b"c"]
)
def test_a_short_or_garbled_secret_is_refused_and_kept(tmp_path: Path, content):
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        load_or_create_secret(path)
    assert caught.value.code == "bad-secret"
    assert path.read_bytes() == content
    assert "ca11ab1e" not in str(caught.value)


def test_a_secret_that_cannot_be_read_or_written_is_a_file_error(tmp_path: Path):
    with pytest.raises(FileError) as caught:
        load_or_create_secret(tmp_path)
    assert caught.value.code == "not-readable"
    with pytest.raises(FileError) as caught:
        load_or_create_secret(tmp_path / "absent" / "secret")
    assert caught.value.code == "not-writable"


def test_two_processes_that_create_a_secret_at_once_have_the_same(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    first = load_or_create_secret(path)
    monkeypatch.setattr(type(path), "exists", lambda self: False)  # it looked before the first had written
    assert load_or_create_secret(path) == first
