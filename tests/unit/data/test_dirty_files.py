"""Files as people have them: each fault in one sentence with file, column and row, and without a value.

The same table goes through the reader and through ``fedsim init``, the two doors by which files come in.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from error_fixtures import raises
from fedsim.cells import CellType, read_cells
from fedsim.cli.app import app
from fedsim.cli.init import create_folder
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.data.features import fit_preprocessor
from fedsim.data.synthetic import city
from fedsim.data.table_reader import detect_separator, read_table
from fedsim.errors import FedSimError, FileError

TOWN = city(np.random.default_rng(7), flats=120, rentals=100)
TEXT = TOWN.flats.write_csv()
VALUES = {word for word in TEXT.replace("\n", ",").split(",") if "." in word}
NOBODY = 65534


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.rentals.write_csv("rentals.csv")


def init(content: bytes | pl.DataFrame, *words: str) -> str:
    """What ``fedsim init`` prints for this table of flats."""
    Path("flats.csv").write_bytes(content if isinstance(content, bytes) else content.write_csv().encode())
    tables = ["--primary", "flats.csv", "--secondary", "rentals.csv"]
    done = CliRunner().invoke(app, ["init", *tables, "--label", "price", "--yes", "--force", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def refusal(content: bytes | pl.DataFrame, *words: str) -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        init(content, *words)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not any(value in sentence for value in VALUES)
    return caught.value


def warned(output: str, *words: str) -> bool:
    """Whether ``fedsim init`` prints a warning, perhaps on several lines, that names all of these."""
    paragraphs = re.sub(r"\n {13}", " ", output).splitlines()
    return any(all(word in text for word in words) for text in paragraphs if text.startswith("warning"))


def test_a_semicolon_is_found_and_written_down():
    init(TEXT.replace(",", ";").encode())
    assert read_party_file(Path("flats.toml")).data.separator == ";"
    assert detect_separator(Path("rentals.csv")) is None


def test_a_semicolon_where_a_comma_was_meant_is_told():
    Path("flats.csv").write_text(TEXT.replace(",", ";"))
    with raises(FedSimError, "wrong-separator", separator=";"):
        read_table("flats.csv")


@pytest.mark.parametrize("form", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_recognised_with_and_without_its_mark(form):
    error = refusal(TEXT.encode(form))
    assert error.code == "wrong-format"
    assert "UTF-16" in error.found


def test_a_mark_before_utf_8_is_no_part_of_the_first_name():
    init(TEXT.encode("utf-8-sig"))
    (terms,) = read_job(Path("job.toml")).secondaries.values()
    assert terms.columns == ("lat", "lon")


def test_decimal_commas_of_a_spreadsheet_are_read_by_init_and_told_where_nobody_named_them():
    german = TEXT.replace(",", ";").replace(".", ",")
    init(german.encode())
    data = read_party_file(Path("flats.toml")).data
    assert data is not None
    assert read_cells(data.read()["lat"], CellType.NUMBER).values.to_list() == TOWN.flats["lat"].to_list()
    assert read_cells(read_table("flats.csv", separator=";")["lat"], CellType.NUMBER).faults[0].kind == "decimal-comma"


def test_decimal_commas_in_a_feature_are_told():
    areas = pl.DataFrame({"area": [f"{row},5" for row in range(40)]})
    with raises(FedSimError, "free-text", column="area", decimal_commas=True):
        fit_preprocessor(areas, party="primary")


def test_a_name_that_stands_twice_is_told():
    error = refusal(TEXT.replace("storey", "age", 1).encode())
    assert (error.code, error.column) == ("duplicate-column", "age")


def test_a_table_without_rows_is_told():
    assert refusal(TEXT.splitlines()[0].encode()).code == "no-records"
    assert refusal(b"\n\n").code == "empty-file"


def test_an_identifier_that_is_missing_everywhere_is_told():
    empty = TOWN.flats.with_columns(lat=None)
    for words in ([], ["--on", "lat,lon"]):
        error = refusal(empty, *words)
        assert (error.code, error.table, error.column) == ("empty-column", "flats.csv", "lat")


def test_an_identifier_that_is_missing_somewhere_is_warned_of():
    holes = TOWN.flats.with_columns(lat=pl.when(pl.int_range(120) % 50 == 2).then(None).otherwise("lat"))
    assert warned(init(holes), "flats.csv", "'lat'", "3 of 120", "row 3")


def test_latitude_and_longitude_exchanged_are_turned_round_with_a_warning():
    output = init(TOWN.flats.rename({"lat": "lon", "lon": "lat"}))
    assert warned(output, "flats.csv", "'lat'", "'lon'")
    assert read_party_file(Path("flats.toml")).identifiers == {"lat": "lon", "lon": "lat"}


def test_they_are_also_found_where_both_could_be_latitudes():
    moved = [table.with_columns(lat=pl.col("lat") + 47, lon=pl.col("lon") - 93) for table in (TOWN.flats, TOWN.rentals)]
    moved[1].rename({"lat": "lon", "lon": "lat"}).write_csv("rentals.csv")
    output = init(moved[0])
    assert warned(output, "flats.csv", "rentals.csv")
    assert read_party_file(Path("rentals.toml")).identifiers == {"lat": "lon", "lon": "lat"}


def test_places_that_lie_wholly_apart_are_warned_of():
    output = init(TOWN.flats.with_columns(pl.col("lat") + 30))
    assert warned(output, "'lat'")


SPOILT = pl.when(pl.int_range(120) == 16).then(pl.lit("N41.9")).otherwise(pl.col("lat").cast(pl.String))


@pytest.mark.parametrize("words", [[], ["--on", "lat,lon"]])
def test_one_cell_that_is_no_number_is_named_by_its_row(words):
    error = refusal(TOWN.flats.with_columns(lat=SPOILT), *words)
    assert (error.table, error.column, error.row) == ("flats.csv", "lat", 17)


def test_it_is_named_where_both_tables_have_one():
    TOWN.rentals.with_columns(lat=pl.when(pl.int_range(100) == 3).then(pl.lit("?!")).otherwise("lat")).write_csv(
        "rentals.csv"
    )
    error = refusal(TOWN.flats.with_columns(lat=SPOILT), "--on", "lat,lon")
    assert (error.code, error.table, error.column, error.row) == ("not-a-number", "flats.csv", "lat", 17)


def test_it_is_warned_of_where_other_columns_link():
    street = pl.Series("street", [f"{letter}ld Road" for letter in "ABCDEFGHIJ"] * 12)
    TOWN.rentals.with_columns(street.head(100)).write_csv("rentals.csv")
    output = init(TOWN.flats.with_columns(street, lat=SPOILT))
    assert warned(output, "flats.csv", "'lat'", "row 17")


BORN = pl.date(1960, 1, 1) + pl.duration(days=pl.int_range(pl.len()) * 37)


@pytest.mark.parametrize("words", [[], ["--on", "geboren"]])
def test_dates_of_two_digit_years_are_named_by_row_with_the_way_out(words):
    TOWN.rentals.drop("lat", "lon").with_columns(geboren=BORN).write_csv("rentals.csv")
    error = refusal(TOWN.flats.drop("lat", "lon").with_columns(geboren=BORN.dt.to_string("%d.%m.%y")), *words)
    assert (error.table, error.column, error.row) == ("flats.csv", "geboren", 1)


def test_a_torn_row_is_told_by_its_number():
    lines = TEXT.splitlines(keepends=True)
    torn = "".join([*lines[:5], lines[5].rpartition(",")[0], "\n", *lines[6:]])
    error = refusal(torn.encode())
    assert (error.code, error.row, error.count) == ("short-row", 5, 5)


def test_a_label_with_one_value_is_told():
    for price in (5, None):
        error = refusal(TOWN.flats.with_columns(price=price))
        assert (error.code, error.column) == ("constant-label", "price")


def test_a_label_with_gaps_is_warned_of():
    holes = TOWN.flats.with_columns(price=pl.when(pl.int_range(120) == 7).then(None).otherwise("price"))
    assert warned(init(holes), "flats.csv", "'price'", "1 of 120", "row 8")


def test_a_path_that_does_not_exist_is_told():
    with raises(FileError, "file-not-found"):
        init(TOWN.flats, "--secondary", "nowhere.csv")


def test_a_database_that_refuses_is_told():
    with raises(FileError, "connection-refused"):
        init(TOWN.flats, "--secondary", "postgresql://ann:secret@127.0.0.1:1/city#rentals")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_folder_that_may_not_be_written_is_told():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        os.seteuid(NOBODY)
        try:
            with raises(FileError, "folder-not-writable", reason="Permission denied"):
                create_folder(Path(name) / "job").__enter__()
        finally:
            os.seteuid(0)


def test_a_file_where_a_folder_is_wanted_is_told():
    Path("job").write_text("")
    assert refusal(TOWN.flats, "--out", "job").code == "folder-not-writable"
