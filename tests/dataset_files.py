"""Small files in the formats of the public datasets."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl

RNG = np.random.default_rng(3)


ROWS = 40


PLACE_SPANS = {"lat": (40.7, 40.8), "lon": (-74.0, -73.9)}


def write(folder: Path, path: str, table: dict) -> Path:
    target = folder / path
    target.parent.mkdir(exist_ok=True)
    pl.DataFrame(table).write_csv(target)
    return target


def numbers(low: float, high: float) -> list[float]:
    return RNG.uniform(low, high, ROWS).round(6).tolist()


def words(*choices: str) -> list[str]:
    return [choices[row % len(choices)] for row in range(ROWS)]


def boone_file(folder: Path, signal: int = 6, background: int = 9, events: int = 15) -> Path:
    (folder / "boone").mkdir(exist_ok=True)
    path = folder / "boone" / "MiniBooNE_PID.txt"
    lines = ["  ".join(f"{value:.5e}" for value in RNG.normal(size=50)) for _ in range(events)]
    path.write_text(f"  {signal}  {background}\n" + "\n".join(lines) + "\n")
    return path


def taxi_files(folder: Path) -> tuple[Path, Path]:
    station = [100 + row % 5 for row in range(ROWS)]
    bikes = {
        "tripduration": [200 + row for row in range(ROWS - 1)] + [2500],
        "starttime": ["6/1/2016 00:00:18"] * ROWS,
        "stoptime": ["6/1/2016 00:10:18"] * ROWS,
        "start station id": station,
        "start station name": ["Broadway"] * ROWS,
        "start station latitude": numbers(40.7, 40.8),
        "start station longitude": numbers(-74.0, -73.9),
        "end station id": station[::-1],
        "end station name": ["Park Ave"] * ROWS,
        "end station latitude": numbers(40.7, 40.8),
        "end station longitude": numbers(-74.0, -73.9),
        "bikeid": list(range(ROWS)),
        "usertype": words("Subscriber", "Customer"),
        "birth year": [1980, None, *([1990] * (ROWS - 2))],
        "gender": [row % 3 for row in range(ROWS)],
    }
    taxis = {
        "VendorID": [1] * ROWS,
        "tpep_pickup_datetime": ["2016-06-09 21:06:36"] * ROWS,
        "tpep_dropoff_datetime": ["2016-06-09 21:16:36"] * (ROWS - 1) + ["2016-06-09 21:06:36"],
        "trip_distance": [0.0, 12.0, *([1.5] * (ROWS - 2))],
        "pickup_longitude": numbers(-74.0, -73.9),
        "pickup_latitude": numbers(40.7, 40.8),
        "dropoff_longitude": numbers(-74.0, -73.9),
        "dropoff_latitude": numbers(40.7, 40.8),
        "fare_amount": [8.5] * ROWS,
    }
    return (
        write(folder, "taxi/201606-citibike-tripdata.csv", bikes),
        write(folder, "taxi/yellow_tripdata_2016-06.csv", taxis),
    )


def taxi_samples(folder: Path) -> None:
    places = {f"{end}_{axis}": numbers(*span) for end in ("start", "end") for axis, span in PLACE_SPANS.items()}
    rides = {
        "start_ts": ["2017-04-01 00:07:17"] * ROWS,
        "duration": [200 + row for row in range(ROWS - 1)] + [2500],
        "start_station": [100 + row % 5 for row in range(ROWS)],
        "end_station": [100 + row % 4 for row in range(ROWS)],
        "subscriber": [row % 2 for row in range(ROWS)],
    }
    taken = {"start": "pickup", "end": "dropoff"}
    trips = {f"{taken[name.split('_')[0]]}_{name.split('_')[1]}": column for name, column in places.items()}
    trips |= {"duration_s": [None, *([600.0] * (ROWS - 1))], "distance_mi": [1.5] * (ROWS - 1) + [12.0]}
    for path, table in (("taxi/bike_trips.csv.gz", rides | places), ("taxi/taxi_trips.csv.gz", trips)):
        (folder / "taxi").mkdir(exist_ok=True)
        (folder / path).write_bytes(gzip.compress(pl.DataFrame(table).write_csv().encode()))


def company_files(folder: Path) -> tuple[Path, Path]:
    money = [f"${1000 * (row + 1):,}.00 " for row in range(ROWS)]
    loans = {
        "LoanNr_ChkDgt": list(range(ROWS)),
        "Name": [f"Firm {row} Ltd" for row in range(ROWS)],
        "State": words("NY", "CA", "TX"),
        "NAICS": words("451120", "722410", "0"),
        "ApprovalFY": ["1997"] * (ROWS - 1) + ["1976A"],
        "Term": [84] * ROWS,
        "NoEmp": [row % 9 for row in range(ROWS)],
        "NewExist": ["1", "2"] * (ROWS // 2),
        "CreateJob": [0] * ROWS,
        "RetainedJob": [1] * ROWS,
        "FranchiseCode": [1] * ROWS,
        "UrbanRural": words("0", "1", "2"),
        "RevLineCr": ["N", "Y", *(["N"] * (ROWS - 3)), "T"],
        "LowDoc": words("Y", "N"),
        "DisbursementGross": money,
        "BalanceGross": ["$0.00 "] * ROWS,
        "MIS_Status": words("P I F", "CHGOFF"),
        "ChgOffPrinGr": ["$0.00 "] * ROWS,
        "GrAppv": money,
        "SBA_Appv": money,
    }
    companies = {
        "": list(range(ROWS)),
        "name": [f"firm {row} limited" for row in range(ROWS)],
        "domain": [f"firm{row}.com" for row in range(ROWS)],
        "year founded": [1990.0] * ROWS,
        "industry": words("retail", "banking", "mining & metals"),
        "size range": words("1 - 10", "10001+"),
        "locality": ["new york"] * ROWS,
        "country": ["united states"] * (ROWS - 1) + ["india"],
        "current employee estimate": list(range(ROWS)),
        "total employee estimate": list(range(ROWS)),
    }
    return (
        write(folder, "company/SBAnational.csv", loans),
        write(folder, "company/companies_sorted.csv", companies),
    )


def game_files(folder: Path) -> tuple[Path, Path]:
    steam = {
        "appid": list(range(ROWS)),
        "name": ["Half-Life", "half life", "???", *(f"Game {row}" for row in range(ROWS - 3))],
        "english": [1] * ROWS,
        "required_age": [0] * ROWS,
        "categories": words("Single-player;Steam Cloud", "Multi-player"),
        "achievements": [3] * ROWS,
        "positive_ratings": list(range(ROWS)),
        "negative_ratings": list(range(ROWS)),
        "average_playtime": [5] * ROWS,
        "median_playtime": [5] * ROWS,
        "owners": words("0-20000", "20000-50000", "50000-100000"),
        "price": [4.99] * ROWS,
    }
    info = {
        "id": list(range(ROWS)),
        "slug": [f"game-{row}" for row in range(ROWS)],
        "name": [f"Game: {row}" for row in range(ROWS)],
        "metacritic": [None] * ROWS,
        "released": ["2015-12-18", None, *(["2010-01-01"] * (ROWS - 2))],
        "tba": ["False"] * ROWS,
        "updated": ["2019-09-17T11:58:57"] * ROWS,
        "website": ["http://x", *([None] * (ROWS - 1))],
        "rating": [2.5] * ROWS,
        "playtime": [0, 0, 500, *([2] * (ROWS - 3))],
        "platforms": words("PC||macOS", "PC"),
        "genres": words("Indie", "Action||Indie"),
    }
    counts = ("achievements_count", "suggestions_count", "game_series_count", "reviews_count")
    status = (f"added_status_{word}" for word in ("yet", "owned", "beaten", "toplay", "dropped", "playing"))
    info |= {name: list(range(ROWS)) for name in (*counts, *status)}
    return write(folder, "game/steam.csv", steam), write(folder, "game/game_info.csv", info)


def house_files(folder: Path) -> tuple[Path, Path]:
    """The homes as Lianjia's public table has them: GBK text beside the digits, one cell a spreadsheet's complaint."""
    homes = {
        "url": ["x"] * ROWS,
        "id": list(range(ROWS)),
        "Lng": numbers(116.2, 116.6),
        "Lat": numbers(39.8, 40.1),
        "Cid": [1111027376244 + row % 4 for row in range(ROWS)],
        "tradeTime": ["2016-08-09", "2012-03-04", *(["2017-11-30"] * (ROWS - 2))],
        "DOM": [10.0, 10.0, None, *([5.0] * (ROWS - 3))],
        "followers": [1] * ROWS,
        "totalPrice": [415.0, 415.0, 415.0, 1000.0, 9.0, *([300.0] * (ROWS - 5))],
        "price": [31680] * ROWS,
        "square": numbers(40, 140),
        "livingRoom": ["2"] * (ROWS - 1) + ["#NAME?"],
        "drawingRoom": ["1"] * ROWS,
        "kitchen": [1] * ROWS,
        "bathRoom": ["1"] * ROWS,
        "floor": words("高 26", "低 6"),
        "buildingType": words("1", "4"),
        "constructionTime": ["2005"] * (ROWS - 2) + ["未知", "2005"],
        "renovationCondition": words("1", "3", "4"),
        "buildingStructure": words("6", "2"),
        "ladderRatio": [0.5] * ROWS,
        "elevator": [1] * ROWS,
        "fiveYearsProperty": [0] * ROWS,
        "subway": [1] * ROWS,
        "district": words("7", "10"),
        "communityAverage": [56021] * ROWS,
    }
    listings = {
        "lat": numbers(39.8, 40.1),
        "lon": numbers(116.2, 116.6),
        "price": numbers(100, 900),
        "minimum_nights": [1] * ROWS,
        "number_of_reviews": [3] * ROWS,
    }
    path = write(folder, "house/new.csv", homes)
    path.write_bytes(path.read_text(encoding="utf-8").encode("gbk"))
    return path, write(folder, "house/airbnb_clean.csv", listings)


def frog_file(folder: Path) -> Path:
    columns = {f"MFCCs_{number:2}": numbers(-1, 1) for number in range(1, 23)}
    labels = {
        "Family": ["Hylidae"] * ROWS,
        "Genus": ["Hyla"] * ROWS,
        "Species": words("a", "b"),
        "RecordID": [1] * ROWS,
    }
    return write(folder, "frog/Frogs_MFCCs.csv", columns | labels)
