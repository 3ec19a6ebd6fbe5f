"""Filters of words: rare words set more ones, whatever their order, spelling of frequent words, or script."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import numpy as np
import pytest

from fedsim.errors import InputError, SettingError
from fedsim.linkage.encoding import (
    IdentifierColumn,
    Key,
    Schema,
    SchemaField,
    WordFilter,
    choose_word_filter,
    word_filter as module,
)
from fedsim.linkage.words import WordRules
from reference_distances import levenshtein

SUBKEY = bytes(range(32))
FIRST = ["Belgor", "Halver", "Tanros", "Miran", "Ultor", "Kelpal", "Sentor", "Dandor", "Zürcher", "O'Neil"]
FIRMS = [
    f"{FIRST[row % 10]}{row // 10} {('Marine', 'Paper')[row % 2]} {'Limited' if row % 4 else 'Ltd.'}"
    for row in range(90)
]
FIRMS += ["Belgor Lmited", "Mraine Tanros", "Paper, Limited", "$ !", "李明", "a"]


def encode(texts, code=None, subkey=SUBKEY, **options):
    return np.unpackbits((code or WordFilter()).encode(IdentifierColumn(texts), subkey, **options), axis=1)


def dice(first, second):
    return 2 * (first & second).sum() / (first.sum() + second.sum())


def slow_weight(word: str, counts: Counter[str], n_texts: int) -> float:
    """The definition: the most frequent word that this one may be a misspelling of decides."""
    count = max(counts[word], 1)
    allowed = 0 if len(word) < 3 or not word.isalpha() else 1 if len(word) < 6 else 2
    for other, times in counts.items():
        frequent = times >= max(0.005 * n_texts, 20) and times >= 20 * max(counts[word], 1)
        comparable = allowed and len(other) >= 3 and other.isalpha()
        if frequent and comparable and levenshtein(word, other) <= allowed:
            count = max(count, times)
    return math.log(n_texts / count) / math.log(n_texts)


def slow_filter(text: str, texts: list[str], code: WordFilter) -> list[int]:
    """One text after another, one gram after another, with dictionaries."""
    split = [WordRules().split(each) or [each] for each in texts]
    counts = Counter(word for words in split for word in set(words))
    ones = [0] * code.bits
    for word in WordRules().split(text) or [text]:
        share = slow_weight(word, counts, len(texts)) * min(1.0, 5 / len(word))
        count = max(1, round(code.hashes * share))
        marked = "\ud800" * (code.q - 1) + word + "\udfff" * (code.q - 1)
        for start in range(max(1, len(marked) - code.q + 1)):
            message = SUBKEY + b"0:" + marked[start : start + code.q].encode("utf-8", "surrogatepass")
            stream = hashlib.shake_256(message).digest(8 * count)
            for place in range(count):
                ones[int.from_bytes(stream[8 * place : 8 * place + 8], "little") % code.bits] = 1
    return ones


@pytest.mark.parametrize("code", [WordFilter(), WordFilter(q=3, hashes=7, bits=136), WordFilter(q=1, hashes=64)])
def test_filters_are_what_dictionaries_give(code):
    assert encode(FIRMS, code).tolist() == [slow_filter(text, FIRMS, code) for text in FIRMS]


def test_the_size_of_a_tile_does_not_matter(monkeypatch):
    expected = encode(FIRMS)
    monkeypatch.setattr(module, "TILE_BYTES", 640)  # ten texts
    assert (encode(FIRMS) == expected).all()


def test_a_rare_word_counts_more_than_a_frequent_one():
    texts = [f"{name} limited" for name in FIRST] * 5 + ["Wexford limited", "Wexford company", "Ganul limited"]
    *_, query, same_rare, same_frequent = encode(texts)
    assert dice(query, same_rare) > 2 * dice(query, same_frequent)


def test_a_misspelt_frequent_word_counts_as_frequent():
    texts = [f"{name} limited" for name in FIRST] * 5 + ["Wexford limited", "Wexford lmiited"]
    tolerant, literal = (encode(texts, WordFilter(tolerant=flag))[-2:] for flag in (True, False))
    assert dice(*tolerant) > dice(*literal) + 0.1


def test_a_long_word_sets_about_as_many_ones_as_one_of_five_letters():
    ones = encode(["orvar", "gesellschaftsrecht"]).sum(axis=1)
    assert 0.7 < ones[0] / ones[1] < 1.3


def test_common_words_of_the_job_replace_the_counts_of_the_table():
    code = WordFilter(hashes=20, common_words=("Limited", "and", "Sons"))
    assert code.fit(IdentifierColumn(FIRMS)) == {}
    alone, among = encode(["Halver limited"], code)[0], encode([*FIRMS, "Halver limited"], code)[-1]
    assert (alone == among).all()
    assert code.ones_per_gram(["limited", "sons", "halver"], {}).tolist() == [1, 3, 17]


def test_later_records_are_encoded_by_the_counts_of_the_first_table():
    code = WordFilter()
    fit = code.fit(IdentifierColumn(FIRMS))
    assert (encode(FIRMS[3:4], code, fit=fit) == encode(FIRMS)[3]).all()
    assert (encode(FIRMS[3:4], code) != encode(FIRMS)[3]).any()
    assert fit["texts"] == len(FIRMS)
    assert set(fit["counts"]) == {"limited", "ltd", "marine", "paper"}  # no word that only one record has


@pytest.mark.parametrize("fit", [{}, {"texts": "x", "counts": {}}, {"texts": 3}, {"texts": 3, "counts": 4}])
def test_damaged_counts_are_refused(fit):
    with pytest.raises(InputError) as caught:
        encode(FIRMS, fit=fit)
    assert caught.value.code == "bad-word-counts"


def test_a_schema_refuses_the_fit_of_another_schema():
    one, other = (Schema([SchemaField("name", WordFilter(q=q))]) for q in (2, 3))
    fit, key = one.fit({"name": FIRMS}), Key(bytes(32))
    whole = one.encode({"name": FIRMS}, key)
    assert (one.encode({"name": FIRMS[:9]}, key, fit=fit).bits == whole.bits[:9]).all()
    with pytest.raises(InputError) as caught:
        other.encode({"name": FIRMS}, key, fit=fit)
    assert caught.value.code == "bad-word-counts"


def test_records_with_different_salts_get_unrelated_filters():
    texts, born = IdentifierColumn(["Ada Byron"] * 3), IdentifierColumn([1815, 1815.0, 1816])
    bits = np.unpackbits(WordFilter().encode_salted(texts, born, SUBKEY), axis=1)
    assert (bits[0] == bits[1]).all()
    assert dice(bits[0], bits[2]) < 0.35
    assert dice(bits[0], encode(["Ada Byron"])[0]) < 0.35


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        ("Müller & Söhne", "SOHNE,  muller"),
        ("I.B.M. Corp", "ibm corp"),
        ("ﬁx Straße", "STRASSE FIX"),
        ("jose\u0301", "José"),
        ("שלום עולם", "עולם שלום"),
    ],
)
def test_order_case_accents_and_marks_do_not_matter(text, alike):
    first, second = encode([text, alike])
    assert (first == second).all()
    assert WordFilter().normal_form(text) == WordFilter().normal_form(alike)


def test_options_equate_legal_forms():
    code = WordFilter(legal_forms=("en", "de"), drop_legal_forms=True)
    first, second = encode(["Halver Limited", "Halver GmbH"], code)
    assert (first == second).all()


@pytest.mark.parametrize(
    "text", ["x", "x" * 10_000, "$$$", "مرحبا بالعالم", "a\u0301\u0301\u0301", "\U0001f600", "1 2 3"]
)
def test_every_text_with_a_character_has_a_filter(text):
    bits = encode([text, "Halver Paper"])
    assert bits[0].any()
    assert dice(bits[0], bits[1]) < 0.5


def test_ten_thousand_letters_leave_the_other_texts_alone():
    long = " ".join(f"word{number}" for number in range(2_000))
    fit = WordFilter().fit(IdentifierColumn(FIRMS))
    bits = encode([long, *FIRMS], fit=fit)
    assert (bits[1:] == encode(FIRMS)).all()


def test_equal_names_have_equal_filters_even_where_all_are_equal():
    bits = encode(["Halver Paper"] * 50)
    assert bits.any()
    assert (bits == bits[0]).all()


@pytest.mark.parametrize("text", ["", "  ", "\u00a0"])
def test_an_empty_text_is_refused_by_row(text):
    with pytest.raises(InputError) as caught:
        encode(["a", text])
    assert (caught.value.code, caught.value.row) == ("empty-text", 2)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"q": 0}, "out-of-range"),
        ({"hashes": 2_000}, "out-of-range"),
        ({"bits": 12}, None),
        ({"tolerant": 1}, None),
        ({"common_words": "ltd"}, "invalid-type"),
        ({"common_words": (1,)}, "invalid-type"),
        ({"common_words": ("pte ltd",)}, "not-a-word"),
        ({"common_words": ("w",) * 5_000}, "too-many-words"),
        ({"legal_forms": ("xx",)}, "unknown-language"),
    ],
)
def test_impossible_settings_are_refused(settings, code):
    with pytest.raises(SettingError) as caught:
        WordFilter(**settings)
    assert code is None or caught.value.code == code


@pytest.mark.parametrize("letters", [20, 60, 200, 1_000])
def test_filters_are_chosen_for_the_length_of_the_texts(letters):
    rng = np.random.default_rng(letters)
    texts = ["".join(rng.choice(list("abcdefghijklmnop   "), letters)) for _ in range(200)]
    chosen = choose_word_filter(texts)
    assert encode(texts, chosen).mean(axis=1).max() < 0.6
    assert chosen == WordFilter() or letters > 20


def test_missing_texts_do_not_matter_to_the_choice():
    assert choose_word_filter([None, "", " "]) == WordFilter()
    assert choose_word_filter(["Halver", None]) == WordFilter()
