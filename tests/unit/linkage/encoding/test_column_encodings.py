"""FEDERAL string filters: q-grams, keyed random hashing, salts."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import IdentifierColumn, StringFilter, column_encodings, normalise_text
from fedsim.privacy.keyed_prng import shake_words

SUBKEY = bytes(32)


DEFAULT = StringFilter()


def distances(texts, code=DEFAULT):
    bits = np.unpackbits(code.encode(IdentifierColumn(texts), SUBKEY), axis=1)
    return (bits[0] != bits).sum(axis=1)


def test_a_filter_is_the_positions_of_its_grams():
    code = StringFilter(q=2, hashes=3, bits=64, padded=False)
    expected = np.zeros(64, dtype=np.uint8)
    for gram in (b"an", b"nn", b"na"):
        expected[(shake_words(SUBKEY, [b"0:" + gram], 3)[0] % np.uint64(64)).astype(int)] = 1
    assert np.unpackbits(code.encode(IdentifierColumn(["Anna"]), SUBKEY)).tolist() == expected.tolist()


def test_nearer_names_have_nearer_filters():
    same, typo, other = distances(["Katherine Johnson", "Katharine Johnson", "Dorothy Vaughan"])
    assert same == 0
    assert 0 < typo < other / 3


def test_padding_makes_the_first_letter_count_like_others():
    plain, padded = StringFilter(padded=False), StringFilter()
    assert distances(["anna", "hanna"], plain)[1] < distances(["anna", "hanna"], padded)[1]


def test_no_text_can_pass_for_a_padded_one():
    grams = StringFilter(q=3).grams("ab")
    assert len(grams) == 4
    assert all(any(0xD800 <= ord(letter) <= 0xDFFF for letter in gram) for gram in grams)


@pytest.mark.parametrize(
    ("text", "alike"), [("JOSÉ", "jose\u0301"), ("Straße", "STRASSE"), ("a \t\n b", "a b"), ("ﬁx", "fix")]
)
def test_normalised_texts_have_equal_filters(text, alike):
    assert distances([text, alike])[1] == 0
    assert distances([text, alike], StringFilter(normalised=False))[1] > 0


def test_short_texts_have_filters_too():
    assert StringFilter(q=4, padded=False).grams("ab") == {"ab"}
    assert StringFilter(q=1).grams("a") == {"a"}


def test_every_position_of_a_gram_is_drawn_anew():
    # Double hashing, (h1 + i * h2) mod bits, would make the third position follow from the first two.
    positions = shake_words(SUBKEY, [str(gram).encode() for gram in range(4000)], 3) % np.uint64(1024)
    first, second, third = positions.astype(int).T
    assert ((third - second) % 1024 == (second - first) % 1024).mean() < 0.005


def test_positions_are_uniform():
    positions = shake_words(SUBKEY, [str(gram).encode() for gram in range(4000)], 16) % np.uint64(64)
    counts = np.bincount(positions.ravel().astype(int), minlength=64)
    assert ((counts - 1000) ** 2 / 1000).sum() < 110  # chi-squared, 63 degrees of freedom: once in 5,000 keys


def test_another_salt_gives_an_unrelated_filter():
    code = StringFilter()
    texts, salts = IdentifierColumn(["Ada Lovelace"] * 3), IdentifierColumn([1815, 1815, 1816])
    bits = np.unpackbits(code.encode_salted(texts, salts, SUBKEY), axis=1)
    share = bits[0].mean()
    assert (bits[0] == bits[1]).all()
    assert (bits[0] & bits[2]).mean() == pytest.approx(share**2, abs=0.03)


def test_salt_and_gram_do_not_run_into_each_other():
    code = StringFilter(q=2, padded=False)
    filters = code.encode_salted(IdentifierColumn(["bc", "cc"]), IdentifierColumn(["a", "ab"]), SUBKEY)
    other = code.encode_salted(IdentifierColumn(["ab"]), IdentifierColumn(["1:"]), SUBKEY)
    assert (filters[0] != filters[1]).any()
    assert (filters[0] != other).any()


def test_filters_larger_than_a_tile_are_the_same(monkeypatch):
    column = IdentifierColumn([f"person number {number}" for number in range(50)])
    whole = StringFilter().encode(column, SUBKEY)
    monkeypatch.setattr(column_encodings, "TILE_BYTES", 1024 * 7)
    assert (StringFilter().encode(column, SUBKEY) == whole).all()


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "empty-text"), (" \t", "empty-text"), ("canary\ud800", "not-unicode"), (None, "missing-cell")],
)
def test_a_text_that_cannot_be_encoded_is_named_by_row_and_never_shown(text, code):
    with pytest.raises(InputError) as caught:
        StringFilter().encode(IdentifierColumn(["a", text], "name"), SUBKEY)
    assert (caught.value.code, caught.value.column, caught.value.row) == (code, "name", 2)
    assert "canary" not in str(caught.value)


def test_an_empty_salt_is_named_by_its_own_column():
    with pytest.raises(InputError) as caught:
        StringFilter().encode_salted(IdentifierColumn(["a"], "name"), IdentifierColumn([" "], "born"), SUBKEY)
    assert (caught.value.code, caught.value.column) == ("empty-text", "born")


@pytest.mark.parametrize("change", [{"q": 0}, {"q": 99}, {"hashes": 0}, {"hashes": 1.0}, {"bits": 1001}, {"padded": 1}])
def test_a_setting_outside_its_range_is_refused_by_name(change):
    with pytest.raises(SettingError) as caught:
        StringFilter(**change)
    assert caught.value.name == next(iter(change))


def test_normalise_is_what_it_says():
    assert normalise_text("  Élan\u00a0VITAL ") == "élan vital"
