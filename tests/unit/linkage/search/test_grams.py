"""Weighted q-grams equal their oracle bit for bit, on texts that a generator would rather not meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import reference_distances
from fedsim.errors import SettingError
from fedsim.linkage import topk
from fedsim.linkage.metrics import QGramDice
from fedsim.linkage.search import grams

any_texts = st.lists(st.text(max_size=40), min_size=1, max_size=12)
few_letters = st.lists(st.text("ab é2.", max_size=12), min_size=1, max_size=25)


def check(queries: list[str], candidates: list[str], k: int) -> None:
    expected = reference_distances.nearest(queries, candidates, reference_distances.qgram_dice(candidates), k)
    for backend in ("index", "blocks"):
        partner, distance = topk(queries, candidates, metric="qgram-dice", k=k, backend=backend)
        np.testing.assert_array_equal(distance, expected[1])
        np.testing.assert_array_equal(partner, expected[0])


@settings(deadline=None, max_examples=60)
@given(any_texts | few_letters, any_texts | few_letters, st.data())
def test_search_equals_the_oracle_for_any_text(queries, candidates, data) -> None:
    check(queries, candidates, data.draw(st.integers(1, len(candidates))))


HARD = {
    "empty": ["", "", " ", "!?"],
    "one letter": ["a", "b", "a", "A", "é"],
    "all equal": ["Acme Ltd"] * 9,
    "duplicates": ["Acme Ltd", "acme ltd", "Acme  LTD.", "Ltd Acme", "Acme"] * 3,
    "long": ["a" * 10_000, "ab" * 500, "a", "b " * 300, "x" * 64, "x" * 65, "x" * 63 + "y"],
    "right to left": ["שלום עולם", "مرحبا بالعالم", "مرحبا", "\u202eabc"],
}


@pytest.mark.parametrize("kind", HARD)
def test_awkward_tables_have_a_defined_order(kind: str) -> None:
    check(HARD[kind], HARD[kind], len(HARD[kind]))


def test_partners_do_not_depend_on_the_other_queries() -> None:
    candidates = [f"{word} {form}" for word in ("bel", "gor", "mar", "belgor") for form in ("ltd", "gmbh", "inc")]
    queries = ["bel ltd", "gor", "mar gmbh", "ltd ltd bel"]
    together = topk(queries, candidates, metric="qgram-dice", k=4)
    for row, query in enumerate(queries):
        alone = topk([query], candidates, metric="qgram-dice", k=4)
        np.testing.assert_array_equal(alone[0][0], together[0][row])
        np.testing.assert_array_equal(alone[1][0], together[1][row])


def random_names(rng: np.random.Generator, n: int, words: int) -> list[str]:
    lexicon = ["".join(rng.choice(list("abcdefghij"), size)) for size in rng.integers(1, 9, words)]
    ranks = np.arange(1, words + 1.0)
    return [" ".join(rng.choice(lexicon, size, p=1 / ranks / (1 / ranks).sum())) for size in rng.integers(1, 7, n)]


@pytest.mark.parametrize("metric", [QGramDice(), QGramDice(q=3)], ids=repr)
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


def test_only_short_grams_are_accepted() -> None:
    with pytest.raises(SettingError):
        QGramDice(q=4)
