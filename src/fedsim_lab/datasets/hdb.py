"""Flat resales in Singapore and nearby schools (paper: hdb)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets.cleaning import cast_to_numbers, read_with_columns
from fedsim_lab.datasets.dataset import (
    Dataset,
    DatasetFile,
    DatasetInfo,
    DatasetTask,
    LinkSpec,
    NumberFilterSettings,
    PartyTable,
    SecondaryTable,
)
from fedsim_lab.datasets.paper_scores import HDB

LABEL = "resale_price"
PLACE = ("lat", "lon")
LISTED = ("latitude", "longitude")
STATIONED = ("Latitude", "Longitude")
LISTING_NUMBERS = (
    "price",
    "minimum_nights",
    "number_of_reviews",
    "reviews_per_month",
    "calculated_host_listings_count",
    "availability_365",
)
LISTING_WORDS = ("neighbourhood_group", "neighbourhood", "room_type")
FILTERS = NumberFilterSettings(epsilon=0.005, delta=0.005, threshold=0.01)

HDB_INFO = DatasetInfo(
    name="hdb",
    title="flats in Singapore, schools",
    task=DatasetTask.REGRESSION,
    measure="rmse",
    unit="1000 S$",
    records=(92_095, 165),
    files=(
        DatasetFile(
            "flats",
            ("hdb/flats.csv.gz", "hdb/flats.csv"),
            "resales 2017-2021 with coordinates; categories as columns of zeros and ones",
            "data.gov.sg, Resale flat prices; coordinates by street from OneMap",
            "Singapore Open Data Licence",
        ),
        DatasetFile(
            "schools",
            ("hdb/schools.csv", "hdb/school_clean.csv"),
            "165 primary schools with places and vacancies",
            "salary.sg, school ranking; the authors' file is in their repository",
            "CC0 1.0",
        ),
        DatasetFile(
            "rentals",
            ("hdb/airbnb_singapore.csv.gz", "hdb/listings.csv"),
            "listings with prices, a further secondary",
            "Inside Airbnb, Singapore (summary listings)",
            "CC0 1.0",
            needed=False,
        ),
        DatasetFile(
            "stations",
            ("hdb/mrt_stations.csv",),
            "187 railway stations, a further secondary",
            "data.gov.sg, MRT stations",
            "Singapore Open Data Licence",
            needed=False,
        ),
    ),
    scores=HDB,
    note="the authors' n_places columns are constant, and their Solo kept latitude and longitude",
)


def read_hdb(paths: Mapping[str, Path], rng: np.random.Generator) -> Dataset:
    """Flats and schools; rentals and stations too where their files are."""
    flats = _numbers(paths["flats"], [LABEL, *PLACE, "floor_area_sqm"], ())
    readers = {"rentals": _rentals, "stations": _stations}
    further = [reader(paths[name]) for name, reader in readers.items() if name in paths]
    return Dataset(
        about=HDB_INFO,
        primary=PartyTable(flats, tuple(name for name in flats.columns if name not in (LABEL, *PLACE))),
        label=LABEL,
        secondaries=(_schools(paths["schools"]), *further),
    )


def _schools(path: Path) -> SecondaryTable:
    frame = _numbers(path, [*PLACE, "vacancy_rate_0"], ("school_name",))
    features = tuple(name for name in frame.columns if name not in PLACE)
    dropped = {"school_name": "a name, different in every row"}
    return SecondaryTable(
        "schools", PartyTable(frame, features, dropped), LinkSpec(PLACE, PLACE, "euclidean", 50, filters=FILTERS)
    )


def _rentals(path: Path) -> SecondaryTable:
    frame = read_with_columns(path, [*LISTED, *LISTING_NUMBERS, *LISTING_WORDS])
    frame = cast_to_numbers(frame.select(*LISTED, *LISTING_NUMBERS, *LISTING_WORDS), [*LISTED, *LISTING_NUMBERS], path)
    # No review has no rate of reviews.
    frame = frame.with_columns(pl.col("reviews_per_month").fill_null(0.0))
    dropped = {"id": "a number, different in every row", "last_review": "a date that a third of the rows lack"}
    return SecondaryTable(
        "rentals",
        PartyTable(frame, (*LISTING_NUMBERS, *LISTING_WORDS), dropped),
        LinkSpec(PLACE, LISTED, "euclidean", 20),
    )


def _stations(path: Path) -> SecondaryTable:
    frame = cast_to_numbers(read_with_columns(path, [*STATIONED, "COLOR"]).select(*STATIONED, "COLOR"), STATIONED, path)
    dropped = {"STN_NAME": "a name", "STN_NO": "a name", "OBJECTID": "a number of the row", "X, Y": "the place again"}
    return SecondaryTable(
        "stations", PartyTable(frame, ("COLOR",), dropped), LinkSpec(PLACE, STATIONED, "euclidean", 5)
    )


def _numbers(path: Path, needed: list[str], dropped: tuple[str, ...]) -> pl.DataFrame:
    frame = read_with_columns(path, needed).drop(dropped, strict=False)
    return cast_to_numbers(frame, frame.columns, path)
