"""Links of pairs: blocks and pruning change nothing, and tokens do not depend on the table in which a record stands."""

from datetime import date

import numpy as np
import polars as pl
import pytest

from fedsim.linkage.direct import (
    CodeTokens,
    DateTokens,
    NumberTokens,
    PlaceTokens,
    TextTokens,
    TokenField,
    TokenSchema,
    oprf,
    token_links,
)
from fedsim.linkage.direct.encrypted_table import build_table
from fedsim.linkage.direct.exchange import TokenValues, open_rows
from fedsim.linkage.direct.token_links import NOBODY, FieldRivals

KEY = oprf.SecretKey.derive(bytes(32), b"tests")
TEXT = TokenField(("name",), TextTokens(samples=6, words=6, deletions=8))
PLACE = TokenField(("lat", "lon"), PlaceTokens(metres=200, levels=6, narrowest=1, cap=6), weight=0.5)
NUMBER = TokenField(("size",), NumberTokens(width=2, levels=6, cap=6))
DAY, CODE = TokenField(("day",), DateTokens(cap=4)), TokenField(("code",), CodeTokens())
SCHEMAS = {"places": (PLACE,), "numbers": (NUMBER, PLACE), "mixed": (TEXT, PLACE, NUMBER), "codes": (CODE, DAY)}
WORDS = ("belgor", "marine", "tonkit", "foods", "ltd", "oku", "harbour", "x1", "gmbh", "norvex")


def random_table(rng, n):
    """Return records, a tenth of whose cells are missing and many of which are equal."""
    columns = {
        "name": [" ".join(rng.choice(WORDS, size=rng.integers(1, 4), replace=False)) for _ in range(n)],
        "lat": rng.normal(1.3, 0.01, n).round(3),
        "lon": rng.normal(103.8, 0.01, n).round(3),
        "size": rng.integers(0, 60, n).astype(float),
        "day": [date.fromordinal(730_000 + int(day)) for day in rng.integers(0, 30, n)],
        "code": rng.choice(["a", "b", "c"], n),
    }
    table = pl.DataFrame(columns)
    return table.with_columns(
        pl.when(pl.Series(rng.random(n) > 0.1)).then(pl.col(name)).alias(name) for name in columns
    )


@pytest.mark.parametrize("fields", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("seed", range(3))
def test_links_of_kept_pairs_in_blocks_are_those_of_all_pairs(fields, seed, monkeypatch):
    rng, schema = np.random.default_rng(seed), TokenSchema(fields)
    theirs, ours, k = random_table(rng, 60), random_table(rng, 50), 4
    table = build_table(schema, theirs, np.zeros((60, 1), np.float32), KEY)
    queries, values = schema.query_tokens(ours), TokenValues(schema, KEY.public)

    def link(**limit):
        found = open_rows(
            table, queries, values, lambda blinded: oprf.map_batches(KEY.evaluate_blinded, blinded), **limit
        )
        return found, found.pairs.best(k, found.pairs.fit_rivals(np.arange(50) < 30), found.among)

    every, expected = link()
    monkeypatch.setattr(token_links, "BLOCK_ENTRIES", 40)
    kept, actual = link(k=k)
    assert len(kept.pairs.row) <= len(every.pairs.row)
    for name in ("partner", "similarity", "distance"):
        assert np.array_equal(getattr(actual, name), getattr(expected, name), equal_nan=True)


def test_records_without_words_reach_nobody():
    schema = TokenSchema((TEXT,))
    table = build_table(schema, {"name": ["Belgor Ltd"]}, np.zeros((1, 1), np.float32), KEY)
    values = TokenValues(schema, KEY.public)
    found = open_rows(table, schema.query_tokens({"name": ["-", "?"]}), values, lambda _: [])
    links = found.pairs.best(1, found.pairs.fit_rivals(np.ones(2, np.bool_)), found.among)
    assert links.partner.tolist() == [[NOBODY], [NOBODY]]


def test_a_record_keeps_its_k_nearest_rows_and_all_that_are_as_near():
    record = np.array([0, 0, 0, 0, 2, 2])
    kept = token_links._nearest(record, np.array([0.5, 0.1, 0.5, 0.9, 1.0, 0.0]), 2)
    assert kept.tolist() == [True, True, True, False, True, True]
    assert token_links._nearest(np.zeros(0, np.int64), np.zeros(0), 2).tolist() == []


@pytest.mark.parametrize("field", [TEXT, PLACE, NUMBER, DAY, CODE], ids=lambda field: field.kind.KIND)
def test_the_tokens_of_a_record_do_not_depend_on_its_table(field):
    schema, table = TokenSchema((field,)), random_table(np.random.default_rng(5), 40).drop_nulls()
    for tokens_of in (schema.row_tokens, schema.query_tokens):
        among_others = tokens_of(table)[0].tokens
        for row in range(len(table)):
            alone, here = tokens_of(table[row : row + 1])[0].tokens, among_others.record == row
            for name in ("token", "part", "share", "hint"):
                assert np.array_equal(getattr(alone, name), getattr(among_others, name)[here])


def test_a_row_is_compared_with_three_other_records_and_equal_records_are_one():
    record, similarity = np.array([1, 1, 2, 3, 4], np.uint64), np.array([0.9, 0.9, 0.6, 0.3, 0.2])
    rivals = FieldRivals.fit(record, np.zeros(5, np.int64), similarity, rows=2)
    found = rivals.typical(np.array([1, 4, 9], np.uint64), np.array([0, 0, 1]))
    assert found == pytest.approx(np.sqrt([1.1 / 3, 1.8 / 3, token_links.MIN_TYPICAL]))
