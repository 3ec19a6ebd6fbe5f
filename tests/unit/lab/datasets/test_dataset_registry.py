"""Files in the public formats, made up and small, load; other files are refused by name and column."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.contribution.rungs import Rung, run_training
from fedsim.errors import FileError, InputError
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.datasets.dataset_registry import load_dataset

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


def spoil(path: Path, column: str, cell: str) -> None:
    frame = pl.read_csv(path, infer_schema=False)
    cells = frame[column].to_list()
    cells[4] = cell
    frame.with_columns(pl.Series(column, cells)).write_csv(path)


def without(path: Path, column: str) -> None:
    pl.read_csv(path, infer_schema=False).drop(column).write_csv(path)


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


def test_taxi_reads_samples_where_the_authors_files_are_missing(tmp_path: Path) -> None:
    taxi_samples(tmp_path)
    taxi = load_dataset("taxi", tmp_path)
    assert (len(taxi.primary), len(taxi.secondaries[0].table)) == (ROWS - 1, ROWS - 2)
    assert taxi.primary.features == ("start station id", "end station id", "subscriber")
    assert taxi.labels.max() < 2000


def test_films_have_columns_of_genres_and_the_logarithm_of_votes(tmp_path: Path) -> None:
    imdb = {
        "primary_title": [f"Film {row}" for row in range(ROWS)],
        "original_title": [f"Filme {row}" for row in range(ROWS)],
        "start_year": [2013] * ROWS,
        "runtime_minutes": [None, *([90] * (ROWS - 1))],
        "genres": words("Action,Crime", "Drama"),
        "averagerating": [7.0] * ROWS,
        "numvotes": [100] * ROWS,
    }
    tmdb = {
        "genre_ids": words("[12, 14]", "[]"),
        "original_language": words("en", "fr"),
        "original_title": [f"Filme {row}" for row in range(ROWS)],
        "popularity": [1.5] * ROWS,
        "release_date": words("2010-11-19", ""),
        "title": [f"film {row}" for row in range(ROWS)],
        "vote_average": [7.7] * ROWS,
        "vote_count": [10] * ROWS,
    }
    write(tmp_path, "films/imdb.csv", imdb)
    write(tmp_path, "films/tmdb.csv", tmdb)
    films = load_dataset("films", tmp_path)
    assert films.primary.features[-3:] == ("genre_Action", "genre_Crime", "genre_Drama")
    assert films.secondaries[0].table.features[-3:] == ("year", "genre_12", "genre_14")
    assert (films.labels == 2).all()


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


def test_boone_reads_events_and_their_kinds(tmp_path: Path) -> None:
    boone_file(tmp_path)
    events = load_dataset("boone", tmp_path)
    assert events.labels.tolist() == [1] * 6 + [0] * 9
    assert (len(events.primary.features), len(events.secondaries[0].link.primary)) == (10, 30)


def test_taxi_keeps_plausible_rides_and_their_stations(tmp_path: Path) -> None:
    taxi_files(tmp_path)
    rides = load_dataset("taxi", tmp_path)
    taxis = rides.secondaries[0]
    assert (len(rides.primary), len(taxis.table)) == (ROWS - 2, ROWS - 3)
    assert rides.primary.features == (
        "age", "gender_1", "gender_2", *(f"sid_{place}" for place in range(101, 105)),
        *(f"eid_{place}" for place in range(101, 105)),
    )  # fmt: skip
    assert taxis.table.frame["taxi_duration"].to_list() == [600] * (ROWS - 3)
    assert taxis.link.k == 50


def test_company_reads_money_and_codes(tmp_path: Path) -> None:
    company_files(tmp_path)
    loans = load_dataset("company", tmp_path)
    companies = loans.secondaries[0].table
    assert (len(loans.primary), len(companies)) == (ROWS - 1, ROWS - 1)
    assert loans.labels[:3].tolist() == [1.0, 2.0, 3.0]
    assert {"st_NY", "st_TX", "ns_45", "ns_72", "rl_Y", "ms_P I F"} <= set(loans.primary.features)
    assert companies.features == (
        "current employee estimate", "total employee estimate", "industry_mining & metals", "industry_retail",
        "size_10001+",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "files", "metric"),
    [("boone", partial(boone_file, signal=20, background=20, events=40), ""), ("company", company_files, "hamming")],
)
def test_datasets_that_could_not_be_obtained_train_for_whoever_has_their_files(
    tmp_path: Path, name: str, files: Callable[[Path], object], metric: str
) -> None:
    files(tmp_path)
    arrays = DatasetCases(load_dataset(name, tmp_path), LinkageOverrides(k=3, metric=metric)).one("random", 0)
    outcome = run_training(Rung("fedsim", "FedSim", "fedsim", preset=f"paper:{name}", epochs=1), arrays)
    assert np.isfinite(outcome.predictions).all()


def test_game_reads_the_authors_table_of_rawg(tmp_path: Path) -> None:
    game_files(tmp_path)
    games = load_dataset("game", tmp_path)
    rawg = games.secondaries[0].table
    assert games.primary.frame["name"].head(2).to_list() == ["halflife", "game0"]
    assert (len(games.primary), len(rawg)) == (ROWS - 2, ROWS - 2)
    assert games.labels[:4].tolist() == [0, 0, 1, 1]
    assert {"has_website", "pf_PC", "gn_Indie", "released_years_before_2020"} <= set(rawg.features)


def test_house_reads_the_public_table_in_its_chinese_encoding(tmp_path: Path) -> None:
    house_files(tmp_path)
    homes = load_dataset("house", tmp_path)
    # One row each: too early, no DOM, too dear, too cheap, no year of construction, a spreadsheet's complaint.
    assert len(homes.primary) == ROWS - 6
    assert set(homes.primary.frame["floor"]) == {26.0, 6.0}
    assert "DOM" in homes.primary.features
    assert "ty_2017" in homes.primary.features


def test_frog_reads_the_public_table(tmp_path: Path) -> None:
    frog_file(tmp_path)
    frogs = load_dataset("frog", tmp_path)
    assert set(frogs.labels) == {"a", "b"}
    assert not {"Family", "Genus", "RecordID"} & set(frogs.primary.frame.columns)


@pytest.mark.parametrize(
    ("files", "place", "name", "column"),
    [
        (taxi_files, 0, "taxi", "birth year"),
        (taxi_files, 1, "taxi", "pickup_latitude"),
        (company_files, 0, "company", "SBA_Appv"),
        (company_files, 1, "company", "industry"),
        (game_files, 0, "game", "owners"),
        (game_files, 1, "game", "rating"),
        (house_files, 1, "house", "lat"),
    ],
)
def test_a_missing_column_is_named_with_its_file(tmp_path: Path, files, place: int, name: str, column: str) -> None:
    path = files(tmp_path)[place]
    without(path, column)
    with raises(InputError, "missing-column", column=column):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("files", "place", "name", "column"),
    [
        (taxi_files, 0, "taxi", "tripduration"),
        (taxi_files, 1, "taxi", "trip_distance"),
        (company_files, 0, "company", "GrAppv"),
        (game_files, 1, "game", "playtime"),
        (house_files, 1, "house", "price"),
    ],
)
def test_a_cell_that_is_no_number_is_named_but_not_shown(tmp_path: Path, files, place: int, name: str, column) -> None:
    path = files(tmp_path)[place]
    spoil(path, column, "secret")
    with raises(InputError, "not-a-number", column=column, row=5) as error:
        load_dataset(name, tmp_path)
    assert path.name in str(error.value)
    assert "secret" not in str(error.value)


def test_a_moment_that_is_no_moment_is_named(tmp_path: Path) -> None:
    spoil(taxi_files(tmp_path)[1], "tpep_pickup_datetime", "yesterday")
    with raises(InputError, "not-a-date", column="tpep_pickup_datetime", row=5):
        load_dataset("taxi", tmp_path)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    boone_file(tmp_path, events=14)
    with pytest.raises(InputError) as caught:
        load_dataset("boone", tmp_path)
    assert (caught.value.code, caught.value.found) == ("truncated-file", 700)
    path = frog_file(tmp_path)
    packed = gzip.compress(path.read_bytes())
    (path.parent / "frogs_mfcc.csv.gz").write_bytes(packed[: len(packed) // 2])
    with raises(FileError, "damaged-file"):
        load_dataset("frog", tmp_path)


@pytest.mark.parametrize("content", ["<html>not found</html>\n", "1 two\n3\n", "2 1\n" + "x " * 150])
def test_another_file_under_the_name_is_refused(tmp_path: Path, content: str) -> None:
    boone_file(tmp_path).write_text(content)
    with raises(InputError, "damaged-file"):
        load_dataset("boone", tmp_path)


def test_a_file_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    bikes, _ = taxi_files(tmp_path)
    pl.read_csv(bikes).with_columns(tripduration=5000).write_csv(bikes)
    with raises(InputError, "no-records"):
        load_dataset("taxi", tmp_path)


def test_a_table_that_is_no_table_is_refused(tmp_path: Path) -> None:
    homes, _ = house_files(tmp_path)
    homes.write_bytes(b'a,b\n"1,2\n3,4,5\n')
    with raises(FileError, "bad-csv"):
        load_dataset("house", tmp_path)
