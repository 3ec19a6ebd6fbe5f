"""References to secrets in files, environment variables and key servers."""

from __future__ import annotations

import pytest

from error_fixtures import raises
from fedsim.errors import FileError, SettingError
from fedsim.linkage.encoding import Key
from fedsim.storage.files import SecretReference

SECRET = "5eC" + "0" * 61


@pytest.mark.parametrize("text", ["linkage.key", "./env:KEY", "/keys/vault", "environment"])
def test_what_has_no_scheme_is_the_path_of_a_file(text: str) -> None:
    assert SecretReference.parse(text) is None


@pytest.mark.parametrize(
    "text", ["env:?", "env:A B", "env:A-B", "vault:secret/x", "vault:#x", "vault:a/../b#x", "vault:a#"]
)
def test_a_reference_that_is_not_one_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(SettingError) as caught:
        SecretReference.parse(text)
    assert caught.value.code == "bad-reference"
    assert text not in str(caught.value)


def test_a_key_is_read_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_LINKAGE_KEY", f"{SECRET}\n")
    reference = SecretReference.parse("env:FEDSIM_LINKAGE_KEY")
    assert reference is not None
    assert Key.read(reference).secret == bytes.fromhex(SECRET)
    assert SECRET not in repr(reference)


def test_a_variable_that_is_not_set_and_one_that_is_no_key_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(FileError, "no-variable"):
        SecretReference(variable="FEDSIM_MISSING").read()
    monkeypatch.setenv("FEDSIM_LINKAGE_KEY", f"{SECRET}?")
    with pytest.raises(FileError) as caught:
        Key.read(SecretReference(variable="FEDSIM_LINKAGE_KEY"))
    assert caught.value.code == "bad-key-file"
    assert SECRET not in f"{caught.value} {caught.value.__cause__}"
