"""``fedsim try`` says what a partner adds in one command, and helps with whatever is wrong with the tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.config import read_job
from fedsim.data.synthetic import city
from fedsim.errors import FedSimError
from init_fixtures import PEOPLE, error_of, fedsim, registers

TOWN = city(np.random.default_rng(7), flats=120, rentals=90)
SHORT = ("--minutes", "0.1", "--yes")


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables, and as little training as possible."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsim.contribution.trial.MIN_EPOCHS", 1)
    monkeypatch.setattr("fedsim.contribution.trial.MIN_RECORDS", 60)
    monkeypatch.setattr("fedsim.training.boosted_trees.ROUNDS", 20)
    TOWN.flats.write_csv("flats.csv")
    TOWN.rentals.write_csv("rentals.csv")


def result(*words: str) -> dict[str, object]:
    return dict(json.loads(fedsim("try", *words, *SHORT, "--json").splitlines()[-1]))


def test_it_ends_with_the_headline_a_page_and_what_to_run_next() -> None:
    text = fedsim("try", "flats.csv", "rentals.csv", *SHORT)
    page = Path("fedsim-try/report.html").read_text()
    ladder = json.loads(Path("fedsim-try/compare/ladder.json").read_text())
    assert " ".join(text.split()).count(ladder["headline"]) == 1
    for words in ("without partner", "with a fake partner", "with partner", "fedsim-try/report.html", "--minutes"):
        assert words in text
    assert "reduced" in text
    assert "In a job" in page.replace("in a job", "In a job")


def test_what_is_trained_is_what_init_proposes(tmp_path: Path) -> None:
    fedsim("init", "--primary", "flats.csv", "--secondary", "rentals.csv", "--yes", "--out", "job")
    found = result("flats.csv", "rentals.csv")
    proposed, tried = read_job(tmp_path / "job/job.toml"), read_job(tmp_path / "fedsim-try/job.toml")
    assert tried.hash == proposed.hash
    ladder = found["ladder"]
    assert isinstance(ladder, dict)
    assert ladder["hash"] == proposed.hash
    assert {"stacked", "stacked-shuffled", "solo-identifiers"} <= {rung["key"] for rung in ladder["rungs"]}


def test_another_trial_replaces_the_first_and_nothing_else_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "fedsim-try").mkdir()
    (tmp_path / "fedsim-try" / ".fedsim-try").touch()
    (tmp_path / "fedsim-try" / "old").touch()
    result("flats.csv", "rentals.csv")
    assert not (tmp_path / "fedsim-try" / "old").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").touch()
    assert error_of("try", "flats.csv", "rentals.csv", *SHORT, "--out", "thesis").code == "folder-not-empty"


def test_unrelated_tables_get_a_warning_and_no_contribution() -> None:
    far = TOWN.rentals.with_columns(lat=pl.col("lat") + 40.0)
    far.write_csv("paris.csv")
    found = result("flats.csv", "paris.csv")
    ladder, warnings = found["ladder"], found["warnings"]
    assert isinstance(ladder, dict)
    assert isinstance(warnings, list)
    assert any("do not overlap" in warning for warning in warnings)
    assert ladder["headline"].startswith("No contribution") or "does not help" in ladder["headline"]


def test_names_that_no_record_shares_get_a_warning() -> None:
    rng = np.random.default_rng(5)
    for name, table, letters in (("a.csv", TOWN.flats, "abcde"), ("b.csv", TOWN.rentals, "vwxyz")):
        words = ["".join(rng.choice(list(letters), 8)) for _ in range(len(table))]
        table.drop("lat", "lon").with_columns(name=pl.Series(words)).write_csv(name)
    warnings = result("a.csv", "b.csv", "--on", "name")["warnings"]
    assert isinstance(warnings, list)
    assert any("no similar record" in warning for warning in warnings)


def test_classes_that_link_by_text_and_dates_with_missing_cells_can_be_tried() -> None:
    registers(["first_name", "last_name", "date_of_birth"], ["vorname", "nachname", "geburtsdatum"])
    ours = pl.read_csv("patienten.csv").with_columns(
        ill=pl.when(pl.col("income") > 40).then(pl.lit("y")).otherwise(pl.lit("n"))
    )
    ours.with_columns(income=pl.when(pl.int_range(len(PEOPLE)) % 9 == 0).then(None).otherwise("income")).write_csv(
        "ours.csv"
    )
    found = result("ours.csv", "kasse.csv", "--label", "ill")
    ladder = found["ladder"]
    assert isinstance(ladder, dict)
    assert ladder["task"] == "classification"
    assert ladder["metric"] == "auc"


Make = Callable[[], tuple[str, ...]]


def write(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def changed(name: str, table: pl.DataFrame, **options: str) -> str:
    table.write_csv(name, **options)  # type: ignore[arg-type]
    return name


FLATS, RENTALS = TOWN.flats, TOWN.rentals
WRONG: dict[str, tuple[Make, str]] = {
    "no such file": (lambda: ("flast.csv", "rentals.csv"), "file-not-found"),
    "a folder": (lambda: (".", "rentals.csv"), "is-a-folder"),
    "the same file twice": (lambda: ("flats.csv", "./flats.csv"), "same-table"),
    "a copy of the file": (lambda: ("flats.csv", changed("copy.csv", FLATS)), "same-table"),
    "a label of neither": (lambda: ("flats.csv", "rentals.csv", "--label", "prise"), "missing-column"),
    "a label that is a place": (lambda: ("flats.csv", "rentals.csv", "--label", "lat"), "label-is-identifier"),
    "a constant label": (
        lambda: (changed("a.csv", FLATS.with_columns(price=1)), "rentals.csv", "--label", "price"),
        "constant-label",
    ),
    "several labels": (
        lambda: (changed("a.csv", FLATS.with_columns(value=pl.col("price") / 7)), "rentals.csv"),
        "ambiguous-label",
    ),
    "an unknown task": (lambda: ("flats.csv", "rentals.csv", "--task", "regresion"), "unknown-task"),
    "classes of their own": (
        lambda: ("flats.csv", "rentals.csv", "--task", "classification", "--label", "area"),
        "single-record-class",
    ),
    "an empty file": (lambda: (write("a.csv", ""), "rentals.csv"), "empty-file"),
    "only a header": (lambda: ("flats.csv", write("b.csv", "lat,lon,rent\n")), "no-records"),
    "one record": (lambda: (changed("a.csv", FLATS.head(1)), "rentals.csv"), "too-few-records"),
    "two records": (lambda: (changed("a.csv", FLATS.head(2)), "rentals.csv"), "single-record-class"),
    "no common columns": (lambda: ("flats.csv", changed("b.csv", RENTALS.drop("lat", "lon"))), "no-identifiers"),
    "nothing to learn from": (lambda: ("flats.csv", changed("b.csv", RENTALS.select("lat", "lon"))), "no-features"),
    "an identifier of neither": (lambda: ("flats.csv", "rentals.csv", "--on", "latt,lon"), "missing-column"),
    "too few identifiers": (
        lambda: ("flats.csv", "rentals.csv", "--on", "lat,lon", "--on-secondary", "lat"),
        "column-count",
    ),
    "an empty identifier": (lambda: ("flats.csv", changed("b.csv", RENTALS.with_columns(lat=None))), "empty-column"),
    "UTF-16": (lambda: ("flats.csv", write("b.csv", RENTALS.write_csv().encode("utf-16"))), "wrong-format"),
    "Excel": (lambda: ("flats.csv", write("b.xlsx", b"PK\x03\x04 nothing")), "wrong-format"),
    "no extension": (lambda: ("flats.csv", write("rentals", RENTALS.write_csv())), "unknown-extension"),
    "not Parquet": (lambda: ("flats.csv", write("b.parquet", RENTALS.write_csv())), "wrong-format"),
    "a name twice": (
        lambda: ("flats.csv", write("b.csv", RENTALS.write_csv().replace("rooms", "rent", 1))),
        "duplicate-column",
    ),
    "a text among places": (
        lambda: ("flats.csv", write("b.csv", RENTALS.write_csv() + "here,there,1,2,3\n")),
        "no-identifiers",
    ),
    "latitudes in metres": (
        lambda: (
            "flats.csv",
            changed("b.csv", RENTALS.with_columns(lat=pl.when(pl.int_range(pl.len()) == 3).then(1e6).otherwise("lat"))),
        ),
        "outside-range",
    ),
    "no folder to write to": (lambda: ("flats.csv", "rentals.csv", "--out", "/proc/nowhere"), "no-folder"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_input_is_named_and_leaves_no_page(wrong: str) -> None:
    make, code = WRONG[wrong]
    error: FedSimError = error_of("try", *make(), "--yes")
    assert error.code == code
    assert not Path("fedsim-try/report.html").exists()


@pytest.mark.parametrize("words", [("--separator-secondary", ";"), ()])
def test_other_delimiters_and_parquet_are_read(words: tuple[str, ...]) -> None:
    RENTALS.write_csv("b.csv", separator=";")
    FLATS.write_parquet("a.parquet")
    assert result("a.parquet", "b.csv", *words)["ladder"]


def test_a_label_in_the_partners_table_exchanges_the_tables() -> None:
    found = result("rentals.csv", "flats.csv", "--label", "price")
    proposal = found["proposal"]
    assert isinstance(proposal, dict)
    assert proposal["parties"]["primary"] == "flats"
