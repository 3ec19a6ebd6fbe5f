"""Numbers and dates as spreadsheets write them are understood by ``init``, and read alike by every later command."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from error_fixtures import raises
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import InputError, SettingError
from fedsim.pipeline.party_table import PartyData
from init_fixtures import BOTH, TOWN, fedsim

WHOLE = TOWN.flats["price"].cast(pl.Int64)
DAYS = pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 1) + pl.duration(days=len(WHOLE) - 1), eager=True)


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TOWN.rentals.write_csv("rentals.csv")


def write_flats(*, separator: str = ",", **columns: object) -> None:
    TOWN.flats.with_columns(**columns).write_csv("flats.csv", separator=separator)


def german(numbers: pl.Series) -> pl.Series:
    return pl.Series([f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in numbers])


def flats() -> PartyData:
    return PartyData.read(read_job(Path("job.toml")), read_party_file(Path("flats.toml")))


def formats() -> dict[str, str]:
    data = read_party_file(Path("flats.toml")).data
    assert data is not None
    return data.formats


@pytest.mark.parametrize(
    ("price", "written"),
    [
        (german(WHOLE), "decimal-comma"),
        (pl.Series([f"${value:,}" for value in WHOLE]), "decimal-point"),
        (pl.Series([f"{value:,} EUR".replace(",", ".") for value in WHOLE]), "decimal-comma"),
    ],
)
def test_prices_of_a_spreadsheet_are_learnt_as_numbers(price, written):
    write_flats(price=price, sold=DAYS.dt.strftime("%d/%m/%Y"))
    result = json.loads(fedsim("init", *BOTH, "--label", "price", "--yes", "--json"))
    assert result["formats"]["primary"] == {"price": written, "sold": "day-month-year"}
    assert (result["task"], result["kinds"]["primary"]["sold"]) == ("regression", "date")
    assert formats() == {"price": written, "sold": "day-month-year"}
    assert flats().labels[0].tolist() == WHOLE.to_list()
    assert flats().frame["sold"].to_list() == DAYS.cast(pl.String).to_list()


def test_what_the_cells_leave_open_is_asked_once_or_set_by_an_option():
    write_flats(price=pl.Series([f"{value / 1000:.3f}".replace(".", ",") for value in WHOLE]))
    fedsim("init", *BOTH, "--label", "price", "--decimal", "comma", "--yes")
    assert formats() == {"price": "decimal-comma"}
    assert flats().labels[0].tolist() == pytest.approx((WHOLE / 1000).to_list())
    fedsim("init", *BOTH, "--label", "price", "--decimal", "point", "--yes", "--force")
    assert flats().labels[0].tolist() == WHOLE.to_list()
    fedsim("init", *BOTH, "--label", "price", "--task", "regression", "--force", answer="comma\nlat,lon\nrows\n")
    assert formats() == {"price": "decimal-comma"}


def test_an_answer_or_option_that_is_none_of_the_choices_is_refused():
    write_flats()
    with raises(SettingError, "unknown-format", option="--decimal", value="dot"):
        fedsim("init", *BOTH, "--decimal", "dot", "--yes")
    with raises(SettingError, "unknown-format", option="--date-format", value="dmy"):
        fedsim("init", *BOTH, "--date-format", "dmy", "--yes")


def test_thousands_in_a_table_of_decimal_commas_are_no_decimals_but_coordinates_are():
    area = TOWN.flats["area"]
    write_flats(
        separator=";",
        price=german(WHOLE),
        area=pl.Series([f"{1000 + int(value):,}".replace(",", ".") for value in area]),
        lat=pl.Series([f"{value:.3f}" for value in TOWN.flats["lat"]]),
    )
    fedsim("init", *BOTH, "--label", "price", "--yes")
    assert formats() == {"price": "decimal-comma", "area": "decimal-comma"}
    assert flats().features["area"].to_list() == [1000.0 + int(value) for value in area]


def test_dates_of_days_up_to_twelve_are_told_to_be_a_guess():
    write_flats(sold=pl.Series([f"0{1 + row % 9}/0{1 + row % 7}/2020" for row in range(len(WHOLE))]))
    result = json.loads(fedsim("init", *BOTH, "--label", "price", "--yes", "--json"))
    assert result["formats"]["primary"] == {"sold": "day-month-year"}
    assert any("--date-format" in warning for warning in result["warnings"])
    fedsim("init", *BOTH, "--label", "price", "--date-format", "month-day-year", "--yes", "--force")
    assert formats() == {"sold": "month-day-year"}


def test_every_later_command_reads_the_same_table():
    write_flats(price=german(WHOLE), area=german(TOWN.flats["area"]))
    fedsim("init", *BOTH, "--label", "price", "--epochs", "1", "--yes")
    with Path("flats.toml").open("a", encoding="utf-8") as file:
        file.write('\n[serving]\nwhen_partner_is_away = "solo"\n')
    files = ["flats.toml", "rentals.toml"]
    for file in files:
        fedsim("approve", "job.toml", file, "--yes")
    trained = json.loads(fedsim("train", "job.toml", *files, "--quiet", "--json"))
    assert trained["metrics"]["test"]["rmse"] < 1e6
    fedsim("report", "flats-run", "--show-identifiers", "flats.toml")
    new = TOWN.flats.drop("price").head(5)
    new.write_csv("plain.csv")
    new.with_columns(area=german(new["area"])).write_csv("german.csv")
    for name in ("plain", "german"):
        words = ["--records", f"{name}.csv", "--out", f"{name}-out.csv", "--insecure", "--wait", "0.1", "--quiet"]
        fedsim("predict", "job.toml", "flats.toml", *words)
    assert pl.read_csv("plain-out.csv").equals(pl.read_csv("german-out.csv"))


def test_a_format_of_a_column_that_is_gone_names_the_nearest():
    write_flats(price=german(WHOLE))
    fedsim("init", *BOTH, "--label", "price", "--yes")
    text = Path("flats.toml").read_text(encoding="utf-8")
    Path("flats.toml").write_text(text.replace('price = "decimal-comma"', 'prize = "decimal-comma"'), encoding="utf-8")
    with raises(InputError, "missing-column", column="prize"):
        flats()
