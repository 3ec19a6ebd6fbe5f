"""Whatever holds identifiers is accepted; a fault is named by table, column and row, never by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fedsim
from fedsim.errors import FedSimError, FingerprintError, InputError, SettingError
from fedsim.linkage import Field, WeightedSum, metric_named, topk
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
    ],
    ids=["float64", "float32", "list", "pandas", "polars", "arrow"],
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
    "missing number": (pd.DataFrame({"lat": [1.0, np.nan], "lon": [1.0, 2.0]}), "euclidean", "column 'lat', row 2"),
    "null number": (pl.DataFrame({"lat": [1, None], "lon": [1, 2]}), "euclidean", "column 'lat', row 2"),
    "infinite": (np.array([[1.0, 2.0], [3.0, np.inf]]), "euclidean", "row 2"),
    "text for numbers": (pl.DataFrame({"lat": [SECRET], "lon": ["x"]}), "euclidean", "column 'lat', row 1"),
    "latitude 91": (pl.DataFrame({"lat": [0.0, 91.0], "lon": [0.0, 0.0]}), "great-circle", "column 'lat', row 2"),
    "longitude 181": (pl.DataFrame({"lat": [0.0], "lon": [181.0]}), "great-circle", "column 'lon', row 1"),
    "three columns": (np.zeros((2, 3)), "great-circle", "two, latitude then longitude"),
    "missing text": (pl.DataFrame({"name": [SECRET, None]}), "levenshtein", "column 'name', row 2"),
    "number for text": (pl.DataFrame({"name": [1, 2]}), "levenshtein", "column 'name', row 1"),
    "two text columns": (pl.DataFrame({"a": ["x"], "b": ["y"]}), "levenshtein", "one column"),
    "no date": (pl.DataFrame({"born": ["1980-01-01", SECRET]}), "days", "column 'born', row 2"),
    "no bits": (np.zeros((2, 3)), "hamming", "packed bits"),
    "empty list": ([], "levenshtein", "no records"),
    "empty frame": (pl.DataFrame({"lat": [], "lon": []}), "euclidean", "no records"),
    "ragged": ([[1.0, 2.0], [3.0]], "euclidean", "same number"),
    "a word": ("left", "levenshtein", "NumPy array"),
    "overflow": (np.array([[1e200]]), "euclidean", "overflow"),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_bad_identifiers_are_named_without_their_value(case: str) -> None:
    table, metric, named = BAD[case]
    with pytest.raises(InputError, match="primary") as caught:
        fedsim.link(table, table, metric=metric, k=1)
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)


def test_different_columns_are_refused() -> None:
    left, right = pl.DataFrame(PLACES), pl.DataFrame({"lat": [1.0], "height": [2.0]})
    with pytest.raises(InputError, match=r"lat, lon.*lat, height"):
        fedsim.link(left, right, metric="euclidean", k=1)
    with pytest.raises(InputError, match="2 identifier columns and the secondary 1"):
        fedsim.link(left, right.select("lat"), metric="euclidean", k=1)


def test_filters_of_different_size_are_refused() -> None:
    with pytest.raises(InputError, match="same size"):
        topk(np.zeros((2, 8), np.uint8), np.zeros((2, 16), np.uint8), metric="hamming", k=1)


def test_mixed_fingerprints_are_refused() -> None:
    ours, theirs = (EncodedTable(np.zeros((2, 8), np.uint8), 64, letter * 64) for letter in "ab")
    with pytest.raises(FingerprintError, match="different schemas or keys"):
        fedsim.link(ours, theirs, metric="hamming", k=1)
    with pytest.raises(InputError, match="one table is encoded"):
        fedsim.link(ours, np.zeros((2, 8), np.uint8), metric="hamming", k=1)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_outside_the_candidates_names_the_range(k: int) -> None:
    with pytest.raises(SettingError, match=f"k={k} .* choose k between 1 and 3"):
        fedsim.link(NAMES, NAMES, metric="levenshtein", k=k)


def test_an_unknown_metric_backend_or_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match="did you mean 'euclidean'"):
        topk(np.eye(2), np.eye(2), metric="euclidian", k=1)
    with pytest.raises(SettingError, match="choose auto, tree"):
        topk(np.eye(2), np.eye(2), metric="euclidean", k=1, backend="magic")
    with pytest.raises(SettingError, match="auto, cpu or cuda"):
        topk(np.eye(2), np.eye(2), metric="euclidean", k=1, device="tpu")
    with pytest.raises(FedSimError, match="no GPU search"):
        topk(NAMES, NAMES, metric="levenshtein", k=1, device="cuda")


def test_a_weighted_sum_names_the_absent_column_and_the_bad_weight() -> None:
    with pytest.raises(SettingError, match="positive"):
        WeightedSum((Field("name", metric_named("levenshtein"), -1.0),))
    with pytest.raises(InputError, match="no column 'street'"):
        fedsim.link(
            pl.DataFrame({"name": NAMES}),
            pl.DataFrame({"name": NAMES}),
            metric=WeightedSum((Field("street", metric_named("levenshtein")),)),
            k=1,
        )
