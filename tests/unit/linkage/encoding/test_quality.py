"""Quality of an encoded linkage: recall against the plain one, ties and fill."""

import numpy as np
import polars as pl
import pytest

from fedsim.linkage.encoding import NumberPosition, NumericFilter, PlacePosition, Schema, SchemaField, StringFilter
from fedsim.linkage.encoding.quality import measure_linkage


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
    assert quality.k == 2
    assert quality.recall_at_k == 1


def test_places_are_compared_with_the_distance_over_ground():
    rng = np.random.default_rng(0)
    tables = [pl.DataFrame({"lat": rng.uniform(40, 80, n), "lon": rng.uniform(-9, 9, n)}) for n in (200, 3000)]
    quality = measure(Schema([SchemaField("lat", PlacePosition(10.0), longitude="lon")]), *tables)
    assert quality.recall_at_k > 0.99
