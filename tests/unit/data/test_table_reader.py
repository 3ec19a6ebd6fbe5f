"""A table that breaks a rule is refused in one sentence that names the place and hides the content."""

from __future__ import annotations

import gzip
from datetime import date as day
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from fedsim.data.columns import parse_required_dates, parse_required_numbers, parse_required_texts
from fedsim.data.table_reader import read_table
from fedsim.errors import FedSimError, FileError, InputError, SettingError

CANARY = "Zaphod"
PLACES = b"id,lat,lon\n1,1.30,103.80\n2,1.31,103.81\n"


def saved(folder: Path, content: bytes, name: str = "flats.csv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refusal(path: Path, columns: list[str] | None = None, **settings: str) -> str:
    with pytest.raises(FedSimError) as caught:
        read_table(path, columns, **settings)
    sentence = str(caught.value)
    assert path.name in sentence
    assert "\n" not in sentence
    assert CANARY not in sentence
    assert caught.value.__cause__ is None or CANARY not in str(caught.value.__cause__)
    return sentence


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", PLACES),
        ("windows.csv", PLACES.replace(b"\n", b"\r\n")),
        ("marked.csv", b"\xef\xbb\xbf" + PLACES),
        ("packed.csv.gz", gzip.compress(PLACES, mtime=0)),
        ("tabs.tsv", PLACES.replace(b",", b"\t")),
        ("blank_end.csv", PLACES + b"\n\n"),
        ("quoted.csv", PLACES.replace(b"lat", b'"lat"').replace(b"1.30", b'"1.30"')),
    ],
)
def test_every_kind_of_text_table_reads_the_same(tmp_path: Path, name: str, content: bytes) -> None:
    frame = read_table(saved(tmp_path, content, name), ["lon", "lat"])
    assert frame.to_dict(as_series=False) == {"lon": ["103.80", "103.81"], "lat": ["1.30", "1.31"]}


def test_parquet_keeps_its_types_and_the_order_asked_for(tmp_path: Path) -> None:
    pl.DataFrame({"id": [1, 2], "lat": [1.3, 1.31]}).write_parquet(tmp_path / "flats.parquet")
    frame = read_table(tmp_path / "flats.parquet", ["lat", "id"])
    assert frame.columns == ["lat", "id"]
    assert frame.dtypes == [pl.Float64, pl.Int64]


def test_codes_keep_their_leading_zeros(tmp_path: Path) -> None:
    assert read_table(saved(tmp_path, b"code\n007\n"))["code"].to_list() == ["007"]


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere.csv")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_an_unknown_ending_lists_the_known_ones(tmp_path: Path) -> None:
    assert ".csv, .csv.gz, .tsv" in refusal(saved(tmp_path, PLACES, "flats.xls"))


@pytest.mark.parametrize("name", ["flats.csv", "flats.parquet"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str) -> None:
    assert "is empty" in refusal(saved(tmp_path, b"", name))


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    assert "a header but no rows" in refusal(saved(tmp_path, b"lat,lon\n"))


def test_a_parquet_without_rows_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"lat": []}).write_parquet(tmp_path / "flats.parquet")
    assert "no rows" in refusal(tmp_path / "flats.parquet")


@pytest.mark.parametrize(("separator", "word"), [(";", "';'"), ("\t", "tab"), ("|", "'|'")])
def test_a_wrong_separator_is_recognised(tmp_path: Path, separator: str, word: str) -> None:
    path = saved(tmp_path, PLACES.replace(b",", separator.encode()))
    assert f"--separator {word}" in refusal(path, ["lat", "lon"])
    assert read_table(path, ["lat"], separator=separator).height == 2


def test_a_separator_is_one_character(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not one plain character"):
        read_table(saved(tmp_path, PLACES), separator="::")


def test_a_repeated_column_is_refused_even_when_quoted(tmp_path: Path) -> None:
    path = saved(tmp_path, b'lat,"lat",lon\n1,2,3\n')
    assert "'lat' stands 2 times" in refusal(path, ["lat"])
    assert "'lat' stands 2 times" in refusal(path)


def test_a_separator_inside_a_quoted_name_does_not_split_it(tmp_path: Path) -> None:
    frame = read_table(saved(tmp_path, b'"lat, degrees",lon\n1,2\n'), ["lat, degrees"])
    assert frame.item() == "1"


def test_a_missing_column_comes_with_the_nearest_word(tmp_path: Path) -> None:
    path = saved(tmp_path, b"Latitude,lon\n1,2\n")
    assert "did you mean 'Latitude'?" in refusal(path, ["lattitude"])


def test_a_file_without_header_does_not_show_its_first_record(tmp_path: Path) -> None:
    path = saved(tmp_path, f"{CANARY},42\n{CANARY},43\n".encode())
    assert "first line holds the names" in refusal(path, ["name"])


@pytest.mark.parametrize("keep", [3, 20, -1])
def test_a_cut_archive_is_refused(tmp_path: Path, keep: int) -> None:
    path = saved(tmp_path, gzip.compress(PLACES * 500, mtime=0)[:keep], "flats.csv.gz")
    assert "cut off or damaged" in refusal(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_parquet_is_refused(tmp_path: Path, share: float) -> None:
    whole = tmp_path / "whole.parquet"
    pl.DataFrame({"name": [CANARY] * 1000, "n": range(1000)}).write_parquet(whole)
    content = whole.read_bytes()
    path = saved(tmp_path, content[: int(share * len(content))], "cut.parquet")
    assert "cut off" in refusal(path)


def test_a_parquet_with_a_spoilt_footer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flats.parquet"
    pl.DataFrame({"n": range(1000)}).write_parquet(path)
    content = path.read_bytes()
    path.write_bytes(content[:-60] + b"\xff" * 52 + content[-8:])
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"PAR1....", "Parquet"), (b"PK\x03\x04....", "spreadsheet"), ("lat\n1\n".encode("utf-16"), "UTF-16")],
)
def test_another_format_under_a_csv_name_is_recognised(tmp_path: Path, content: bytes, kind: str) -> None:
    assert kind in refusal(saved(tmp_path, content))


def test_text_that_is_not_utf8_is_named_by_row(tmp_path: Path) -> None:
    path = saved(tmp_path, f'id,name\n1,"two\nlines"\n2,{CANARY}é\n'.encode("latin-1"))
    assert "row 2 is not UTF-8" in refusal(path, ["id"])


def test_a_header_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    assert "header is not UTF-8" in refusal(saved(tmp_path, "größe,lat\n1,2\n".encode("latin-1")), ["lat"])


def test_a_row_with_too_many_cells_is_refused_even_in_columns_not_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, f"id,name,lat\n1,a,2\n2,{CANARY}, Inc,3\n".encode())
    assert "row 2 has 4 cells, but the header has 3" in refusal(path, ["lat"])


@pytest.mark.parametrize("torn", ["2,a", "2", '2,"a,b"'])
def test_a_row_with_too_few_cells_is_refused(tmp_path: Path, torn: str) -> None:
    path = saved(tmp_path, f"id,name,lat\n1,{CANARY},\n{torn}\n3,b,4\n".encode())
    assert f"row 2 has {len(torn[:3].split(','))} cell" in refusal(path, ["lat"])


@pytest.mark.parametrize(
    "content", [b"id,lat,\n1,2,\n3,,\n", b"id,lat,\n1,2\n3,\n", b"id,lat\n1,2\n3,\n\n", b'id,lat\n"1",2\n3,""\n']
)
def test_gaps_and_separators_at_the_end_of_a_row_are_no_fault(tmp_path: Path, content: bytes) -> None:
    frame = read_table(saved(tmp_path, content), ["id", "lat"])
    assert [(row[0], row[1] or None) for row in frame.rows()] == [("1", "2"), ("3", None)]


@pytest.mark.parametrize("cell", ['12" record', '"open', '"closed"twice'])
def test_a_stray_quote_is_named_by_row(tmp_path: Path, cell: str) -> None:
    path = saved(tmp_path, f"id,name\n1,a\n2,{CANARY}\n3,{cell}\n4,b\n".encode())
    assert "row 3 has a quote" in refusal(path, ["id"])


def test_old_macintosh_line_ends_are_refused(tmp_path: Path) -> None:
    assert "line ends" in refusal(saved(tmp_path, PLACES.replace(b"\n", b"\r")))


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        (CANARY, "is not a number; correct it"),
        ("41,99", "is not a number; write decimals with a point"),
        ("", "is missing"),
        ("  ", "is missing"),
        (None, "is missing"),
        ("nan", "is not finite"),
        ("-inf", "is not finite"),
    ],
)
def test_a_cell_that_is_no_number_is_named_by_row_only(cell: str | None, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_required_numbers(pl.Series("lat", ["1.0", "2.0", cell]), table="flats.csv")
    assert str(caught.value).startswith(f"flats.csv: column 'lat', row 3 {rule}")
    assert CANARY not in str(caught.value)
    assert "41" not in str(caught.value)


def test_a_column_of_dates_is_not_numbers() -> None:
    days = pl.Series("born", ["1984-07-31"]).str.to_date()
    with pytest.raises(InputError, match="holds Date; numbers are needed"):
        parse_required_numbers(days, table="people.parquet")


def test_a_blank_name_is_missing() -> None:
    with pytest.raises(InputError, match="row 2 is missing"):
        parse_required_texts(pl.Series("name", ["a", " "]), table="firms.csv")
    assert parse_required_texts(pl.Series("code", ["7", "8"], dtype=pl.Categorical), table="firms.csv").to_list() == [
        "7",
        "8",
    ]


@pytest.mark.parametrize("cells", [[1.5], [7], [True], [b"a"], [datetime(1984, 7, 31)], [day(1984, 7, 31)]])
def test_what_is_not_text_does_not_become_text_in_silence(cells: list[object]) -> None:
    with pytest.raises(InputError, match="text is needed"):
        parse_required_texts(pl.Series("name", cells), table="firms.csv")


def test_decimals_are_numbers() -> None:
    assert parse_required_numbers(pl.Series("price", [Decimal("1.25")]), table="flats.parquet").to_list() == [1.25]


@pytest.mark.parametrize("cell", ["1984-07-31", " 1984-07-31 ", "1984-07-31T23:59", "1984-07-31 23:59:59.5+08:00"])
def test_a_date_is_written_year_month_day(cell: str) -> None:
    assert parse_required_dates(pl.Series("born", [cell]), table="people.csv").to_list() == [day(1984, 7, 31)]


@pytest.mark.parametrize(
    "cell",
    ["31.07.1984", "80-12-02", "1984-7-31", "1984-02-30", "0000-01-01", "19840731", "1984-07-31 x", "１９８４-07-31"],
)
def test_a_date_written_otherwise_is_refused(cell: str) -> None:
    with pytest.raises(InputError, match="row 2 is not a date"):
        parse_required_dates(pl.Series("born", ["1984-07-31", cell]), table="people.csv")


def test_a_moment_has_the_date_of_its_own_zone() -> None:
    midnight = pl.Series("born", [datetime(1984, 7, 31)]).dt.replace_time_zone("Asia/Singapore")
    assert parse_required_dates(midnight, table="people.parquet").to_list() == [day(1984, 7, 31)]


def test_a_name_too_long_for_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="choose another name"):
        read_table(tmp_path / ("a" * 300 + ".csv"))


def test_a_file_error_and_an_input_error_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(InputError):
        read_table(saved(tmp_path, b"lat\n"))
