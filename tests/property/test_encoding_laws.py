"""Laws of filters that hold for all values, keys and texts."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from fedsim.linkage.encoding import (
    IdentifierColumn,
    Key,
    NumericFilter,
    Schema,
    SchemaField,
    StringFilter,
    normalise_text,
)
from reference_distances import hamming_of_ranks

subkeys = st.binary(min_size=32, max_size=32)
numbers = st.floats(0, 100)
shares = st.floats(0, 1)
sizes = st.sampled_from([8, 64, 520])
codes = st.builds(NumericFilter, st.just(0.0), st.just(100.0), st.floats(0.5, 120), sizes)
narrow_codes = st.builds(NumericFilter, st.just(0.0), st.just(100.0), st.floats(0.5, 49), sizes)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(normalise_text)


def ones(filters):
    return np.unpackbits(filters, axis=1).astype(int)


def rank_distance(code, subkey, left, right):
    return int(hamming_of_ranks(*code.ranks(IdentifierColumn([left, right]), subkey)))


@given(codes, subkeys, st.lists(numbers, min_size=1, max_size=12))
def test_rank_hamming_is_the_hamming_distance_of_the_filters_on_every_pair(code, subkey, values):
    ranks, bits = code.ranks(IdentifierColumn(values), subkey), ones(code.encode(IdentifierColumn(values), subkey))
    assert (hamming_of_ranks(ranks[:, None], ranks) == (bits[:, None] != bits).sum(axis=2)).all()


@given(codes, subkeys, numbers, shares, shares)
def test_moving_away_never_brings_filters_nearer_up_to_twice_the_threshold(code, subkey, left, some, more):
    middle, right = (left + min(2 * code.threshold, 100 - left) * share for share in sorted([some, more]))
    far = rank_distance(code, subkey, left, right)
    assert rank_distance(code, subkey, left, middle) <= far
    assert rank_distance(code, subkey, middle, right) <= far


@given(narrow_codes, subkeys, shares, shares)
def test_beyond_twice_the_threshold_filters_share_nothing(code, subkey, start, beyond):
    room = 100 - 2.001 * code.threshold
    left = start * room
    right = min(100.0, left + 2.001 * code.threshold + beyond * (room - left))
    first, second = ones(code.encode(IdentifierColumn([left, right]), subkey))
    assert not (first & second).any()
    assert rank_distance(code, subkey, left, right) == first.sum() + second.sum()


@given(subkeys, st.lists(numbers, min_size=1, max_size=6))
def test_equal_numbers_have_equal_filters(subkey, values):
    code = NumericFilter(0, 100, 5)
    assert (
        code.encode(IdentifierColumn(values), subkey) == code.encode(IdentifierColumn(np.array(values)), subkey)
    ).all()


@given(subkeys, subkeys, numbers)
def test_another_key_gives_an_unrelated_numeric_filter(subkey, other, value):
    assume(subkey != other)
    code = NumericFilter(0, 100, 30, bits=2048)
    first, second = (ones(code.encode(IdentifierColumn([value]), key))[0] for key in (subkey, other))
    assert abs((first & second).mean() - first.mean() * second.mean()) < 0.05


@given(subkeys, subkeys, texts)
def test_another_key_gives_an_unrelated_text_filter(subkey, other, text):
    assume(subkey != other)
    first, second = (ones(StringFilter(bits=2048).encode(IdentifierColumn([text]), key))[0] for key in (subkey, other))
    assert abs((first & second).mean() - first.mean() * second.mean()) < 0.05


@st.composite
def typos(draw):
    text = draw(texts)
    place = draw(st.integers(0, len(text) - 1))
    letter = draw(st.sampled_from(["", "x", text[place] + "y"]))
    return text, text[:place] + letter + text[place + 1 :]


@given(subkeys, typos(), st.integers(1, 5), st.integers(1, 30))
def test_one_typo_changes_few_bits(subkey, pair, q, hashes):
    assume(pair[1])
    code = StringFilter(q=q, hashes=hashes, normalised=False)
    first, second = ones(code.encode(IdentifierColumn(pair), subkey))
    assert (first != second).sum() <= 2 * q * hashes


@given(subkeys, texts, st.integers(1, 5), st.integers(1, 30))
def test_a_text_filter_is_neither_empty_nor_fuller_than_its_grams(subkey, text, q, hashes):
    code = StringFilter(q=q, hashes=hashes)
    filled = ones(code.encode(IdentifierColumn([text]), subkey)).sum()
    assert 1 <= filled <= hashes * len(code.grams(normalise_text(text)))


@given(texts)
def test_normalising_twice_changes_nothing(text):
    assert normalise_text(normalise_text(text)) == normalise_text(text)


@given(st.lists(st.tuples(texts, numbers), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_permuting_rows_permutes_filters(rows, random):
    schema, key = (
        Schema([SchemaField("name", StringFilter()), SchemaField("age", NumericFilter(0, 100, 5))]),
        Key(bytes(32)),
    )
    order = random.sample(range(len(rows)), len(rows))
    columns = {"name": [name for name, _ in rows], "age": [age for _, age in rows]}
    shuffled = {name: [values[row] for row in order] for name, values in columns.items()}
    assert (schema.encode(shuffled, key).bits == schema.encode(columns, key).bits[order]).all()
