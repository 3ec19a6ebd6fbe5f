"""A party's table: labels and splits, and identifiers as they are blurred, compared and encoded."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.config.job import Blur, SecondaryTerms
from fedsim.errors import InputError
from fedsim.linkage.encoding import DateFilter, Key, NumericFilter, Schema, SchemaField, StringFilter
from fedsim.pipeline.party_table import PartyData, blur_identifiers, encode_table, normalise_identifiers
from fedsim.privacy.geodesy import great_circle_metres
from job_fixtures import lay_out, read_all

TEXT, LITERAL = StringFilter(), StringFilter(normalised=False)
NUMBER, DATE = NumericFilter(-5, 5, 1.0), DateFilter(date(2000, 1, 1), date(2020, 1, 1), 30)
WAYS = [
    ([SchemaField("x", TEXT)], {"x": ["Straße 1", "STRASSE  1 ", "Strasse 2"]}),
    ([SchemaField("x", LITERAL)], {"x": ["Ada", "ADA", "Ada "]}),
    ([SchemaField("x", TEXT), SchemaField("x", LITERAL)], {"x": ["Ada", "ADA", "Ada"]}),
    ([SchemaField("x", NUMBER)], {"x": ["1", "1.0", "-0"]}),
    ([SchemaField("x", NUMBER)], {"x": [0.0, -0.0, 1.0]}),
    ([SchemaField("x", DATE)], {"x": ["2001-12-31", " 2001-12-31", "2001-11-30"]}),
    ([SchemaField("x", TEXT, salt="y")], {"x": ["ada", "Ada", "ada"], "y": ["S", "s", "t"]}),
    ([SchemaField("x", TEXT, salt="y")], {"x": ["ada", "Ada", "ada"], "y": [1990, 1990, 1991]}),
]


@pytest.mark.parametrize(("fields", "cells"), WAYS)
def test_records_are_equal_exactly_where_their_filters_are(
    fields: list[SchemaField], cells: dict[str, list[object]]
) -> None:
    schema, frame = Schema(fields), pl.DataFrame(cells)
    bits = encode_table(schema, frame, Key(bytes(32)), "ours").bits
    rows = normalise_identifiers(schema, frame, "ours").rows()
    assert [[left == right for right in rows] for left in rows] == np.all(bits[:, None] == bits[None], axis=2).tolist()


def test_both_parties_see_the_same_wherever_they_keep_a_year() -> None:
    schema = Schema([SchemaField("x", TEXT, salt="year")])
    ours, theirs = (pl.DataFrame({"x": ["ada"], "year": [year]}) for year in ("1990", 1990))
    assert normalise_identifiers(schema, ours, "ours").equals(normalise_identifiers(schema, theirs, "theirs"))


PLACES = pl.DataFrame({"lat": [1.3, 1.31, 1.32], "lon": [103.8, 103.81, 103.82]})


def terms(low: float = -90.0, epsilon_per_km: float = 10) -> SecondaryTerms:
    fields = [SchemaField("lat", NumericFilter(low, 90, 0.1)), SchemaField("lon", NumericFilter(-180, 180, 0.1))]
    blur = Blur(latitude="lat", longitude="lon", epsilon_per_km=epsilon_per_km)
    return SecondaryTerms(k=1, blur=blur, schema=Schema(fields))


def test_a_place_blurred_out_of_the_agreed_range_is_brought_back_to_its_edge():
    many = pl.DataFrame({"lat": np.linspace(1.3, 1.4, 150), "lon": np.linspace(103.7, 103.9, 150)})
    moved = blur_identifiers(many, terms(low=1.3, epsilon_per_km=0.1), bytes(32), "primary")
    assert moved["lat"].min() == 1.3


def test_a_blurred_place_moves_by_the_promised_distance_and_to_the_same_place_again():
    many = pl.concat([PLACES] * 700).with_columns(lat=pl.col("lat") + pl.Series(np.linspace(0, 0.1, 2100)))
    moved = blur_identifiers(many, terms(), bytes(32), "primary")
    metres = 111_195 * np.hypot(*(moved.to_numpy() - many.to_numpy()).T)
    assert metres.mean() == pytest.approx(200, rel=0.06)
    assert moved.equals(blur_identifiers(many, terms(), bytes(32), "primary"))


def test_without_blur_identifiers_stay_as_they_are():
    plain = terms().model_copy(update={"blur": None})
    assert blur_identifiers(PLACES, plain, bytes(32), "primary") is PLACES


def blurred_places(epsilon: float, places: pl.DataFrame) -> np.ndarray:
    schema = Schema([SchemaField(name, NumericFilter(0.0, 180.0, 1.0)) for name in ("lat", "lon")])
    blur = Blur(latitude="lat", longitude="lon", epsilon_per_km=epsilon)
    return blur_identifiers(places, SecondaryTerms(k=1, schema=schema, blur=blur), bytes(32), "t").to_numpy()


def test_a_place_moves_to_where_it_moved_before_in_whatever_company():
    places = pl.DataFrame({"lat": [1.31, 1.32, 1.31], "lon": [103.8, 103.9, 103.8]})
    found = blurred_places(5.0, places)
    assert found[0].tolist() == found[2].tolist() != found[1].tolist()
    assert blurred_places(5.0, places[1:2])[0].tolist() == found[1].tolist()


def test_two_blurs_of_one_place_do_not_give_it_away():
    places = pl.DataFrame({"lat": np.linspace(1.25, 1.45, 50), "lon": np.linspace(103.7, 104.0, 50)})
    five, two = blurred_places(5.0, places), blurred_places(2.0, places)
    solved = (5.0 * five - 2.0 * two) / 3.0
    assert np.median(great_circle_metres(solved, places.to_numpy())) > 100.0


def test_classes_may_be_missing(tmp_path: Path) -> None:
    lay_out(tmp_path, {"job": {"regression": "classification"}, "city": {"flats.csv": "classes.csv", "price": "dear"}})
    flats = pl.read_csv(tmp_path / "classes.csv")
    flats.with_columns(dear=pl.when(pl.int_range(pl.len()) >= 5).then(pl.col("dear"))).write_csv(
        tmp_path / "classes.csv"
    )
    job, files = read_all(tmp_path)
    table = PartyData.read(job, files["city"])
    labels, classes = table.labels
    split = table.draw_split("group", np.random.default_rng(0))
    assert (labels[:6] < 0).tolist() == [True] * 5 + [False]
    assert len(classes) == 2
    assert split.unlabelled.tolist() == list(range(5))
    assert len(split.train) + len(split.validation) + len(split.test) == len(flats) - 5


def test_the_logarithm_of_a_label_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path, {"job": {'kind = "regression"': 'kind = "regression"\nlabel_scale = "log"'}})
    flats = pl.read_csv(tmp_path / "flats.csv")
    flats.with_columns(price=pl.col("price") - pl.col("price").min()).write_csv(tmp_path / "flats.csv")
    job, files = read_all(tmp_path, approved=False)
    with pytest.raises(InputError) as refused:
        _ = PartyData.read(job, files["city"]).labels
    assert refused.value.code == "label-not-positive"
