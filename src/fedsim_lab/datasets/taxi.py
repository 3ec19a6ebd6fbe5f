"""Bike rides in New York and taxi rides between the same places (paper: taxi).

The paper's text has the parties the other way round; the label of its figures is the time of a bike ride.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.cells import CellType, read_cells
from fedsim_lab.datasets.cleaning import (
    cast_to_numbers,
    drop_incomplete_rows,
    one_hot,
    read_with_columns,
    require_rows,
    sample_rows,
)
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
from fedsim_lab.datasets.paper_scores import TAXI

LABEL = "tripduration"
ENDS = ("start_lat", "start_lon", "end_lat", "end_lon")
BIKE_ENDS = {
    "start station latitude": "start_lat",
    "start station longitude": "start_lon",
    "end station latitude": "end_lat",
    "end station longitude": "end_lon",
}
TAXI_ENDS = {
    "pickup_latitude": "start_lat",
    "pickup_longitude": "start_lon",
    "dropoff_latitude": "end_lat",
    "dropoff_longitude": "end_lon",
}
STATIONS = {"start station id": "sid", "end station id": "eid"}
CLOCK = ("tpep_pickup_datetime", "tpep_dropoff_datetime")
RIDES, TRIPS = 200_000, 100_000
YEAR = 2016

TAXI_INFO = DatasetInfo(
    name="taxi",
    title="bike and taxi rides in New York",
    task=DatasetTask.REGRESSION,
    measure="rmse",
    unit="seconds",
    records=(RIDES, TRIPS),
    files=(
        DatasetFile(
            "bikes",
            ("taxi/201606-citibike-tripdata.csv", "taxi/201606-citibike-tripdata.csv.gz"),
            "rides of June 2016, with stations, birth year and gender",
            "Citi Bike, System data (archive of trip histories)",
            "NYCBS Data Use Policy",
        ),
        DatasetFile(
            "taxis",
            ("taxi/yellow_tripdata_2016-06.csv", "taxi/yellow_tripdata_2016-06.csv.gz"),
            "trips of June 2016 with coordinates (later files have zones instead)",
            "NYC Taxi and Limousine Commission, Trip record data",
            "all rights reserved",
        ),
    ),
    scores=TAXI,
    note="which 200,000 and 100,000 records the authors drew is not known; ours are drawn anew",
)


def read_taxi(paths: Mapping[str, Path], rng: np.random.Generator) -> Dataset:
    """Rides below 2000 seconds, and trips of at most 10 miles and 10,000 seconds; as many of each as the paper had."""
    bikes = sample_rows(_bikes(paths["bikes"]), RIDES, rng)
    taxis = sample_rows(_taxis(paths["taxis"]), TRIPS, rng)
    # After the draw: a million rides with a thousand columns would not fit.
    for column, prefix in {"gender": "gender", **STATIONS}.items():
        bikes = one_hot(bikes, column, prefix)
    link = LinkSpec(ENDS, ENDS, "euclidean", 50, filters=NumberFilterSettings(epsilon=0.1, delta=0.1, threshold=0.02))
    dropped = {
        "starttime, stoptime": "their difference is the label",
        "bikeid": "says nothing of the ride",
        "usertype": "riders with a birth year are subscribers, all but a few",
        "start station name, end station name": "the stations' numbers are kept",
    }
    return Dataset(
        about=TAXI_INFO,
        primary=PartyTable(bikes, tuple(name for name in bikes.columns if name not in (LABEL, *ENDS)), dropped),
        label=LABEL,
        secondaries=(
            SecondaryTable(
                "taxis", PartyTable(taxis, ("trip_distance", "taxi_duration"), {"all others": "as in the paper"}), link
            ),
        ),
    )


def _bikes(path: Path) -> pl.DataFrame:
    needed = [LABEL, "birth year", *BIKE_ENDS]
    frame = read_with_columns(path, [*needed, "gender", *STATIONS]).select(*needed, "gender", *STATIONS)
    frame = drop_incomplete_rows(cast_to_numbers(frame, needed, path), path).filter(pl.col(LABEL) < 2000)
    frame = require_rows(frame, path, f"a {LABEL} below 2000 seconds").rename(BIKE_ENDS)
    return frame.with_columns(age=YEAR - pl.col("birth year")).drop("birth year")


def _taxis(path: Path) -> pl.DataFrame:
    needed = ["trip_distance", *TAXI_ENDS]
    frame = read_with_columns(path, [*needed, *CLOCK]).select(*needed, *CLOCK)
    frame = cast_to_numbers(frame, needed, path)
    frame = drop_incomplete_rows(
        frame.with_columns(
            read_cells(frame[name], CellType.DATE).require(str(path), allow_missing=True) for name in CLOCK
        ),
        path,
    )
    frame = frame.with_columns(taxi_duration=(pl.col(CLOCK[1]) - pl.col(CLOCK[0])).dt.total_seconds())
    frame = frame.filter(
        pl.col("trip_distance").is_between(0, 10, closed="none"),
        pl.col("taxi_duration").is_between(0, 10_000, closed="none"),
    )
    return require_rows(frame, path, "a trip of 0 to 10 miles").drop(CLOCK).rename(TAXI_ENDS)
