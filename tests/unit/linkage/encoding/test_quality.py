"""Quality of an encoded linkage: recall against the plain one, ties and fill."""

import numpy as np
import polars as pl
import pytest

from fedsim.linkage.encoding import (
    NumberPosition,
    NumericFilter,
    PlacePosition,
    Schema,
    SchemaField,
    StringFilter,
)
from fedsim.linkage.encoding.quality import judge_received_links, measure_linkage
from fedsim.types import EncodedTable
from fedsim_lab.datasets.generated import random_firm_name


def numbers(n, seed=0):
    return pl.DataFrame({"x": np.random.default_rng(seed).uniform(0, 100, n)})


def measure(schema, ours, theirs, k=10, metric=None):
    return measure_linkage(schema, metric or schema.metric, ours, theirs, k=k, rng=np.random.default_rng(1))


def test_fine_positions_find_all_and_coarse_ones_tie():
    ours, theirs = numbers(300), numbers(2000, 1)
    fine, coarse = (measure(Schema([SchemaField("x", NumberPosition(unit))]), ours, theirs) for unit in (1e-6, 10.0))
    assert fine.recall_at_1 == fine.recall_at_k == 1
    assert fine.ties == 0
    assert coarse.recall_at_k < 0.3
    assert coarse.ties > 0.9
    assert fine.fill is None


def test_longer_filters_find_more():
    ours, theirs = numbers(300), numbers(2000, 1)
    short, long = (
        measure(Schema([SchemaField("x", NumericFilter(0, 100, 5, bits=b))]), ours, theirs) for b in (256, 8192)
    )
    assert short.recall_at_k < long.recall_at_k
    assert short.fill == pytest.approx(10 / 110, rel=0.2)


def test_a_table_measured_against_itself_never_finds_its_own_records():
    table = numbers(500)
    quality = measure(Schema([SchemaField("x", NumberPosition(1e-6))]), table, table)
    assert quality.recall_at_1 == 1
    assert quality.kth_distance > 0


def test_equal_records_count_once_and_k_is_at_most_the_number_of_candidates():
    table = pl.DataFrame({"name": ["ada", "ada", "alan", "grace"]})
    quality = measure(Schema([SchemaField("name", StringFilter())]), table, table, k=10, metric="dice")
    assert quality.k == 3
    assert quality.recall_at_k == 1


def test_places_are_compared_with_the_distance_over_ground():
    rng = np.random.default_rng(0)
    tables = [pl.DataFrame({"lat": rng.uniform(40, 80, n), "lon": rng.uniform(-9, 9, n)}) for n in (200, 3000)]
    quality = measure(Schema([SchemaField("lat", PlacePosition(10.0), longitude="lon")]), *tables)
    assert quality.recall_at_k > 0.99


def firms(n, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame({"name": list(dict.fromkeys(random_firm_name(rng) for _ in range(2 * n)))[:n]})


def names(**settings):
    return Schema([SchemaField("name", StringFilter(**settings))])


def test_strangers_count_for_coverage_but_not_for_recall():
    theirs = firms(1000)
    ours = pl.concat([theirs.head(120), firms(280, seed=1)])
    quality = measure(names(bits=2048), ours, theirs, metric="dice")
    assert quality.recall_at_1 > 0.98
    assert 0.25 < quality.covered < 0.5


def test_filters_that_are_full_lose_clear_partners_and_say_what_to_change():
    theirs = firms(1000)
    ours = theirs.head(300).with_columns(pl.col("name").str.replace("e", "i"))
    full = measure(names(bits=64), ours, theirs, metric="dice")
    assert full.recall_at_1 < 0.9
    assert full.fill > 0.5
    assert {row.name for row in full.rows() if row.fix} >= {"found", "filters"}
    assert not [row for row in measure(names(), ours, theirs, metric="dice").rows() if row.fix]


def test_places_beyond_the_partners_area_have_no_partner_within_reach():
    rng = np.random.default_rng(0)
    towns = [rng.uniform((50, 8), (51, 9), (n, 2)) for n in (400, 2000)]
    towns[0][:300, 0] += 3  # three degrees north
    ours, theirs = (pl.DataFrame(town, schema=["lat", "lon"]) for town in towns)
    quality = measure(Schema([SchemaField("lat", PlacePosition(1.0), longitude="lon")]), ours, theirs)
    assert quality.covered == pytest.approx(0.25, abs=0.02)
    assert 1_000 < quality.reach_metres < 20_000
    assert [row.name for row in quality.rows() if row.fix] == ["coverage"]


def test_a_primary_judges_its_links_by_what_it_received():
    encoded = EncodedTable(np.full((4, 2), 0b11110000, np.uint8), 16, "")
    similarity = np.array([[2.0, 1.0, 1.0], [1.9, 0.9, 0.8], [-1.0, -2.0, -3.0], [-1.0, -2.0, -2.0]])
    filters = judge_received_links(names(), encoded, similarity, noisy=False)
    assert (filters.fill, filters.tied, filters.far) == (0.5, 0.5, None)
    places = Schema([SchemaField("lat", PlacePosition(), longitude="lon")])
    assert judge_received_links(places, encoded, similarity, noisy=True).far == 0.5
