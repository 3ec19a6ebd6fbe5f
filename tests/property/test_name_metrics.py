"""Metrics of names equal their oracles bit for bit, on texts that a generator would rather not meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from rapidfuzz.distance import JaroWinkler
from sklearn.feature_extraction.text import TfidfVectorizer

import reference_distances
from fedsim.errors import SettingError
from fedsim.linkage import topk
from fedsim.linkage.name_metrics import QGramDice, TfidfCosine
from fedsim.linkage.search import grams

ORACLES = {
    "qgram-dice": reference_distances.qgram_dice,
    "tfidf-cosine": reference_distances.tfidf_cosine,
    "jaro-winkler": lambda candidates: reference_distances.jaro_winkler,
}
any_texts = st.lists(st.text(max_size=40), min_size=1, max_size=12)
few_letters = st.lists(st.text("ab é2.", max_size=12), min_size=1, max_size=25)


def check(metric: str, queries: list[str], candidates: list[str], k: int) -> None:
    expected = reference_distances.nearest(queries, candidates, ORACLES[metric](candidates), k)
    for backend in ("index", "pairs", "blocks"):
        if (backend == "pairs") == (metric == "jaro-winkler") or backend == "blocks":
            partner, distance = topk(queries, candidates, metric=metric, k=k, backend=backend)
            np.testing.assert_array_equal(distance, expected[1])
            np.testing.assert_array_equal(partner, expected[0])


@pytest.mark.parametrize("metric", ORACLES)
@settings(deadline=None, max_examples=60)
@given(any_texts | few_letters, any_texts | few_letters, st.data())
def test_search_equals_the_oracle_for_any_text(metric, queries, candidates, data) -> None:
    check(metric, queries, candidates, data.draw(st.integers(1, len(candidates))))


HARD = {
    "empty": ["", "", " ", "!?"],
    "one letter": ["a", "b", "a", "A", "é"],
    "all equal": ["Acme Ltd"] * 9,
    "duplicates": ["Acme Ltd", "acme ltd", "Acme  LTD.", "Ltd Acme", "Acme"] * 3,
    "long": ["a" * 10_000, "ab" * 500, "a", "b " * 300, "x" * 64, "x" * 65, "x" * 63 + "y"],
    "right to left": ["שלום עולם", "مرحبا بالعالم", "مرحبا", "\u202eabc"],
}


@pytest.mark.parametrize("metric", ORACLES)
@pytest.mark.parametrize("kind", HARD)
def test_awkward_tables_have_a_defined_order(metric: str, kind: str) -> None:
    texts = HARD[kind]
    short = [text for text in texts if len(text) < 2_000]
    if metric == "jaro-winkler" and kind == "long":  # the oracle is quadratic; rapidfuzz compares the long ones below
        texts = short
    check(metric, texts, texts, len(texts))


@pytest.mark.parametrize("metric", ORACLES)
def test_more_partners_than_candidates_are_refused(metric: str) -> None:
    with pytest.raises(SettingError) as caught:
        topk(["a"], ["b", "c"], metric=metric, k=3)
    assert caught.value.code == "k-too-large"


@pytest.mark.parametrize("metric", ["qgram-dice", "tfidf-cosine"])
def test_partners_do_not_depend_on_the_other_queries(metric: str) -> None:
    candidates = [f"{word} {form}" for word in ("bel", "gor", "mar", "belgor") for form in ("ltd", "gmbh", "inc")]
    queries = ["bel ltd", "gor", "mar gmbh", "ltd ltd bel"]
    together = topk(queries, candidates, metric=metric, k=4)
    for row, query in enumerate(queries):
        alone = topk([query], candidates, metric=metric, k=4)
        np.testing.assert_array_equal(alone[0][0], together[0][row])
        np.testing.assert_array_equal(alone[1][0], together[1][row])


def random_names(rng: np.random.Generator, n: int, words: int) -> list[str]:
    lexicon = ["".join(rng.choice(list("abcdefghij"), size)) for size in rng.integers(1, 9, words)]
    ranks = np.arange(1, words + 1.0)
    return [" ".join(rng.choice(lexicon, size, p=1 / ranks / (1 / ranks).sum())) for size in rng.integers(1, 7, n)]


@pytest.mark.parametrize("metric", [QGramDice(), QGramDice(q=3), TfidfCosine(), TfidfCosine(q=2)], ids=repr)
@pytest.mark.parametrize("dense_share", [grams.DENSE_SHARE, 0.0, 2.0])
@pytest.mark.parametrize("copies", [1, 4])  # weights of more than a byte
def test_every_layout_of_the_index_gives_the_plain_distances(metric, dense_share, copies, monkeypatch) -> None:
    monkeypatch.setattr(grams, "DENSE_SHARE", dense_share)
    rng = np.random.default_rng(3)
    candidates = [" ".join([name] * copies) for name in random_names(rng, 5_000, 800)]
    queries = [candidates[row] for row in rng.integers(0, 5_000, 30)] + random_names(rng, 30, 500)
    found = topk(queries, candidates, metric=metric, k=20, backend="index")
    plain = topk(queries, candidates, metric=metric, k=20, backend="blocks")
    np.testing.assert_array_equal(found[1], plain[1])
    np.testing.assert_array_equal(found[0], plain[0])


def test_tfidf_follows_scikit_learn_but_for_rounded_frequencies() -> None:
    rng = np.random.default_rng(4)
    candidates = random_names(rng, 300, 100)
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3)).fit_transform(candidates)
    expected = 1 - (vectors[:50] @ vectors.T).toarray()
    partner, distance = topk(candidates[:50], candidates, metric="tfidf-cosine", k=300)
    np.testing.assert_allclose(distance, np.take_along_axis(expected, partner, axis=1), atol=2e-3)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text("abcé漢", max_size=90), min_size=1, max_size=8), st.text("abcé漢", max_size=90))
def test_jaro_winkler_follows_rapidfuzz(candidates: list[str], query: str) -> None:
    partner, distance = topk([query], candidates, metric="jaro-winkler", k=len(candidates))
    expected = [JaroWinkler.distance(query, candidates[row]) for row in partner[0]]
    np.testing.assert_allclose(distance[0], expected, rtol=0, atol=1e-12)


def test_jaro_winkler_of_very_long_texts_follows_rapidfuzz() -> None:
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice(list("abcdef "), size)) for size in (10_000, 9_000, 3_000, 70, 64, 5)]
    partner, distance = topk(texts, texts, metric="jaro-winkler", k=6)
    expected = [
        [JaroWinkler.distance(query, texts[row]) for row in rows] for query, rows in zip(texts, partner, strict=True)
    ]
    np.testing.assert_allclose(distance, expected, rtol=0, atol=1e-12)


def test_jaro_winkler_skips_no_partner() -> None:
    rng = np.random.default_rng(6)
    candidates = random_names(rng, 9_000, 2_000)
    queries = random_names(rng, 100, 2_000)
    found = topk(queries, candidates, metric="jaro-winkler", k=15)
    plain = topk(queries, candidates, metric="jaro-winkler", k=15, backend="blocks")
    np.testing.assert_array_equal(found[1], plain[1])
    np.testing.assert_array_equal(found[0], plain[0])


@pytest.mark.parametrize("metric", [QGramDice, TfidfCosine])
def test_only_short_grams_are_accepted(metric) -> None:
    with pytest.raises(SettingError):
        metric(q=4)
