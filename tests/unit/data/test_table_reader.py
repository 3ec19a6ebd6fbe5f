"""A table that breaks a rule is refused in one sentence that names the place and hides the content."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.data import table_reader
from fedsim.data.table_reader import frame_digest, read_table
from fedsim.errors import FedSimError, FileError, InputError, SettingError
from fedsim.storage.tensor_file import arrays_digest

CANARY = "Zaphod"
PLACES = b"id,lat,lon\n1,1.30,103.80\n2,1.31,103.81\n"


def saved(folder: Path, content: bytes, name: str = "flats.csv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refusal(path: Path, columns: list[str] | None = None, **settings: str) -> FedSimError:
    with pytest.raises(FedSimError) as caught:
        read_table(path, columns, **settings)
    sentence = str(caught.value)
    assert path.name in sentence
    assert "\n" not in sentence
    assert CANARY not in sentence
    assert caught.value.__cause__ is None or CANARY not in str(caught.value.__cause__)
    return caught.value


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
    assert refusal(tmp_path / "nowhere.csv").code == "file-not-found"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path).code == "is-a-folder"


def test_an_unknown_ending_lists_the_known_ones(tmp_path: Path) -> None:
    assert refusal(saved(tmp_path, PLACES, "flats.xls")).code == "unknown-extension"


@pytest.mark.parametrize("name", ["flats.csv", "flats.parquet"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str) -> None:
    assert refusal(saved(tmp_path, b"", name)).code == "empty-file"


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    assert refusal(saved(tmp_path, b"lat,lon\n")).code == "no-records"


def test_a_parquet_without_rows_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"lat": []}).write_parquet(tmp_path / "flats.parquet")
    assert refusal(tmp_path / "flats.parquet").code == "no-records"


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_wrong_separator_is_recognised(tmp_path: Path, separator: str) -> None:
    path = saved(tmp_path, PLACES.replace(b",", separator.encode()))
    assert refusal(path, ["lat", "lon"]).separator == separator
    assert read_table(path, ["lat"], separator=separator).height == 2


def test_a_separator_is_one_character(tmp_path: Path) -> None:
    with raises(SettingError, "bad-separator"):
        read_table(saved(tmp_path, PLACES), separator="::")


def test_a_repeated_column_is_refused_even_when_quoted(tmp_path: Path) -> None:
    path = saved(tmp_path, b'lat,"lat",lon\n1,2,3\n')
    assert refusal(path, ["lat"]).code == refusal(path).code == "duplicate-column"


def test_a_separator_inside_a_quoted_name_does_not_split_it(tmp_path: Path) -> None:
    frame = read_table(saved(tmp_path, b'"lat, degrees",lon\n1,2\n'), ["lat, degrees"])
    assert frame.item() == "1"


def test_a_missing_column_comes_with_the_nearest_word(tmp_path: Path) -> None:
    path = saved(tmp_path, b"Latitude,lon\n1,2\n")
    error = refusal(path, ["lattitude"])
    assert (error.code, error.suggestion) == ("missing-column", "Latitude")


def test_a_file_without_header_does_not_show_its_first_record(tmp_path: Path) -> None:
    path = saved(tmp_path, f"{CANARY},42\n{CANARY},43\n".encode())
    assert refusal(path, ["name"]).suggestion is None


@pytest.mark.parametrize("keep", [3, 20, -1])
def test_a_cut_archive_is_refused(tmp_path: Path, keep: int) -> None:
    path = saved(tmp_path, gzip.compress(PLACES * 500, mtime=0)[:keep], "flats.csv.gz")
    assert refusal(path).code == "damaged-file"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_cut_parquet_is_refused(tmp_path: Path, share: float) -> None:
    whole = tmp_path / "whole.parquet"
    pl.DataFrame({"name": [CANARY] * 1000, "n": range(1000)}).write_parquet(whole)
    content = whole.read_bytes()
    path = saved(tmp_path, content[: int(share * len(content))], "cut.parquet")
    assert refusal(path).code == "damaged-file"


def test_a_parquet_with_a_spoilt_footer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flats.parquet"
    pl.DataFrame({"n": range(1000)}).write_parquet(path)
    content = path.read_bytes()
    path.write_bytes(content[:-60] + b"\xff" * 52 + content[-8:])
    assert refusal(path).code == "damaged-file"


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"PAR1....", "Parquet"), (b"PK\x03\x04....", "spreadsheet"), ("lat\n1\n".encode("utf-16"), "UTF-16")],
)
def test_another_format_under_a_csv_name_is_recognised(tmp_path: Path, content: bytes, kind: str) -> None:
    error = refusal(saved(tmp_path, content))
    assert error.code == "wrong-format"
    assert kind in error.found


def test_text_that_is_not_utf8_is_named_by_row(tmp_path: Path) -> None:
    path = saved(tmp_path, f'id,name\n1,"two\nlines"\n2,{CANARY}é\n'.encode("latin-1"))
    error = refusal(path, ["id"])
    assert (error.code, error.row) == ("not-utf8", 2)


def test_a_header_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    assert refusal(saved(tmp_path, "größe,lat\n1,2\n".encode("latin-1")), ["lat"]).code == "not-utf8"


def test_a_row_with_too_many_cells_is_refused_even_in_columns_not_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, f"id,name,lat\n1,a,2\n2,{CANARY}, Inc,3\n".encode())
    error = refusal(path, ["lat"])
    assert (error.code, error.row) == ("long-row", 2)


@pytest.mark.parametrize("torn", ["2,a", "2", '2,"a,b"'])
def test_a_row_with_too_few_cells_is_refused(tmp_path: Path, torn: str) -> None:
    path = saved(tmp_path, f"id,name,lat\n1,{CANARY},\n{torn}\n3,b,4\n".encode())
    error = refusal(path, ["lat"])
    assert (error.code, error.row, error.count) == ("short-row", 2, len(torn[:3].split(",")))


@pytest.mark.parametrize(
    "content", [b"id,lat,\n1,2,\n3,,\n", b"id,lat,\n1,2\n3,\n", b"id,lat\n1,2\n3,\n\n", b'id,lat\n"1",2\n3,""\n']
)
def test_gaps_and_separators_at_the_end_of_a_row_are_no_fault(tmp_path: Path, content: bytes) -> None:
    frame = read_table(saved(tmp_path, content), ["id", "lat"])
    assert [(row[0], row[1] or None) for row in frame.rows()] == [("1", "2"), ("3", None)]


@pytest.mark.parametrize("cell", ['12" record', '"open', '"closed"twice'])
def test_a_stray_quote_is_named_by_row(tmp_path: Path, cell: str) -> None:
    path = saved(tmp_path, f"id,name\n1,a\n2,{CANARY}\n3,{cell}\n4,b\n".encode())
    error = refusal(path, ["id"])
    assert (error.code, error.row) == ("stray-quote", 3)


def test_old_macintosh_line_ends_are_refused(tmp_path: Path) -> None:
    assert refusal(saved(tmp_path, PLACES.replace(b"\n", b"\r"))).code == "line-ends"


def test_a_name_too_long_for_the_disk_is_refused(tmp_path: Path) -> None:
    with raises(FileError, "bad-path"):
        read_table(tmp_path / ("a" * 300 + ".csv"))


def test_a_file_error_and_an_input_error_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(InputError):
        read_table(saved(tmp_path, b"lat\n"))


def test_the_digest_of_a_long_table_is_that_of_its_text_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"name": ["a,b", None, 'say "x"', "", "e"], "area": [1.5, None, 3.0, -0.0, 1e300]})
    text = np.frombuffer(frame.select(pl.all().cast(pl.String)).write_csv().encode(), np.uint8)
    at_once = frame_digest(frame)
    monkeypatch.setattr(table_reader, "ROWS_AT_ONCE", 2)
    assert frame_digest(frame) == at_once == arrays_digest(text)
    assert frame_digest(frame[:0]) == arrays_digest(np.frombuffer(b"name,area\n", np.uint8))
