"""Flat resales in Singapore and nearby schools (paper: hdb)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim_lab.datasets import cleaning, dataset, paper_scores

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
FILTERS = dataset.NumberFilterSettings(epsilon=0.005, delta=0.005, threshold=0.01)

HDB_INFO = dataset.DatasetInfo(
    name="hdb",
    title="flats in Singapore, schools",
    task=dataset.DatasetTask.REGRESSION,
    measure="rmse",
    unit="1000 S$",
    records=(92_095, 165),
    files=(
        dataset.DatasetFile(
            "flats",
            ("hdb/flats.csv.gz", "hdb/flats.csv"),
            "resales 2017-2021 with coordinates; categories as columns of zeros and ones",
            "data.gov.sg, Resale flat prices; coordinates by street from OneMap",
            "Singapore Open Data Licence",
        ),
        dataset.DatasetFile(
            "schools",
            ("hdb/schools.csv", "hdb/school_clean.csv"),
            "165 primary schools with places and vacancies",
            "salary.sg, school ranking; the authors' file is in their repository",
            "CC0 1.0",
        ),
        dataset.DatasetFile(
            "rentals",
            ("hdb/airbnb_singapore.csv.gz", "hdb/listings.csv"),
            "listings with prices, a further secondary",
            "Inside Airbnb, Singapore (summary listings)",
            "CC0 1.0",
            needed=False,
        ),
        dataset.DatasetFile(
            "stations",
            ("hdb/mrt_stations.csv",),
            "187 railway stations, a further secondary",
            "data.gov.sg, MRT stations",
            "Singapore Open Data Licence",
            needed=False,
        ),
    ),
    scores=paper_scores.HDB,
    note="the authors' n_places columns are constant, and their Solo kept latitude and longitude",
)


def read_hdb(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Read flats and schools, and rentals and stations where their files are present."""
    flats = _numbers(paths["flats"], [LABEL, *PLACE, "floor_area_sqm"], ())
    readers = {"rentals": _rentals, "stations": _stations}
    further = [reader(paths[name]) for name, reader in readers.items() if name in paths]
    return dataset.Dataset(
        about=HDB_INFO,
        primary=dataset.PartyTable.excluding((LABEL, *PLACE), flats),
        label=LABEL,
        secondaries=(_schools(paths["schools"]), *further),
    )


def _schools(path: Path) -> dataset.SecondaryTable:
    frame = _numbers(path, [*PLACE, "vacancy_rate_0"], ("school_name",))
    table = dataset.PartyTable.excluding(PLACE, frame, {"school_name": "a name, different in every row"})
    return dataset.SecondaryTable("schools", table, dataset.LinkSpec(PLACE, PLACE, "euclidean", 50, filters=FILTERS))


def _rentals(path: Path) -> dataset.SecondaryTable:
    numbers = [*LISTED, *LISTING_NUMBERS]
    frame = cleaning.read_columns(path, [*numbers, *LISTING_WORDS], numbers)
    frame = frame.with_columns(pl.col("reviews_per_month").fill_null(0.0))  # missing where there is no review
    dropped = {"id": "a number, different in every row", "last_review": "a date that a third of the rows lack"}
    table = dataset.PartyTable(frame, (*LISTING_NUMBERS, *LISTING_WORDS), dropped)
    return dataset.SecondaryTable("rentals", table, dataset.LinkSpec(PLACE, LISTED, "euclidean", 20))


def _stations(path: Path) -> dataset.SecondaryTable:
    frame = cleaning.read_columns(path, [*STATIONED, "COLOR"], STATIONED)
    dropped = {"STN_NAME": "a name", "STN_NO": "a name", "OBJECTID": "a number of the row", "X, Y": "the place again"}
    table = dataset.PartyTable(frame, ("COLOR",), dropped)
    return dataset.SecondaryTable("stations", table, dataset.LinkSpec(PLACE, STATIONED, "euclidean", 5))


def _numbers(path: Path, needed: list[str], dropped: tuple[str, ...]) -> pl.DataFrame:
    frame = cleaning.read_with_columns(path, needed).drop(dropped, strict=False)
    return cleaning.cast_to_numbers(frame, frame.columns, path)
