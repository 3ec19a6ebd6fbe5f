"""Bike rides in New York and taxi rides between the same places (paper: taxi).

The paper's text swaps the parties; the label behind its figures is the duration of a bike ride.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.cells import CellType, read_cells
from fedsim.data.table_reader import read_table
from fedsim_lab.datasets import cleaning, dataset, paper_scores

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
# Names in merged samples of the same sources, which hold no birth year or gender, and durations instead of clocks.
SAMPLED_RIDES = {"duration": LABEL, "start_station": "start station id", "end_station": "end station id"}
SAMPLED_TRIPS = {
    "distance_mi": "trip_distance",
    "duration_s": "taxi_duration",
    "pickup_lat": "start_lat",
    "pickup_lon": "start_lon",
    "dropoff_lat": "end_lat",
    "dropoff_lon": "end_lon",
}
RIDES, TRIPS = 200_000, 100_000
YEAR = 2016
MOST_SECONDS = 2000

TAXI_INFO = dataset.DatasetInfo(
    name="taxi",
    title="bike and taxi rides in New York",
    task=dataset.DatasetTask.REGRESSION,
    measure="rmse",
    unit="seconds",
    records=(RIDES, TRIPS),
    files=(
        dataset.DatasetFile(
            "bikes",
            (
                "taxi/201606-citibike-tripdata.csv",
                "taxi/201606-citibike-tripdata.csv.gz",
                "taxi/bike_trips.csv.gz",
            ),
            "rides of June 2016, with stations, birth year and gender; or a sample of 2017, with stations alone",
            "Citi Bike, System data (archive of trip histories)",
            "NYCBS Data Use Policy",
        ),
        dataset.DatasetFile(
            "taxis",
            (
                "taxi/yellow_tripdata_2016-06.csv",
                "taxi/yellow_tripdata_2016-06.csv.gz",
                "taxi/taxi_trips.csv.gz",
            ),
            "trips of June 2016 with coordinates (later files have zones instead); or a sample of 2009 to 2016",
            "NYC Taxi and Limousine Commission, Trip record data",
            "all rights reserved",
        ),
    ),
    scores=paper_scores.TAXI,
    note="which 200,000 and 100,000 records the authors drew is not known; ours are drawn anew",
)


def read_taxi(paths: Mapping[str, Path], rng: np.random.Generator) -> dataset.Dataset:
    """Draw rides below 2000 seconds and trips below 10 miles and 10,000 seconds, as many of each as the paper had."""
    bikes, taxis = (
        cleaning.sample_rows(read(paths[name]), count, rng)
        for name, read, count in (("bikes", _bikes, RIDES), ("taxis", _taxis, TRIPS))
    )
    if "gender" in bikes.columns:  # after the draw: a million rides with a thousand columns would not fit
        bikes = cleaning.one_hot(bikes, {"gender": "gender", **STATIONS})
    filters = dataset.NumberFilterSettings(epsilon=0.1, delta=0.1, threshold=0.02)
    link = dataset.LinkSpec(ENDS, ENDS, "euclidean", 50, filters=filters)
    trips = dataset.PartyTable(taxis, ("trip_distance", "taxi_duration"), {"all others": "as in the paper"})
    dropped = {
        "starttime, stoptime": "their difference is the label",
        "bikeid": "unrelated to the ride",
        "usertype": "riders with a birth year are subscribers, all but a few",
        "start station name, end station name": "the stations' numbers are kept",
    }
    return dataset.Dataset(
        about=TAXI_INFO,
        primary=dataset.PartyTable.excluding((LABEL, *ENDS), bikes, dropped),
        label=LABEL,
        secondaries=(dataset.SecondaryTable("taxis", trips, link),),
    )


def _bikes(path: Path) -> pl.DataFrame:
    if "duration" in read_table(path, None).columns:
        frame = cleaning.read_columns(path, [*SAMPLED_RIDES, "subscriber", *ENDS], ["duration", "subscriber", *ENDS])
        frame = cleaning.drop_incomplete_rows(frame.rename(SAMPLED_RIDES), path).filter(pl.col(LABEL) < MOST_SECONDS)
        return cleaning.require_rows(frame, path, f"a duration below {MOST_SECONDS} seconds")
    needed = [LABEL, "birth year", *BIKE_ENDS]
    frame = cleaning.drop_incomplete_rows(cleaning.read_columns(path, [*needed, "gender", *STATIONS], needed), path)
    frame = frame.filter(pl.col(LABEL) < MOST_SECONDS)
    frame = cleaning.require_rows(frame, path, f"a {LABEL} below {MOST_SECONDS} seconds").rename(BIKE_ENDS)
    return frame.with_columns(age=YEAR - pl.col("birth year")).drop("birth year")


def _taxis(path: Path) -> pl.DataFrame:
    if "duration_s" in read_table(path, None).columns:
        frame = cleaning.read_columns(path, list(SAMPLED_TRIPS), list(SAMPLED_TRIPS)).rename(SAMPLED_TRIPS)
        frame = cleaning.drop_incomplete_rows(frame, path)
    else:
        needed = ["trip_distance", *TAXI_ENDS]
        frame = cleaning.read_columns(path, [*needed, *CLOCK], needed)
        times = [read_cells(frame[name], CellType.DATE).require(str(path), allow_missing=True) for name in CLOCK]
        frame = cleaning.drop_incomplete_rows(frame.with_columns(times), path)
        frame = frame.with_columns(taxi_duration=(pl.col(CLOCK[1]) - pl.col(CLOCK[0])).dt.total_seconds())
        frame = frame.drop(CLOCK).rename(TAXI_ENDS)
    frame = frame.filter(
        pl.col("trip_distance").is_between(0, 10, closed="none"),
        pl.col("taxi_duration").is_between(0, 10_000, closed="none"),
    )
    return cleaning.require_rows(frame, path, "a trip of 0 to 10 miles")
