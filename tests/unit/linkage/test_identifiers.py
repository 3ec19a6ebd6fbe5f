"""Whatever holds identifiers is accepted; a fault is named by table, column and row, never by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fedsim
from error_fixtures import raises
from fedsim.errors import FingerprintError, InputError, SettingError
from fedsim.linkage import WeightedField, WeightedSum, get_metric, topk
from fedsim.types import EncodedTable

PLACES = {"lat": [1.30, 1.35, 1.40], "lon": [103.80, 103.85, 103.90]}
NAMES = ["ibm", "apple", "intel"]


@pytest.mark.parametrize(
    "table",
    [
        np.column_stack(list(PLACES.values())),
        np.column_stack(list(PLACES.values())).astype(np.float32),
        list(zip(*PLACES.values(), strict=True)),
        pd.DataFrame(PLACES),
        pl.DataFrame(PLACES),
        pa.table(PLACES),
        pa.RecordBatch.from_pydict(PLACES),
        pd.DataFrame(np.column_stack(list(PLACES.values()))),
        {"lat": PLACES["lat"], "lon": np.array(PLACES["lon"])},
        pl.DataFrame(PLACES).cast(pl.Decimal(10, 2)),
    ],
    ids=["float64", "float32", "list", "pandas", "polars", "arrow", "batch", "numbered", "mapping", "decimal"],
)
def test_numbers_come_from_any_container(table: Any) -> None:
    links = fedsim.link(table, table, metric="great-circle", k=1)
    assert links.partner.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize(
    "table",
    [
        NAMES,
        np.array(NAMES),
        pd.Series(NAMES),
        pl.Series(NAMES),
        pl.DataFrame({"name": NAMES}),
        pa.chunked_array([NAMES]),
    ],
    ids=["list", "numpy", "pandas", "polars", "frame", "arrow"],
)
def test_text_comes_from_any_container(table: Any) -> None:
    assert fedsim.link(table, NAMES, metric="levenshtein", k=1).partner.tolist() == [[0], [1], [2]]


SECRET = "Jane Roe"  # noqa: S105 - a person, not a password
BAD = {
    "missing number": (
        pd.DataFrame({"lat": [1.0, np.nan], "lon": [1.0, 2.0]}),
        "euclidean",
        "missing-cell",
        ("lat", 2),
    ),
    "null number": (pl.DataFrame({"lat": [1, None], "lon": [1, 2]}), "euclidean", "missing-cell", ("lat", 2)),
    "infinite": (np.array([[1.0, 2.0], [3.0, np.inf]]), "euclidean", "not-finite", ("identifier 2", 2)),
    "text for numbers": (pl.DataFrame({"lat": [SECRET], "lon": ["x"]}), "euclidean", "wrong-type", ("lat", None)),
    "latitude 91": (pl.DataFrame({"lat": [0.0, 91.0], "lon": [0.0, 0.0]}), "great-circle", "outside-range", ("lat", 2)),
    "longitude 181": (pl.DataFrame({"lat": [0.0], "lon": [181.0]}), "great-circle", "outside-range", ("lon", 1)),
    "three columns": (np.zeros((2, 3)), "great-circle", "column-count", None),
    "missing text": (pl.DataFrame({"name": [SECRET, None]}), "levenshtein", "missing-cell", ("name", 2)),
    "number for text": (pl.DataFrame({"name": [1, 2]}), "levenshtein", "wrong-type", ("name", None)),
    "two text columns": (pl.DataFrame({"a": ["x"], "b": ["y"]}), "levenshtein", "column-count", None),
    "no date": (pl.DataFrame({"born": ["1980-01-01", SECRET]}), "days", "not-a-date", ("born", 2)),
    "no bits": (np.zeros((2, 3)), "hamming", "not-packed-bits", None),
    "empty list": ([], "levenshtein", "no-records", None),
    "empty frame": (pl.DataFrame({"lat": [], "lon": []}), "euclidean", "no-records", None),
    "ragged": ([[1.0, 2.0], [3.0]], "euclidean", "ragged-table", None),
    "a word": ("left", "levenshtein", "unknown-table-type", None),
    "overflow": (np.array([[1e200]]), "euclidean", "number-too-large", None),
    "masked": (
        np.ma.masked_array([[1.0], [2.0]], mask=[[False], [True]]),
        "euclidean",
        "missing-cell",
        ("identifier 1", 2),
    ),
    "beyond 2**53": (np.array([[1], [2**53 + 1]]), "euclidean", "inexact-number", ("identifier 1", 2)),
    "far beyond": ([10**400], "euclidean", "inexact-number", ("identifier", 1)),
    "three dimensions": (np.zeros((2, 2, 2)), "euclidean", "table-shape", None),
    "rows and values": ([[1.0, 2.0], 3.0], "euclidean", "ragged-table", None),
    "half a rank": (np.array([[0.5, 2.0]]), "rank-hamming", "not-ranks", None),
    "no such time": (pd.DataFrame({"born": [pd.Timestamp("1980-01-01"), pd.NaT]}), "days", "missing-cell", ("born", 2)),
    "year 80": (["80-12-02"], "days", "not-a-date", ("identifier", 1)),
    "a date and more": (["2020-01-01garbage"], "days", "not-a-date", ("identifier", 1)),
    "two of a name": (pd.DataFrame(np.zeros((2, 2)), columns=["lat", "lat"]), "euclidean", "duplicate-column", None),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_bad_identifiers_are_named_without_their_value(case: str) -> None:
    table, metric, code, place = BAD[case]
    for search in (fedsim.link, topk):
        with raises(InputError, code, table="primary") as caught:
            search(table, table, metric=metric, k=1)
        assert place is None or (caught.value.column, caught.value.details.get("row")) == place
        assert SECRET not in str(caught.value)


def test_different_columns_are_refused() -> None:
    left, right = pl.DataFrame(PLACES), pl.DataFrame({"lat": [1.0], "height": [2.0]})
    for other in (right, right.select("lat")):
        with pytest.raises(InputError) as caught:
            fedsim.link(left, other, metric="euclidean", k=1)
        assert caught.value.code == "columns-differ"


def test_filters_of_different_size_are_refused() -> None:
    for width in (7, 16):
        with raises(InputError, "columns-differ"):
            topk(np.zeros((2, 8), np.uint8), np.zeros((2, width), np.uint8), metric="hamming", k=1)


@pytest.mark.parametrize("search", [fedsim.link, topk])
def test_mixed_fingerprints_are_refused_by_every_search(search: Any) -> None:
    ours, theirs = (EncodedTable(np.zeros((2, 8), np.uint8), 64, letter * 64) for letter in "ab")
    smaller, plain = EncodedTable(ours.bits, 62, ours.fingerprint), np.zeros((2, 8), np.uint8)
    for other, error, code in (
        (theirs, FingerprintError, "fingerprints-differ"),
        (smaller, FingerprintError, "filter-sizes-differ"),
        (plain, InputError, "one-table-encoded"),
    ):
        with pytest.raises(error) as caught:
            search(ours, other, metric="hamming", k=1)
        assert caught.value.code == code


@pytest.mark.parametrize("k", [1.0, "1", None, 1.5, True])
def test_k_that_is_no_whole_number_is_refused(k: Any) -> None:
    with pytest.raises(SettingError) as caught:
        fedsim.link(NAMES, NAMES, metric="levenshtein", k=k)
    assert caught.value.name == "k"


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int64])
def test_k_of_any_whole_type_is_accepted(kind: Any) -> None:
    assert (
        topk(np.arange(200.0)[:, None], np.arange(200.0)[:, None], metric="euclidean", k=kind(127))[0].shape[1] == 127
    )


@pytest.mark.parametrize(
    "settings",
    [{"threads": 0}, {"threads": "2"}, {"sigma": "0.1", "seed": 1}, {"seed": -1}, {"seed": "x"}, {"metric": None}],
    ids=str,
)
def test_odd_settings_are_answered_with_a_sentence(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        fedsim.link(NAMES, NAMES, **{"metric": "levenshtein", "k": 1, **settings})


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_outside_the_candidates_names_the_range(k: int) -> None:
    with raises(SettingError, "k-too-large" if k > 0 else "out-of-range", value=k, limit=3):
        fedsim.link(NAMES, NAMES, metric="levenshtein", k=k)


def test_an_unknown_metric_or_backend_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SettingError) as caught:
        topk(np.eye(2), np.eye(2), metric="euclidian", k=1)
    assert caught.value.code == "unknown-metric"
    with pytest.raises(SettingError) as caught:
        topk(np.eye(2), np.eye(2), metric="euclidean", k=1, backend="magic")
    assert caught.value.code == "unknown-backend"


def test_a_weighted_sum_names_the_absent_column_and_the_bad_weight() -> None:
    with pytest.raises(SettingError) as caught:
        WeightedSum((WeightedField("name", get_metric("levenshtein"), -1.0),))
    assert caught.value.code == "out-of-range"
    with pytest.raises(InputError) as caught:
        fedsim.link(
            pl.DataFrame({"name": NAMES}),
            pl.DataFrame({"name": NAMES}),
            metric=WeightedSum((WeightedField("street", get_metric("levenshtein")),)),
            k=1,
        )
    assert caught.value.code == "missing-column"


def test_places_join_a_weighted_sum_by_naming_both_columns() -> None:
    flats = pl.DataFrame({**PLACES, "street": ["oak", "elm", "ash"]})
    metric = WeightedSum((WeightedField("lat,lon", "great-circle", 0.001), WeightedField("street", "levenshtein")))
    assert fedsim.link(flats, flats, metric=metric, k=1).partner.tolist() == [[0], [1], [2]]


def test_a_weighted_sum_that_overflows_is_refused() -> None:
    table = pl.DataFrame({"x": [0.0, 1e19]})
    with pytest.raises(InputError) as caught:
        fedsim.link(table, table, metric=WeightedSum((WeightedField("x", "euclidean", 1e300),)), k=2)
    assert caught.value.code == "distance-overflow"


@pytest.mark.parametrize("unit", ["D", "ns", "s"])
def test_days_come_from_numpy_times_of_any_unit(unit: str) -> None:
    born = np.array(["1980-01-01", "1980-01-11"], f"datetime64[{unit}]")
    assert topk(born, born, metric="days", k=2)[1].tolist() == [[0.0, 10.0], [0.0, 10.0]]
