"""Words of names in any script, and weights that a typing error does not change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import reference_distances
from fedsim.errors import SettingError
from fedsim.linkage.words import (
    FREQUENT_RATIO,
    FREQUENT_SHARE,
    LEGAL_FORMS,
    WordRules,
    WordWeights,
    tabulate_words,
    typing_errors,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" ?! ", []),
        ("x", ["x"]),
        ("Straße", ["strasse"]),
        ("Łódź Ærø", ["lodz", "aero"]),
        ("O'Brien’s", ["obriens"]),
        ("Bel G.m.b.H.", ["bel", "gmbh"]),
        ("J. R. R. Tolkien", ["jrr", "tolkien"]),
        ("S.A. Peugeot", ["sa", "peugeot"]),
        ("No. 7", ["no", "7"]),
        ("Half-Life_2:Ep.1", ["half", "life", "2", "ep", "1"]),
        ("हिन्दी फ़िल्म", ["हिन्दी", "फ\u093cिल्म"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("株式会社トヨタ自動車", ["株式会社", "トヨタ", "自動車"]),
        ("ｆｕｌｌ ｗｉｄｔｈ", ["full", "width"]),
        ("e\u0301te\u0301", ["ete"]),
        ("한국 어", ["한국", "어"]),
    ],
)
def test_text_of_any_script_becomes_words(text: str, words: list[str]) -> None:
    assert WordRules().split(text) == words


def test_legal_forms_are_shortened_on_request() -> None:
    rules = WordRules(legal_forms=("en", "de"))
    assert rules.split("Smith Brothers Private Limited") == ["smith", "brothers", "pte", "ltd"]
    assert rules.split("Müller Gesellschaft mbH") == ["muller", "gmbh"]
    assert WordRules().split("Smith Limited") == ["smith", "limited"]


def test_dropped_legal_forms_leave_a_name_that_is_nothing_else() -> None:
    rules = WordRules(legal_forms=("en", "de"), drop_legal_forms=True)
    assert [rules.split(text) for text in ("Bel Ltd.", "Bel Limited", "Bel GmbH", "Limited")] == [
        ["bel"],
        ["bel"],
        ["bel"],
        ["limited"],
    ]


def test_legal_forms_of_an_unknown_language_are_refused() -> None:
    with pytest.raises(SettingError) as caught:
        WordRules(legal_forms=("xx",))
    assert caught.value.code == "unknown-language"


def test_legal_forms_are_written_as_the_rules_write_words() -> None:
    for phrase in (phrase for phrases in LEGAL_FORMS.values() for phrase in phrases):
        assert " ".join(WordRules().split(phrase)) == phrase


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), max_size=8))
def test_many_texts_split_as_each_alone(texts: list[str]) -> None:
    rules = WordRules(legal_forms=("en",))
    lines = rules.split_all(texts)
    assert lines == [rules.split(text) for text in texts]
    table = tabulate_words(texts, rules)
    assert [[table.vocabulary[word] for word in part] for part in np.split(table.words, table.starts[1:-1])][
        : len(texts)
    ] == lines
    counts = dict(zip(table.vocabulary, table.document_counts().tolist(), strict=True))
    assert counts == {word: sum(word in line for line in lines) for word in table.vocabulary}


def test_initials_at_an_end_join_no_other_text() -> None:
    assert WordRules().split_all(["Henry V.", "a b", "I."]) == [["henry", "v"], ["a", "b"], ["i"]]


def weight(word: str, counts: dict[str, int], n: int) -> float:
    """The definition, word by word."""
    count, least = counts.get(word, 1), max(FREQUENT_SHARE * n, FREQUENT_RATIO)
    near = [
        other
        for frequent, other in counts.items()
        if other >= max(least, FREQUENT_RATIO * count)
        and typing_errors(frequent)
        and reference_distances.levenshtein(word, frequent) <= typing_errors(word)
    ]
    return math.log(n / min(n, max([count, *near]))) / math.log(n)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.text("abé2", min_size=1, max_size=9), st.integers(1, 3000), max_size=20),
    st.lists(st.text("abé2", min_size=1, max_size=9), max_size=20),
    st.booleans(),
)
def test_weights_follow_their_definition(counts: dict[str, int], words: list[str], tolerant: bool) -> None:
    expected = [weight(word, counts, 3000) for word in words]
    found = WordWeights(counts, 3000).of(words)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert (found <= WordWeights(counts, 3000, tolerant=False).of(words)).all()


def test_a_misspelt_frequent_word_weighs_as_little() -> None:
    weights = WordWeights({"limited": 500, "lmited": 1, "land": 90, "and": 600}, 1000)
    limited, misspelt, land, year = weights.of(["limited", "lmited", "land", "2017"])
    assert limited == misspelt < 0.2
    assert land > 0.3
    assert year == 1.0


@pytest.mark.parametrize("texts", [["a b"], ["", ""], []])
def test_tables_without_statistics_weigh_all_words_equally(texts: list[str]) -> None:
    weights = WordWeights.fit(tabulate_words(texts, WordRules()))
    np.testing.assert_array_equal(weights.of(["a", "z"]), [1.0, 1.0])


def test_a_word_of_every_text_weighs_nothing() -> None:
    weights = WordWeights.fit(tabulate_words(["acme one", "acme two", "acme"], WordRules()))
    np.testing.assert_array_equal(weights.of(["acme", "one"]), [0.0, 1.0])
