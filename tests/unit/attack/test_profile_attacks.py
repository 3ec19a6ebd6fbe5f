"""What a blind coordinator can make of the distances that it opens."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from fedsim.attack.finding import Adversary, AttackKind
from fedsim.attack.profile_attacks import (
    MEMBERSHIP_AUC,
    RECORD_SHARE,
    BlindView,
    distance_profiles,
    profile_attack,
    profile_frequency_attack,
    profile_order_attack,
)
from fedsim.errors import InputError
from fedsim.linkage.encoding import Key, PlacePosition, Schema, SchemaField
from fedsim.types import EncodedTable

SCHEMA = Schema([SchemaField("lat", PlacePosition(metres=1.0), longitude="lon")])
RECORDS, PUBLIC = 60, 120


def places(rng: np.random.Generator, count: int) -> pl.DataFrame:
    return pl.DataFrame({"lat": rng.normal(1.3, 0.05, count), "lon": rng.normal(103.8, 0.08, count)})


def encode(frame: pl.DataFrame, key: int) -> EncodedTable:
    return SCHEMA.encode(frame, Key(bytes([key] * 32)), np.random.default_rng(0))


def view_of(ours: pl.DataFrame, theirs: pl.DataFrame, key: int = 1, secret: int = 9) -> BlindView:
    return BlindView.of(encode(ours, key), encode(theirs, key), "position", bytes([secret] * 32))


@pytest.fixture(scope="module")
def tables() -> tuple[pl.DataFrame, pl.DataFrame]:
    rng = np.random.default_rng(3)
    return places(rng, PUBLIC), places(rng, 400)


def attacked(public: pl.DataFrame, theirs: pl.DataFrame, known: pl.DataFrame):
    expected = [view_of(public, known, key=key).by_record for key in (2, 3)]
    truth = np.arange(RECORDS)
    return profile_attack(view_of(public[:RECORDS], theirs), (expected[0], expected[1]), truth, knew="everything")


def test_who_has_the_partners_table_names_rows_but_not_records(tables):
    found = attacked(*tables, known=tables[1])
    assert found.score.value > 0.9
    assert found.blind == 1 / PUBLIC
    assert found.figures[MEMBERSHIP_AUC] > 0.95
    assert found.figures[RECORD_SHARE] < 0.1
    assert (found.kind, found.adversary) == (AttackKind.PROFILES, Adversary.COORDINATOR)


def test_who_has_another_table_names_few_rows(tables):
    elsewhere = places(np.random.default_rng(4), 400)
    assert attacked(*tables, known=elsewhere).score.value < 0.5 * attacked(*tables, known=tables[1]).score.value


def test_a_list_shorter_than_the_table_is_refused(tables):
    public, theirs = tables
    short = view_of(public[:10], theirs).by_record
    with pytest.raises(InputError) as caught:
        profile_attack(view_of(public[:RECORDS], theirs), (short, short), np.arange(RECORDS), knew="")
    assert caught.value.code == "shape-mismatch"


def test_profiles_say_nothing_about_where_north_is(tables):
    public, theirs = tables
    truth = public.to_numpy()
    found = profile_order_attack(view_of(public, theirs), truth, rng=np.random.default_rng(0))
    mirrored = public.with_columns(2 * 1.3 - pl.col("lat")), theirs.with_columns(2 * 1.3 - pl.col("lat"))
    assert found.score.value < 0.4
    assert np.allclose(view_of(*mirrored).by_record, view_of(public, theirs).by_record, rtol=0.01, atol=1e5)


def test_frequencies_do_not_reach_the_coordinator(tables):
    public, theirs = tables
    count = np.arange(PUBLIC)[::-1] + 1
    once, often = view_of(public, theirs), view_of(public[np.repeat(np.arange(PUBLIC), 3).tolist()], theirs)
    assert np.array_equal(once.differences, often.differences)
    found = profile_frequency_attack(once, count)
    assert found.score.low <= found.blind
    assert found.figures["profiles that repeat"] == 0


def test_a_profile_depends_neither_on_the_order_nor_on_the_shift():
    rng = np.random.default_rng(1)
    rows = rng.random((3, 300))
    changed = rng.permuted(rows, axis=1) + np.array([[5.0], [-2.0], [0.0]])
    assert np.allclose(distance_profiles(rows), distance_profiles(changed))
