"""The journal of token values: shared by jobs, complete up to the last whole block, refused if it was changed."""

import os

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.linkage.direct import CodeTokens, NumberTokens, TokenField, TokenSchema, oprf
from fedsim.linkage.direct.exchange import TokenValues

SCHEMA = TokenSchema((TokenField(("code",), CodeTokens()), TokenField(("age",), NumberTokens(width=1.0))))
PUBLIC = oprf.SecretKey.derive(bytes(32), b"tests").public
TOKENS = np.arange(100, 130, dtype=np.uint64)
FIELD = np.arange(30) % 2


def value_of(field, token):
    return bytes([field, token % 256]) * 32


def add(values, tokens):
    field = (tokens % 2).astype(np.int64)
    pairs = zip(field.tolist(), tokens.tolist(), strict=True)
    values.add(field, tokens, [value_of(*pair) for pair in pairs])


def known(values, tokens):
    """Return which tokens are known, and check their values."""
    found = set()
    for field in (0, 1):
        here = np.setdiff1d(tokens[tokens % 2 == field], values.missing(field, tokens))
        assert values.take(field, here) == [value_of(field, token)[:32] for token in here.tolist()]
        found |= set(here.tolist())
    return found


@pytest.fixture(name="path")
def values_path(tmp_path):
    return tmp_path / "values"


def opened(path):
    return TokenValues(SCHEMA, PUBLIC, path)


@pytest.mark.parametrize("kept", [True, False])
def test_values_are_found_by_field_after_any_order_of_additions(path, kept):
    values, rng = opened(path if kept else None), np.random.default_rng(0)
    for part in np.array_split(rng.permutation(TOKENS), 4):
        add(values, part)
        assert known(values, part) == set(part.tolist())
    assert known(opened(path) if kept else values, TOKENS) == set(TOKENS.tolist())
    assert values.missing(0, np.array([1, 7, 7], np.uint64)).tolist() == [1, 7]


def test_two_jobs_at_the_same_time_keep_the_values_of_both_and_see_each_others(path):
    one, two = opened(path), opened(path)
    add(one, TOKENS[:10])
    add(two, TOKENS[5:20])
    assert known(one, TOKENS) == known(two, TOKENS) == known(opened(path), TOKENS) == set(TOKENS[:20].tolist())
    size = path.stat().st_size
    add(one, TOKENS[:20])
    assert path.stat().st_size == size


def test_an_addition_appends_what_is_new_and_no_more(path):
    values = opened(path)
    add(values, TOKENS[:20])
    before = path.read_bytes()
    add(values, TOKENS[18:22])
    assert path.read_bytes().startswith(before)
    assert path.stat().st_size == len(before) + 3 * 48
    assert path.stat().st_mode & 0o077 == 0


def test_an_incomplete_block_is_cut_off_wherever_its_writer_was_killed(path):
    add(opened(path), TOKENS[:3])
    first = path.stat().st_size
    add(opened(path), TOKENS[3:6])
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        values = opened(path)
        assert known(values, TOKENS) == (set(TOKENS[:3].tolist()) if size >= first else set())
        add(values, TOKENS[6:8])
        assert set(TOKENS[6:8].tolist()) <= known(opened(path), TOKENS)
    path.write_bytes(content[:first] + bytes(200))  # the disk noted the new size only
    assert known(opened(path), TOKENS) == set(TOKENS[:3].tolist())


def test_two_thousand_changed_files_give_only_errors_or_fewer_values(path):
    for part in np.array_split(TOKENS, 3):
        add(opened(path), part)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for number in range(2000):
        changed, at = bytearray(content), int(rng.integers(len(content)))
        if number % 3:
            changed[at] ^= 1 << int(rng.integers(8))
        else:
            del changed[at : at + int(rng.integers(1, 99))]
        path.write_bytes(changed)
        try:
            assert known(opened(path), TOKENS) <= set(TOKENS[:20].tolist())
        except FileError as error:
            assert error.code in {"damaged-file", "other-key"}  # noqa: PT017
    path.write_bytes(content)
    values = opened(path)
    os.truncate(path, 100)
    with raises(FileError, "damaged-file"):
        add(values, TOKENS)
