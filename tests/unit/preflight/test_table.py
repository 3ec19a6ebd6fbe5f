"""The checks of a table find what training would refuse, and what is probably not intended."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from check_fixtures import (
    CITY,
    Change,
    assert_found,
    cell,
    certified,
    column,
    failures,
    first_lines,
    renamed,
    report,
    warnings,
    with_commas,
)
from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import InputError
from fedsim.pipeline.party_table import PartyData
from fedsim.preflight.check import check_job
from fedsim.preflight.estimate import NetworkLink
from fedsim.preflight.finding import CheckLevel
from fedsim.types import derive_seed
from fedsim_lab.faults.local_job import RENTALS, create_local_job
from job_fixtures import PARTIES, approve_now, change


def test_a_column_of_another_name_is_reported_with_the_line_that_maps_it(folder):
    change(folder / "flats.csv", "lat,lon", "Latitude,lon")
    assert_found(failures(report(folder, "city")), "columns", "", '[identifiers] lat = "Latitude"', "city.toml")


@pytest.mark.parametrize(
    ("old", "new", "check", "words"),
    [
        ('column = "price"', 'column = "prise"', "columns", ("line 15: label.column", "'prise'", "'price'")),
        ("[label]", '[features]\ndrop = ["storrey"]\n[label]', "columns", ("features.drop", "'storrey'", "'storey'")),
        ("[label]", '[identifiers]\nlat = "latt"\n[label]', "columns", ("identifiers.lat", "'latt'", "'lat'")),
        ('file = "flats.csv"', 'file = "flts.csv"', "data", ("line 12: data.file", "flts.csv", "'flats.csv'")),
    ],
)
def test_names_that_fit_no_table_are_reported_with_their_line(folder, old, new, check, words):
    change(folder / "city.toml", old, new)
    assert_found(failures(report(folder, "city")), check, "", *words)


def test_a_secondary_needs_as_many_records_as_partners_and_as_its_policy_requires(folder):
    first_lines("rentals.csv", 13)(folder)
    found = failures(report(folder, "rentals"))
    assert_found(found, "records", "", "20", "12")
    assert_found(found, "policy", "min_candidates", "1,000")


def ids(folder: Path) -> None:
    column(folder, "flats.csv", "id", [str(number) for number in range(1000, 1120)])


def without_tls(folder: Path) -> None:
    before, _, behind = (folder / "city.toml").read_text().partition("[tls]")
    (folder / "city.toml").write_text(before + behind[behind.index("[data]") :])


def watched(settings: str) -> Change:
    return renamed("city.toml", "[tls]", f"[telemetry]\n{settings}\n[tls]")


WARNED: dict[str, tuple[Change, str, str, tuple[str, ...]]] = {
    "a feature with commas": (lambda folder: with_commas(folder, "flats.csv", "area"), "features", "", ("area",)),
    "a number of the record": (ids, "features", "", ("id",)),
    "a word among numbers": (
        lambda folder: cell(folder, "flats.csv", "age", 5, "NA"), "features", "", ("age", "data.missing")
    ),
    "dates": (
        lambda folder: column(folder, "flats.csv", "sold", ["2024-05-01"] * 120), "features", "", ("sold", "kinds")
    ),
    "a code": (
        lambda folder: column(folder, "flats.csv", "zip", ["10115", "10117", "20095"] * 40), "features", "", ("zip",)
    ),
    "an empty feature": (lambda folder: column(folder, "flats.csv", "note", [None] * 120), "features", "", ("note",)),
    "a label of two values": (
        lambda folder: column(folder, "flats.csv", "price", ["0", "1"] * 60), "label", "", ("'price'", "task.kind")
    ),
    "classes that are numbers": (
        renamed("job.toml", '"regression"', '"classification"'), "label", "", ("task.kind",)
    ),
    "a certificate that ends soon": (certified(CITY, days=20, ago=10), "certificate", "expires-soon", ("9 days",)),
    "no certificates": (without_tls, "certificate", "no-certificate", ()),
    "a key that others can read": (
        lambda folder: (folder / "linkage.key").chmod(0o640), "linkage key", "readable-by-others", ("chmod 600",)
    ),
    "a private key that others can read": (
        lambda folder: (folder / "certs" / "primary-city.key").chmod(0o640),
        "certificate", "readable-by-others", ("primary-city.key", "chmod 600"),
    ),
    "a folder that others can write": (
        lambda folder: (folder / "city-run").chmod(0o777), "folder", "writable-by-others", ("chmod 700",)
    ),
    "metrics that anybody can read": (
        watched('metrics = "0.0.0.0:9464"'), "telemetry", "public-metrics", ("0.0.0.0:9464", "127.0.0.1")
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WARNED)
def test_what_is_probably_not_intended_is_a_warning(folder, what):
    spoil, check, code, words = WARNED[what]
    spoil(folder)
    assert_found(warnings(report(folder, "city")), check, code, *words)


def test_a_training_of_few_steps_is_a_warning(folder):
    change(folder / "job.toml", "batch_size = 2", "batch_size = 256")
    [finding] = warnings(report(folder, "city", "rentals"))
    assert finding.check == "steps"
    assert "8 steps" in finding.result


FIRMS = """
[secondaries.rentals.schema]
version = 1
fields = [
  { column = "name", encoding = { kind = "string" }, salt = "town" },
  { column = "founded", encoding = { kind = "date", low = 1900-01-01, high = 2025-12-31, threshold = 365 } },
]
"""


FIRM_TABLE = """name,town,founded,staff
Aster,Ulm,1984-07-31,5
,Ulm,31.07.1984,6
Cedar,,1899-01-01,7
"""


def test_names_salts_and_dates_are_checked_too(folder):
    job = folder / "job.toml"
    job.write_text(job.read_text().partition("[secondaries.rentals.schema]")[0].replace("k = 20", "k = 2") + FIRMS)
    (folder / "rentals.csv").write_text(FIRM_TABLE)
    change(folder / "rentals.toml", 'columns = ["lat", "lon", "rooms", "rating", "rent"]', "")
    whole = report(folder, "rentals")
    found = [finding for finding in [*warnings(whole), *failures(whole)] if finding.check == "identifiers"]
    places = [("'name'", "row 2"), ("'town'", "row 3"), ("'founded'", "row 2"), ("'founded'", "row 3")]
    for finding, (name, row) in zip(found, places, strict=True):
        assert name in finding.result
        assert row in finding.result


def test_a_label_with_one_class_cannot_be_learnt(folder):
    change(folder / "job.toml", '"regression"', '"classification"')
    column(folder, "flats.csv", "price", ["dear"] * 120)
    assert_found(failures(report(folder, "city")), "label", "", "'price'")


def test_records_are_not_announced_as_predicted_where_no_label_is_given(folder):
    column(folder, "flats.csv", "price", [None] * 120)
    found = report(folder, "city")
    assert [each.level for each in found.sections[-1].findings if each.check == "label"] == [CheckLevel.FAILS]
    assert not found.ready_to_train


def test_a_word_for_missing_among_the_classes_is_a_warning(folder):
    change(folder / "job.toml", '"regression"', '"classification"')
    change(folder / "city.toml", 'file = "flats.csv"', 'file = "flats.csv"\nmissing = ["NA"]')
    column(folder, "flats.csv", "price", ["dear", "cheap", "NA"] * 40)
    assert_found(warnings(report(folder, "city")), "label", "", "40 of 120", "data.missing")


def test_a_split_by_group_needs_groups(folder):
    change(folder / "job.toml", '"random"', '"group"')
    for name, place in (("lat", "1.3"), ("lon", "103.8")):
        column(folder, "flats.csv", name, [place] * 120)
    assert_found(failures(report(folder, "city")), "records", "cannot-split", "1 group", "at random")


NAMED = """
[secondaries.rentals.schema]
version = 1
fields = [{ column = "name", encoding = { kind = "string" } }]
"""


@pytest.mark.parametrize(
    ("names", "codes"),
    [(["Ada", "ADA", "ada", "Ada ", "aDA", "AdA"], ["cannot-split"]), (["Ada", "Bea", "Cy", "Dan", "Eve", "Fay"], [])],
)
def test_a_group_split_is_checked_as_training_draws_it(folder, names, codes):
    job = folder / "job.toml"
    change(job, '"random"', '"group"')
    job.write_text(job.read_text().partition("[secondaries.rentals.schema]")[0] + NAMED)
    column(folder, "flats.csv", "name", names * 20)
    found = [finding.code for finding in failures(report(folder, "city")) if finding.check == "records"]
    table = PartyData.read(read_job(job), read_party_file(folder / "city.toml"))
    with pytest.raises(InputError) if codes else nullcontext():
        table.draw_split("group", np.random.default_rng(derive_seed(7, "city", "split")))
    assert found == codes


def test_what_a_group_split_cannot_read_is_reported_once(folder):
    change(folder / "job.toml", '"random"', '"group"')
    with_commas(folder, "flats.csv", "lat")
    assert {finding.check for finding in failures(report(folder, "city")) if "'lat'" in finding.result} == {
        "identifiers"
    }


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("column", ["south", "middle", "north"] * 40),
        ("column", ["train", "test"] * 60),
        ("time", ["2020-01-01", "2020-01-02"] * 60),
        ("group", None),
    ],
)
def test_a_column_of_few_values_that_training_could_not_split_by_is_found(folder, kind, cells):
    change(folder / "job.toml", '"random"', f'"{kind}"')
    change(folder / "city.toml", 'column = "price"', 'column = "price"\nsplit_by = "age"')
    if cells is None:
        for name in ("lat", "lon"):
            column(folder, "flats.csv", name, ["1.3", "1.4", "1.5"] * 40)
    else:
        column(folder, "flats.csv", "age", cells)
    assert_found(failures(report(folder, "city")), "records", "cannot-split", "7:1:2")


def test_a_split_by_group_may_link_with_two_secondaries_by_the_same_columns(folder):
    change(folder / "job.toml", '"random"', '"group"')
    text = (folder / "job.toml").read_text()
    other = text[text.index("[secondaries.rentals]") :].replace("rentals", "offices")
    (folder / "job.toml").write_text(f"{text}\n{other}")
    found = report(folder, "city").sections[-1].findings
    assert [each.level for each in found if each.check == "records"] == [CheckLevel.OK]


def test_records_without_a_label_do_not_count_for_the_split(folder):
    prices = pl.read_csv(folder / "flats.csv", infer_schema=False)["price"].to_list()
    column(folder, "flats.csv", "price", [*prices[:3], *[None] * 117])
    assert_found(failures(report(folder, "city")), "records", "cannot-split", "3 records")


def test_parquet_columns_of_the_wrong_type_are_named(folder):
    frame = pl.read_csv(folder / "flats.csv").with_columns(lat=pl.lit(True), price=pl.concat_list("price"))
    frame.write_parquet(folder / "flats.parquet")
    change(folder / "city.toml", "flats.csv", "flats.parquet")
    found = failures(report(folder, "city"))
    assert_found(found, "identifiers", "", "'lat'", "Boolean")
    assert_found(found, "label", "", "'price'", "List(Float64)")


def test_no_value_of_any_cell_is_shown(folder):
    canaries = {"lat": "77.123456", "lon": "Kanariengasse", "price": "98765,4321"}
    for row, (name, word) in enumerate(canaries.items(), 5):
        cell(folder, "flats.csv", name, row, word)
    approve_now(folder, "city")
    text = str(asdict(report(folder, *PARTIES)))
    assert text.count(" row ") == 3
    assert not any(word in text for word in canaries.values())


def test_a_table_without_tokens_is_reported(tmp_path):
    place = create_local_job(tmp_path / "job", direct=True)
    place.change_party(RENTALS, policy={"min_list_rows": 1000})
    found = check_job(
        place.job_path, [place.path(RENTALS)], link=NetworkLink(), now=datetime.now(UTC), call_peers=False
    )
    assert [one.code for _, one in found.failures] == ["empty-table"]
