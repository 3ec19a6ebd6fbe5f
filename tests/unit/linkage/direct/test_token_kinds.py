"""Tokens of every kind: against slow, plain definitions, and what similar and different cells have in common."""

from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from error_fixtures import raises
from fedsim.errors import InputError, SettingError
from fedsim.linkage.direct import CodeTokens, DateTokens, NumberTokens, PlaceTokens, TextTokens, TokenField, TokenSchema
from fedsim.linkage.direct.token_kinds import ALONE, DELETED, JOINED, SAMPLED, WHOLE, SharedTokens, hash_texts, mix
from fedsim.linkage.encoding.column_encodings import IdentifierColumn
from fedsim.linkage.words import LEGAL_FORMS, WordRules
from fedsim.privacy.geodesy import great_circle_metres
from fedsim.registry import TOKENS

MASK = 2**64 - 1
WORDS = st.sampled_from(["marine", "belgor", "gor", "bel", "and", "ltd", "limited", "x1", "ångström", "日本", "gmbh"])
TEXTS = st.lists(WORDS, max_size=5).map(" ".join)


def column(values, name="name"):
    return IdentifierColumn(values, name)


def slow_mix(*parts):
    state = 0
    for part in parts:
        state = ((state ^ (part & MASK)) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def slow_hash(text):
    return int(hash_texts([text])[0])


def slow_tokens(kind, text):
    """Return the tokens of a text by part, one at a time."""
    sequence = WordRules(legal_forms=tuple(LEGAL_FORMS)).split(text)
    words = list(dict.fromkeys(sequence))
    if not words:
        return {}
    features = []
    for word in words:
        padded = f" {word} "
        features += [padded[at : at + 3] for at in range(len(padded) - 2)]
    features = [slow_hash(feature) for feature in [*dict.fromkeys(features), *(f"word {word}" for word in words)]]
    samples = [min((slow_mix(feature, at), place) for place, feature in enumerate(features)) for at in range(200)]
    chosen = [features[place] for _, place in samples]
    joined = dict.fromkeys([a + b for a, b in pairwise(sequence)] + words)
    deleted = {}
    for word in sorted((w for w in words if len(w) >= 5 and w.isalpha()), key=lambda w: (-len(w), w))[:2]:
        deleted |= dict.fromkeys([word] + [word[:at] + word[at + 1 :] for at in range(len(word))])
    return {
        SAMPLED: {slow_mix(SAMPLED, at, chosen[2 * at], chosen[2 * at + 1]) for at in range(kind.samples)},
        JOINED: {slow_mix(JOINED, slow_hash(word)) for word in list(joined)[: kind.words]},
        DELETED: {slow_mix(DELETED, slow_hash(word)) for word in list(deleted)[: kind.deletions]},
        WHOLE: {slow_mix(WHOLE, slow_hash(" ".join(sorted(sequence))))},
    }


@settings(max_examples=40)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_tokens_of_texts_are_those_of_the_slow_definition(texts):
    kind = TextTokens(samples=5, words=4, deletions=9)
    found = kind.row_tokens([column(texts)])
    for row, text in enumerate(texts):
        own = found.take(found.record == row)
        expected = slow_tokens(kind, text)
        assert {part: set(own.token[own.part == part].tolist()) for part in set(own.part.tolist())} == {
            part: tokens for part, tokens in expected.items() if tokens
        }
        assert (np.diff(found.record) >= 0).all()


def test_mixing_arrays_equals_mixing_numbers():
    numbers = np.array([0, 1, -1, 2**62], np.int64)
    assert mix(3, numbers).tolist() == [slow_mix(3, int(number)) for number in numbers]


def test_names_with_typing_errors_and_reordered_words_share_tokens_and_other_names_none():
    found = TextTokens().row_tokens(
        [column(["Belgor Marine Ltd", "Marine, Belgor Limited", "Belgr Marine", "Oku Foods"])]
    )
    own = [set(found.token[found.record == row].tolist()) for row in range(4)]
    assert len(own[0] & own[1]) > len(own[0]) / 2
    assert len(own[0] & own[2]) > 10
    assert not own[0] & own[3]


def test_all_tokens_of_one_word_are_one_share():
    found = TextTokens().row_tokens([column(["Belgor Marine", "Tonkit Marine"])])
    first, second = (found.take(found.record == row) for row in (0, 1))
    common = np.isin(first.token, second.token)
    assert common.sum() > 3
    assert len(set(first.share[common].tolist())) == 1
    assert first.share[first.part == WHOLE].tolist() == [ALONE]


def test_a_text_of_one_word_opens_with_the_word_and_not_with_one_sample():
    found = TextTokens().row_tokens([column(["Belgor"])])
    assert set(found.share[found.part != SAMPLED].tolist()) == {ALONE}
    assert ALONE not in found.share[found.part == SAMPLED]
    assert len(set(found.share[found.part == SAMPLED].tolist())) > 2


def test_texts_without_words_have_no_tokens():
    assert len(TextTokens().row_tokens([column(["", " - "])]).token) == 0


@settings(max_examples=30)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(-1e6, 1e6))
def test_a_row_is_reached_in_its_leaf_if_the_leaf_is_near_and_shows_its_narrowest_bin(rows, query):
    kind = NumberTokens(width=10, levels=8, narrowest=2, cap=3, reach=1)
    listed = kind.row_tokens([column(rows)])
    wanted = set(kind.query_tokens([column([query])]).token.tolist())
    lengths = {token: int((listed.token == token).sum()) for token in listed.token.tolist()}
    leaves = listed.take(kind.listed(listed, np.array([lengths[token] for token in listed.token.tolist()])))
    for row, number in enumerate(rows):
        levels = [
            level
            for level in range(2, 8)
            if sum(np.floor(other / 10) // 2**level == np.floor(number / 10) // 2**level for other in rows) <= 3
        ]
        leaf = leaves.take(leaves.record == row)
        assert leaf.part.tolist() == ([max(levels)] if levels else [])
        if levels:
            width = 10 * 2 ** max(levels)
            edge = np.floor(query / width + 0.5)
            assert (leaf.token[0] in wanted) == (edge - 1 <= np.floor(number / width) <= edge)
            assert leaf.hint[0] == np.floor(number / 10)


def test_the_distance_of_places_is_within_the_diagonal_of_a_finest_cell():
    rng = np.random.default_rng(1)
    kind = PlaceTokens(metres=100, levels=4, scale=1.0)
    for latitude in (-60.0, 0.0, 1.3, 48.0, 70.0):
        rows = np.array([latitude, 103.8]) + rng.normal(0, 0.01, (50, 2))
        here = np.array([[latitude, 103.8]])
        cells = kind.row_tokens([column(rows[:, 0]), column(rows[:, 1])])
        hints = cells.hint[cells.part == 0]
        similarity = kind.similarity(shared_pairs(here, hints))
        near = (1 / similarity - 1) * 100
        assert np.abs(near - great_circle_metres(here, rows)).max() < 75


def shared_pairs(here, hints):
    none = np.zeros(0, np.int64)
    columns = [column(here[:, 0]), column(here[:, 1])]
    record = np.zeros(len(hints), np.int64)
    return SharedTokens(none, none.astype(np.uint8), none, record, hints, None, columns, 50)


def test_places_at_every_latitude_find_themselves_in_cells_of_every_width():
    latitude, longitude = np.linspace(-90, 90, 61), np.linspace(-180, 180, 61)
    places = [column(latitude), column(longitude)]
    kind = PlaceTokens(metres=50, levels=12)
    rows, queries = kind.row_tokens(places), kind.query_tokens(places)
    for record in range(61):
        assert np.isin(rows.token[rows.record == record], queries.token[queries.record == record]).all()


def test_dates_and_codes_have_tokens_of_their_cells():
    born = [column([date(1990, 5, 1), date(1990, 5, 2)])]
    assert DateTokens().row_tokens(born).hint[[0, -1]].tolist() == [7425, 7426]
    codes = CodeTokens().row_tokens([column(["DE1", "DE2", "DE1"])])
    assert (codes.token[0], codes.token[1] != codes.token[0]) == (codes.token[2], True)


def test_places_outside_the_globe_are_refused_without_their_value():
    with raises(InputError, "outside-range"):
        PlaceTokens().query_tokens([column([91.0]), column([0.0])])


@pytest.mark.parametrize("name", TOKENS.names())
def test_every_kind_is_a_choice_of_a_schema(name):
    kind = TOKENS[name](**({"width": 5.0} if name == "number" else {}))
    schema = TokenSchema((TokenField(tuple("ab"[: kind.COLUMNS]), kind),))
    assert name == kind.KIND
    assert TokenSchema.from_dict(schema.to_dict()) == schema
    assert schema.fingerprint != TokenSchema((TokenField(tuple("cd"[: kind.COLUMNS]), kind),)).fingerprint


def test_records_that_miss_a_cell_have_no_tokens_of_that_field():
    schema = TokenSchema((TokenField(("name",), TextTokens(samples=2)), TokenField(("code",), CodeTokens())))
    names, codes = schema.row_tokens({"name": ["Belgor", None, "Gor"], "code": ["1", "2", None]})
    assert (names.rows.tolist(), codes.rows.tolist(), names.n) == ([0, 2], [0, 1], 3)


@pytest.mark.parametrize(
    ("described", "code"),
    [
        ([], "wrong-type"),
        ({"fields": []}, "field-count"),
        ({"fields": [{"columns": ["a"]}]}, "unknown-kind"),
        ({"fields": [{"kind": "code"}]}, "wrong-type"),
        ({"fields": [{"columns": ["a"], "kind": "txt"}]}, "unknown-kind"),
        ({"fields": [{"columns": ["a"], "kind": "text", "sample": 3}]}, "unknown-setting"),
        ({"fields": [{"columns": ["a"], "kind": "place"}]}, "column-count"),
        ({"fields": [{"columns": ["a"], "kind": "text", "samples": 0}]}, "out-of-range"),
    ],
)
def test_wrong_schemas_are_refused(described, code):
    with raises(SettingError, code):
        TokenSchema.from_dict(described)
