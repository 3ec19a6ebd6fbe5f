"""The command ``fedsim link``: its files, its output and its errors."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.cli import main
from fedsim.data.synthetic import city
from fedsim.errors import SettingError
from fedsim.linkage import load_links

CANARY = "41.987654"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two small tables that link well."""
    town = city(np.random.default_rng(1), flats=60, rentals=40)
    town.flats.write_csv(tmp_path / "flats.csv")
    town.rentals.write_csv(tmp_path / "rentals.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


BASE = ["link", "--primary", "flats.csv", "--secondary", "rentals.csv", "--out", "links.parquet"]
PLACES = [*BASE, "--on", "lat,lon", "--k", "5"]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence on stderr of a run that must fail and leave nothing behind."""
    before = set(Path().iterdir())
    assert run(*words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert CANARY not in output.err
    assert set(Path().iterdir()) == before
    return output.err


def spoil(name: str, column: str, row: int, cell: str) -> None:
    """Replace one cell; rows count from 1 as in messages."""
    table = pl.read_csv(name, infer_schema=False)
    cells = table[column].to_list()
    cells[row - 1] = cell
    table.with_columns(pl.Series(column, cells)).write_csv(name)


def test_the_keys_of_both_tables_are_written_beside_the_row_numbers(folder: Path) -> None:
    assert run(*PLACES, "--id", "area", "--id-secondary", "rent", "-q") == 0
    table = pl.read_parquet(folder / "links.parquet")
    for key, name, column in (("record", "flats", "area"), ("partner", "rentals", "rent")):
        keys = pl.read_csv(f"{name}.csv", infer_schema=False)[column]
        assert table[f"{key}_id"].to_list() == keys[table[key].to_list()].to_list()


def test_links_and_summary_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PLACES) == 0
    assert load_links(folder / "links.parquet").partner.shape == (60, 5)
    output = capsys.readouterr()
    assert "60 records x 40 candidates" in output.out
    assert "links.parquet" in output.out
    assert output.err == ""
    assert "\x1b" not in output.out


def test_json_is_one_object_with_the_same_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PLACES, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["records"], result["candidates"], result["k"], result["metric"]) == (60, 40, 5, "great-circle")
    assert result["files"] == {"links": "links.parquet"}
    assert 0 < result["nearest_median"] <= result["kth_median"]


def test_quiet_prints_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PLACES, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_the_partner_may_name_its_columns_otherwise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PLACES, "-q") == 0
    expected = load_links(folder / "links.parquet")
    rentals = pl.read_csv("rentals.csv").rename({"lat": "Latitude", "lon": "Longitude"})
    rentals.write_csv("rentals.csv")
    assert "--on-secondary" in refusal(capsys, *PLACES, "-q")
    assert run(*PLACES, "-q", "--on-secondary", "Latitude, Longitude") == 0
    np.testing.assert_array_equal(load_links(folder / "links.parquet").partner, expected.partner)


def test_parquet_and_csv_link_alike(folder: Path) -> None:
    assert run(*PLACES, "-q") == 0
    expected = load_links(folder / "links.parquet")
    pl.read_csv("flats.csv").write_parquet("flats.parquet")
    assert run(*PLACES, "-q", "--primary", "flats.parquet") == 0
    np.testing.assert_array_equal(load_links(folder / "links.parquet").distance, expected.distance)


def test_the_same_seed_gives_the_same_noise(folder: Path) -> None:
    similarity = []
    for seed in ("7", "7", "8"):
        assert run(*PLACES, "-q", "--sigma", "0.4", "--seed", seed) == 0
        similarity.append(load_links(folder / "links.parquet").similarity)
    np.testing.assert_array_equal(similarity[0], similarity[1])
    assert not np.array_equal(similarity[0], similarity[2])


def test_names_link_by_edit_distance(folder: Path) -> None:
    pl.DataFrame({"name": ["marine", "optics"]}).write_csv("flats.csv")
    pl.DataFrame({"firm": ["optic", "ocean", "marina"]}).write_csv("rentals.csv")
    words = ["--on", "name", "--on-secondary", "firm", "--metric", "levenshtein", "--k", "1", "-q"]
    assert run(*BASE, *words) == 0
    assert load_links(folder / "links.parquet").partner.tolist() == [[2], [0]]


def test_names_link_by_weighted_q_grams(folder: Path) -> None:
    pl.DataFrame({"name": ["Belgor Marine Ltd", "Vinsol Optics"]}).write_csv("flats.csv")
    pl.DataFrame({"firm": ["Vinsl Optics Ltd", "Halgan Marine Ltd", "Belgor Marin Limited"]}).write_csv("rentals.csv")
    words = ["--on", "name", "--on-secondary", "firm", "--metric", "qgram-dice", "--k", "2", "-q"]
    assert run(*BASE, *words) == 0
    links = load_links(folder / "links.parquet")
    assert links.partner[:, 0].tolist() == [2, 0]
    assert links.metric == "qgram-dice"


def test_fields_of_several_kinds_make_a_weighted_sum(folder: Path) -> None:
    ours = {"name": ["ada", "alan"], "born": ["1815-12-10", "1912-06-23"]}
    theirs = {"name": ["alan", "ada", "ada"], "born": ["1912-06-24", "1990-01-01", "1815-12-10"]}
    pl.DataFrame(ours).write_csv("flats.csv")
    pl.DataFrame(theirs).write_csv("rentals.csv")
    words = ["--field", "name:levenshtein-normalised:2.0", "--field", "born:days:0.5", "--k", "2", "-q"]
    assert run(*BASE, *words) == 0
    links = load_links(folder / "links.parquet")
    assert links.partner[:, 0].tolist() == [2, 0]
    np.testing.assert_allclose(links.distance[:, 0], [0.0, 0.5])


def test_an_old_output_survives_a_failed_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "links.parquet").write_text("old")
    assert "k=" in refusal(capsys, *PLACES, "--k", "41")
    assert (folder / "links.parquet").read_text() == "old"


@pytest.mark.parametrize("k", ["0", "-3", "41"])
def test_k_outside_its_range_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], k: str) -> None:
    assert "between 1 and 40" in refusal(capsys, *PLACES, "--k", k)


def test_an_absent_table_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.csv does not exist" in refusal(capsys, *PLACES, "--primary", "nowhere.csv")


def test_a_wrong_separator_is_refused_and_can_be_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("flats.csv", "rentals.csv"):
        pl.read_csv(name).write_csv(name, separator=";")
    assert "--separator ';'" in refusal(capsys, *PLACES)
    assert run(*PLACES, "-q", "--separator", ";") == 0


def test_columns_the_partner_lacks_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.read_csv("rentals.csv").rename({"lon": "long"}).write_csv("rentals.csv")
    output = refusal(capsys, *PLACES)
    assert "rentals.csv: there is no column 'lon'" in output
    assert "did you mean 'long'?" in output


@pytest.mark.parametrize(
    ("cell", "rule"), [("", "row 17 is missing"), (f"x{CANARY}", "row 17 is not a number"), ("inf", "is not finite")]
)
def test_a_bad_cell_is_named_by_row(folder: Path, capsys: pytest.CaptureFixture[str], cell: str, rule: str) -> None:
    spoil("flats.csv", "lat", 17, cell)
    assert rule in refusal(capsys, *PLACES)


def test_a_latitude_beyond_the_pole_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil("flats.csv", "lat", 3, "91")
    output = refusal(capsys, *PLACES, "--metric", "great-circle")
    assert "row 3" in output
    assert "flats.csv" in output


def test_a_cut_parquet_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.read_csv("flats.csv").write_parquet("flats.parquet")
    whole = (folder / "flats.parquet").read_bytes()
    (folder / "flats.parquet").write_bytes(whole[: len(whole) // 2])
    assert "truncated" in refusal(capsys, *PLACES, "--primary", "flats.parquet")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--out", "nowhere/links.parquet"], "folder nowhere"),
        (["--out", "."], "is a folder"),
        (["--out", "flats.csv"], "replace the input"),
        (["--out", "a" * 256], "choose another name"),
        (["--out", "pipe"], "regular file"),
    ],
)
def test_a_bad_output_is_refused_before_any_work(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], rule: str
) -> None:
    (folder / "rentals.csv").write_bytes(b"not read\n")
    os.mkfifo(folder / "pipe")
    assert rule in refusal(capsys, *PLACES, *words)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--metric", "euclidian"], "'euclidean'"),
        (["--metric", "levenshtein"], "column"),
        (["--backend", "magic"], "magic"),
        (["--engine", "rai"], "ray"),
        (["--engine", "local:1"], "address"),
        (["--sigma", "-1"], "sigma"),
        (["--separator", "::"], "separator"),
    ],
)
def test_a_bad_setting_is_named(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], rule: str) -> None:
    assert rule in refusal(capsys, *PLACES, *words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--metric", "hamming"], "columns-of-encoded-table"),
        (["--on-secondary", "lat"], "column-count-mismatch"),
        (["--field", "lat:euclidean"], "on-with-field"),
        (["--on", "", "--metric", "dice", "--id", "lat"], "ids-of-encoded-table"),
        (["--seed", "-1"], "negative-seed"),
        (["--on", "lat,lat"], "column-named-twice"),
        (["--on-secondary", "lat,lat"], "column-named-twice"),
        (["--on", "", "--field", "name"], "invalid-field"),
        (["--on", "", "--field", "lat:hamming"], "invalid-field"),
        (["--on", "", "--field", "lat:euclidean", "--metric", "euclidean"], "metric-with-field"),
    ],
)
def test_options_that_contradict_each_other_are_refused(folder: Path, words: list[str], code: str) -> None:
    with pytest.raises(SystemExit) as end:
        main([*PLACES, *words])
    error = end.value.__context__
    assert isinstance(error, SettingError)
    assert (end.value.code, error.code) == (2, code)
    assert not (folder / "links.parquet").exists()


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ("name:lev:1", "'lev'"),
        ("lat:great-circle", "latitude"),
    ],
)
def test_a_bad_field_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], field: str, rule: str) -> None:
    assert rule in refusal(capsys, *BASE, "--field", field)


def test_one_column_may_count_in_two_fields(folder: Path) -> None:
    pl.DataFrame({"born": ["1999-12-31"]}).write_csv("flats.csv")
    pl.DataFrame({"born": ["2000-01-01", "1999-12-01"]}).write_csv("rentals.csv")
    assert run(*BASE, "--field", "born:days:2", "--field", "born:levenshtein", "--k", "2", "-q") == 0
    assert load_links(folder / "links.parquet").distance.tolist() == [[9.0, 61.0]]


def test_each_table_may_have_its_own_separator(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.read_csv("rentals.csv").write_csv("rentals.csv", separator=";")
    assert "--separator-secondary ';'" in refusal(capsys, *PLACES)
    assert run(*PLACES, "-q", "--separator-secondary", ";") == 0


def test_quiet_json_prints_the_object_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PLACES, "--json", "--quiet") == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["records"] == 60
    assert output.err == ""


def test_days_count_in_the_zone_of_the_table(folder: Path) -> None:
    midnight = pl.Series("born", [datetime(1984, 7, 31)])
    midnight.dt.replace_time_zone("Asia/Singapore").to_frame().write_parquet("flats.parquet")
    midnight.to_frame().write_parquet("rentals.parquet")
    words = ["--primary", "flats.parquet", "--secondary", "rentals.parquet", "--on", "born", "--metric", "days"]
    assert run(*BASE, *words, "--k", "1", "-q") == 0
    assert load_links(folder / "links.parquet").distance.tolist() == [[0.0]]


def test_the_metric_follows_from_the_columns(folder: Path) -> None:
    for name in ("flats", "rentals"):
        pl.read_csv(f"{name}.csv").with_columns(code=pl.int_range(pl.len())).write_csv(f"{name}.csv")
    for on, metric in (("lon,lat", "great-circle"), ("code", "euclidean")):
        assert run(*BASE, "--on", on, "--k", "2", "-q", "--primary", "flats.csv") == 0
        assert load_links(folder / "links.parquet").metric == metric


def test_columns_of_several_kinds_need_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("flats", "rentals"):
        pl.read_csv(f"{name}.csv").with_columns(name=pl.lit("ann")).write_csv(f"{name}.csv")
    assert "--field" in refusal(capsys, *BASE, "--on", "name,lat,lon", "--primary", "flats.csv")


def test_codes_that_are_numbers_are_no_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.DataFrame({"code": [7, 8]}).write_parquet("flats.parquet")
    words = ["--primary", "flats.parquet", "--on", "code", "--metric", "levenshtein"]
    assert "text is needed" in refusal(capsys, *BASE, *words)


def test_debug_shows_where_an_error_came_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*PLACES, "--k", "0", "--debug") == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.splitlines()[-1].startswith("error: ")


def test_a_stopped_run_ends_quietly_with_130(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsim_ops.cli.link.link", stop)
    assert run(*PLACES) == 130
    assert capsys.readouterr() == ("", "")
    assert not (folder / "links.parquet").exists()


def test_a_place_is_a_field_of_a_weighted_sum(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = "lat,lon,street\n1.30,103.80,oak road\n1.35,103.85,elm road\n1.40,103.90,ash road\n"
    Path("flats.csv").write_text(table)
    fields = [
        "--field",
        "lat,lon:great-circle:0.001",
        "--field",
        "street:levenshtein",
        "--field",
        "street:levenshtein:2",
    ]
    words = ["link", "--primary", "flats.csv", "--secondary", "flats.csv", *fields, "--k", "1", "--out", "o.parquet"]
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code in (0, None)
    assert load_links("o.parquet").partner.tolist() == [[0], [1], [2]]
