"""Whatever would stop a job is told before it starts, with the way out and without a single value."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.linkage.encoding import Key
from fedsim.preflight import machine
from fedsim.preflight.check import CheckReport, check_job
from fedsim.preflight.estimate import NetworkLink, build_workload, estimate_cost
from fedsim.preflight.finding import CheckLevel, PartyInJob
from fedsim.preflight.machine import check_disk
from fedsim.protocol.certificates import Authority, party_files
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim.runs.run_folder import lock_run_folder
from job_fixtures import PARTIES, approve_now, change, fill

DAY = timedelta(days=1)
CITY = Party(Role.PRIMARY, "city")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ready")
    fill(folder)
    change(folder / "job.toml", "batch_size = 256", "batch_size = 2")  # enough steps for so few records
    for name in PARTIES:
        approve_now(folder, name)
    return folder


@pytest.fixture
def folder(ready, tmp_path) -> Path:
    return Path(shutil.copytree(ready, tmp_path / "job"))


def report(folder: Path, *parties: str, now: datetime | None = None, peers: bool = False) -> CheckReport:
    paths = [folder / f"{name}.toml" for name in parties]
    return check_job(folder / "job.toml", paths, link=NetworkLink(), now=now or datetime.now(UTC), call_peers=peers)


def faults(found: CheckReport, level: CheckLevel = CheckLevel.FAILS) -> list[str]:
    """All findings of a level, each as check: result -> fix."""
    findings = [finding for section in found.sections for finding in section.findings if finding.level is level]
    return [f"{finding.check}: {finding.result} -> {finding.fix}" for finding in findings]


def warnings(found: CheckReport) -> list[str]:
    return faults(found, CheckLevel.WARNING)


def column(folder: Path, table: str, name: str, cells: object) -> None:
    """Put other cells into a column."""
    path = folder / table
    frame = pl.read_csv(path, infer_schema=False)
    frame.with_columns(pl.Series(name, cells, dtype=pl.String)).write_csv(path)


def cell(folder: Path, table: str, name: str, row: int, word: str | None) -> None:
    """Put another word into one cell; rows count from 1."""
    cells = pl.read_csv(folder / table, infer_schema=False)[name].to_list()
    cells[row - 1] = word
    column(folder, table, name, cells)


def with_commas(folder: Path, table: str, name: str) -> None:
    cells = pl.read_csv(folder / table, infer_schema=False)[name].str.replace(".", ",", literal=True)
    column(folder, table, name, cells.to_list())


# --- all is well ---------------------------------------------------------------------------------------------------


def test_a_job_that_is_ready_passes_without_a_word_of_warning(folder):
    found = report(folder, *PARTIES)
    assert found.passed
    assert not warnings(found)
    assert [section.title.split(" ")[0] for section in found.sections] == [
        "job", "this", "coordinator", "primary", "secondary", "together"
    ]  # fmt: skip


def test_checking_writes_nothing(folder):
    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = state()
    report(folder, *PARTIES)
    assert state() == before


def test_a_job_alone_is_checked_without_parties(folder):
    found = report(folder)
    assert found.passed
    assert found.estimate.assumed == ("10,000 records at city", "10,000 records at rentals")


def test_both_sides_see_the_same_digits_of_key_and_schema(folder):
    digits = [
        finding.result[:14]
        for section in report(folder, "city", "rentals").sections
        for finding in section.findings
        if finding.check == "linkage key"
    ]
    schema = read_job(folder / "job.toml").secondaries["rentals"].encoding
    fingerprint = schema.fingerprint(Key.read(folder / "linkage.key"))
    assert digits == [f"{fingerprint[:4]} {fingerprint[4:8]} {fingerprint[8:12]}"] * 2


# --- files of settings ---------------------------------------------------------------------------------------------


def test_all_mistakes_of_a_job_are_told_at_once_with_line_and_nearest_word(folder):
    change(folder / "job.toml", "epochs = 8", "epoch = 8")
    change(folder / "job.toml", '"modern"', '"moddern"')
    change(folder / "job.toml", "k = 20", "k = 0")
    change(folder / "job.toml", "threshold = 0.05 } },\n  { column", "treshold = 0.05 } },\n  { column")
    job = folder / "job.toml"
    assert faults(report(folder, "rentals")) == [
        f"job file: {job}, line 18: training.preset is 'moddern' -> did you mean 'modern'?",
        f"job file: {job}, line 20: unknown setting 'training.epoch' -> did you mean 'epochs'?",
        f"job file: {job}, line 28: secondaries.rentals.k is 0 -> expected a whole number from 1 to 10,000",
        f"job file: {job}, line 32: secondaries.rentals.schema: field 1, encoding (numeric): unknown setting "
        "'treshold' -> did you mean 'threshold'?",
    ]


def test_a_job_that_cannot_be_read_does_not_hide_what_is_wrong_at_a_party(folder):
    (folder / "job.toml").write_text("name = [")
    (folder / "linkage.key").unlink()
    (folder / "flats.csv").unlink()
    found = faults(report(folder, "city"))
    assert [line.partition(":")[0] for line in found] == ["job file", "data", "linkage key"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[data]", "[dta]", "unknown setting 'dta' -> did you mean 'data'?"),
        ('role = "secondary"', 'role = "second"', "line 3: role is 'second' -> did you mean 'secondary'?"),
        ('name = "rentals"', "name = ", "line 2: invalid TOML"),
    ],
)
def test_mistakes_of_a_party_file_are_told_with_line_and_nearest_word(folder, old, new, told):
    change(folder / "rentals.toml", old, new)
    assert any(told in fault for fault in faults(report(folder, "rentals")))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'column = "price"',
            'column = "prise"',
            "columns: {folder}/city.toml, line 15: label.column: {folder}/flats.csv: there is no column 'prise' among "
            "its 6 -> did you mean 'price'?",
        ),
        (
            "[label]",
            '[features]\ndrop = ["storrey"]\n[label]',
            "columns: {folder}/city.toml, line 15: features.drop: {folder}/flats.csv: there is no column 'storrey' "
            "among its 6 -> did you mean 'storey'?",
        ),
        (
            "[label]",
            '[identifiers]\nlat = "latt"\n[label]',
            "columns: {folder}/city.toml, line 15: identifiers.lat: {folder}/flats.csv: there is no column 'latt' "
            "among its 6 -> did you mean 'lat'?",
        ),
        (
            'file = "flats.csv"',
            'file = "flts.csv"',
            "data: {folder}/city.toml, line 12: data.file: {folder}/flts.csv does not exist -> did you mean "
            "'flats.csv'?",
        ),
    ],
)
def test_names_in_a_party_file_that_fit_no_table_are_told_with_their_line(folder, old, new, told):
    change(folder / "city.toml", old, new)
    assert told.format(folder=folder) in faults(report(folder, "city"))


def test_a_party_file_in_the_place_of_the_job_is_told_in_one_sentence(folder):
    job, city = folder / "job.toml", folder / "city.toml"
    found = faults(check_job(city, [job], link=NetworkLink(), now=datetime.now(UTC), call_peers=False))
    told = f"job file: {city} is the file of a party, and the job comes first -> say: fedsim check {job} {city}"
    assert found == [told]
    assert faults(report(folder, "job")) == [
        f"party file: {job} is a job, no file of a party -> name it first, and once"
    ]


# --- what stops a party, one change at a time ----------------------------------------------------------------------


def renamed(name: str, old: str, new: str) -> Change:
    return lambda folder: change(folder / name, old, new)


def recoded(folder: Path) -> None:
    text = (folder / "flats.csv").read_text()
    (folder / "flats.csv").write_text(text, encoding="utf-16")


def semicolons(folder: Path) -> None:
    change(folder / "flats.csv", ",", ";")


def first_lines(name: str, count: int) -> Change:
    def cut(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:count]))

    return cut


def foreign_authority(folder: Path) -> None:
    (folder / "certs" / "ca.pem").write_bytes(Authority.create(datetime.now(UTC)).pair.certificate)


def certified(party: Party, days: int, ago: int) -> Change:
    """A certificate of the city's that was made some days ago for so many days."""

    def put(folder: Path) -> None:
        then = datetime.now(UTC) - ago * DAY
        authority = Authority.create(then)
        pair = authority.issue(party, then, days)
        certificate, key = party_files(folder / "certs", CITY)
        (folder / "certs" / "ca.pem").write_bytes(authority.pair.certificate)
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    return put


STOPPED: dict[str, tuple[Change, str]] = {
    "exchanged coordinates": (
        renamed("flats.csv", "lat,lon", "lon,lat"),
        "identifiers: columns 'lat' and 'lon' look exchanged: each fits the range of the other -> in "
        '{folder}/city.toml: [identifiers] lat = "lon", lon = "lat"',
    ),
    "a constant label": (
        lambda folder: column(folder, "flats.csv", "price", ["7"] * 120),
        "label: column 'price' has one value only -> predict another column",
    ),
    "another name": (
        renamed("city.toml", 'name = "city"', 'name = "town"'),
        "takes part: primary 'town' is not a party of job 'flats'",
    ),
    "an unknown identifier": (
        renamed("city.toml", "[label]", '[identifiers]\nlatt = "lat"\n[label]'),
        "'latt' is unknown -> did you mean 'lat'?",
    ),
    "no table": (lambda folder: (folder / "flats.csv").unlink(), "flats.csv does not exist -> check the path"),
    "semicolons": (semicolons, "but 6 at ';' -> say data.separator = ';'"),
    "UTF-16": (recoded, "it looks like UTF-16 -> save it as UTF-8"),
    "no rows": (first_lines("flats.csv", 1), "flats.csv has a header but no rows -> at least one record is needed"),
    "a column twice": (
        renamed("flats.csv", "storey,age", "age,age"),
        "the column 'age' stands 2 times in the header -> rename all but one",
    ),
    "a column with another name": (
        renamed("flats.csv", "lat,lon", "lat,long"),
        "columns: {folder}/flats.csv: there is no column 'lon' among its 6 -> did you mean 'long'?",
    ),
    "decimal commas in an identifier": (
        lambda folder: with_commas(folder, "flats.csv", "lat"),
        "identifiers: column 'lat': 120 of 120 are no numbers, first in row 1 -> write decimals with a point",
    ),
    "a missing identifier": (
        lambda folder: cell(folder, "flats.csv", "lon", 7, None),
        "identifiers: column 'lon': 1 of 120 are missing, first in row 7 -> fill them in, or drop those records",
    ),
    "an identifier out of range": (
        lambda folder: cell(folder, "flats.csv", "lat", 9, "50.5"),
        "identifiers: column 'lat': 1 of 120 lie outside the range agreed with rentals, 0.9 to 1.8, first in row 9",
    ),
    "a missing label": (
        lambda folder: cell(folder, "flats.csv", "price", 3, ""),
        "label: column 'price': 1 of 120 are missing, first in row 3",
    ),
    "a label with commas": (
        lambda folder: with_commas(folder, "flats.csv", "price"),
        "label: column 'price': 120 of 120 are no numbers, first in row 1 -> write decimals with a point",
    ),
    "too few records": (
        first_lines("flats.csv", 5),
        "records: 4 records cannot be split 7:1:2: no validation record is left -> give more records",
    ),
    "no key": (
        lambda folder: (folder / "linkage.key").unlink(),
        "linkage key: cannot read the key file {folder}/linkage.key: No such file or directory -> get it from the",
    ),
    "another file as key": (
        lambda folder: (folder / "linkage.key").write_text("no key"),
        "linkage.key is no key file: it must hold at least 64 hexadecimal digits and nothing else -> copy",
    ),
    "a rule of the policy": (
        renamed("city.toml", "[serving]", "[policy]\nmax_k = 10\n[serving]"),
        "policy: primary 'city' requires k of at most 10",
    ),
    "a column the policy does not list": (
        renamed("city.toml", "[serving]", '[policy]\ncolumns = ["lat", "lon"]\n[serving]'),
        "policy: policy.columns does not list price -> list them, or use other columns",
    ),
    "no approval": (
        lambda folder: shutil.rmtree(folder / "city-run"),
        "nobody did yet -> read and approve it: fedsim approve {folder}/job.toml {folder}/city.toml",
    ),
    "a job that has changed": (
        renamed("job.toml", "epochs = 8", "epochs = 9"),
        "since the last approval it has changed (job.training.epochs",
    ),
    "a new column": (
        lambda folder: column(folder, "flats.csv", "rooms", ["1"] * 120),
        "its own columns have changed since -> read and approve it",
    ),
    "an expired certificate": (certified(CITY, days=10, ago=20), "primary-city.pem expired on "),
    "a certificate of another role": (
        certified(Party(Role.SECONDARY, "city"), days=10, ago=0),
        "is the certificate of secondary 'city', and this is primary 'city' -> give the files of primary 'city'",
    ),
    "another authority": (foreign_authority, "primary-city.pem was not issued by the authority in"),
    "no certificate": (
        lambda folder: (folder / "certs" / "primary-city.pem").unlink(),
        "certificate: cannot read {folder}/certs/primary-city.pem: No such file or directory -> ",
    ),
    "a folder below a file": (
        renamed("city.toml", '"city-run"', '"flats.csv/run"'),
        "folder: cannot write in {folder}/flats.csv: Not a directory -> mend 'folder'",
    ),
    "an address of another machine": (
        renamed("city.toml", "[serving]", '[network]\nlisten = "192.0.2.1:50052"\n[serving]'),
        "port: 192.0.2.1:50052 is no address of this machine -> check it on the machine it is for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", STOPPED)
def test_what_stops_the_primary_is_told_with_the_way_out(folder, what):
    spoil, told = STOPPED[what]
    spoil(folder)
    found = faults(report(folder, "city"))
    assert any(told.format(folder=folder) in fault for fault in found), found


def test_one_fault_hides_no_other(folder):
    change(folder / "flats.csv", "storey,age", "age,age")
    lines = (folder / "flats.csv").read_text().splitlines()
    lines[4] = "," + lines[4].partition(",")[2]  # the fourth record has no latitude
    (folder / "flats.csv").write_text("\n".join(lines))
    (folder / "linkage.key").unlink()
    shutil.rmtree(folder / "certs")
    checks = {fault.partition(":")[0] for fault in faults(report(folder, "city"))}
    assert checks == {"data", "identifiers", "linkage key", "certificate"}


# --- the secondary, the coordinator, and all together --------------------------------------------------------------


def test_a_secondary_needs_as_many_records_as_partners_and_as_its_policy_demands(folder):
    first_lines("rentals.csv", 13)(folder)
    found = faults(report(folder, "rentals"))
    assert "records: k is 20 for a table of 12 records -> lower k to 12 in the job at most" in found
    assert any("at least 1,000 records" in fault for fault in found)


def test_two_keys_and_two_authorities_show_when_both_sides_are_at_hand(folder):
    Key(bytes(32)).write(folder / "other.key")
    change(folder / "rentals.toml", '"linkage.key"', '"other.key"')
    (folder / "other").mkdir()
    (folder / "other" / "ca.pem").write_bytes(Authority.create(datetime.now(UTC)).pair.certificate)
    change(folder / "rentals.toml", "certs/ca.pem", "other/ca.pem")
    found = faults(report(folder, "city", "rentals"))
    assert any(fault.startswith("linkage keys: for rentals two keys differ") for fault in found)
    assert any("primary 'city' and secondary 'rentals' trust different authorities" in fault for fault in found)


def test_a_file_or_a_folder_given_twice_is_noticed(folder):
    assert any("are both of primary 'city'" in fault for fault in faults(report(folder, "city", "city")))
    change(folder / "rentals.toml", '"rentals-run"', '"city-run"')
    assert any("name one folder" in fault for fault in faults(report(folder, "city", "rentals")))


def test_a_port_in_use_is_noticed(folder):
    address = read_job(folder / "job.toml").coordinator.address
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        found = faults(report(folder, "notary"))
    assert found == [f"port: {address} is in use -> stop what listens there, or agree on another port"]


def test_a_process_that_runs_already_is_noticed(folder):
    with lock_run_folder(read_job(folder / "job.toml"), read_party_file(folder / "rentals.toml")):
        found = faults(report(folder, "rentals"))
    assert found == [f"running: process {os.getpid()} is at this job already -> let it end, or stop it"]
    assert report(folder, "rentals").passed


def test_a_full_disk_is_noticed(folder):
    job, own = read_job(folder / "job.toml"), read_party_file(folder / "rentals.toml")
    usual = estimate_cost(job, build_workload(job, {}, {}), NetworkLink())
    for need, level in ((10**18, CheckLevel.FAILS), (0, CheckLevel.OK)):
        case = PartyInJob(job, own, None, None, replace(usual, disk={"rentals": need}))
        assert [finding.level for finding in check_disk(case)] == [level]


def test_a_message_too_large_for_the_wire_is_told_before_it_is_made(folder):
    change(folder / "job.toml", "threshold = 0.05 }", "threshold = 0.05, bits = 8388608 }")
    assert any("the largest message would have 2,0" in fault for fault in faults(report(folder, "rentals")))


def test_a_package_that_is_missing_is_named(folder, monkeypatch):
    monkeypatch.setitem(machine.PACKAGES, "no_such_module", "no-such-package")
    assert faults(report(folder)) == [
        "software: the package no-such-package is not installed -> install FedSim again: pip install fedsim-vfl"
    ]


# --- peers ---------------------------------------------------------------------------------------------------------


def test_peers_are_called_only_when_asked(folder):
    job = read_job(folder / "job.toml")
    certs, notary = folder / "certs", job.parties[0]
    own = read_credentials(certs / "ca.pem", *party_files(certs, notary), notary)
    listener = GrpcTransport(own).listen(job.coordinator.address, lambda _, line: line.close())
    try:
        told = [finding.result for finding in report(folder, "rentals", peers=True).sections[2].findings]
    finally:
        listener.close()
    assert any(
        result.startswith(f"coordinator 'notary' answers at {job.coordinator.address}, ping ") for result in told
    )
    assert f"nobody listens at {job.primary.address}" in told
    assert report(folder, "rentals").passed


def test_without_a_certificate_nobody_is_called(folder):
    (folder / "certs" / "secondary-rentals.key").unlink()
    told = "peers: nobody was called, for there is no certificate to show -> see to the certificate"
    assert warnings(report(folder, "rentals", peers=True)) == [told]


# --- warnings ------------------------------------------------------------------------------------------------------


def ids(folder: Path) -> None:
    column(folder, "flats.csv", "id", [str(number) for number in range(1000, 1120)])


def into_future(folder: Path) -> None:
    later = (datetime.now(UTC) + DAY).timestamp()
    os.utime(folder / "flats.csv", (later, later))


def without_tls(folder: Path) -> None:
    before, _, behind = (folder / "city.toml").read_text().partition("[tls]")
    (folder / "city.toml").write_text(before + behind[behind.index("[data]") :])


WARNED: dict[str, tuple[Change, str]] = {
    "a feature with commas": (
        lambda folder: with_commas(folder, "flats.csv", "area"),
        "features: column area: decimal commas, learnt as words -> write decimals with a point",
    ),
    "a number of the record": (ids, "features: column id: another value in every record; a name or number of it?"),
    "a word among numbers": (
        lambda folder: cell(folder, "flats.csv", "age", 5, "NA"),
        "features: column age: numbers but for some cells, learnt as words -> name such words in data.missing",
    ),
    "dates": (
        lambda folder: column(folder, "flats.csv", "sold", ["2024-05-01"] * 120),
        "features: column sold: dates, learnt as words -> say so",
    ),
    "an empty feature": (
        lambda folder: column(folder, "flats.csv", "note", [None] * 120),
        "features: column note: no value at all -> leave it out",
    ),
    "a label of two values": (
        lambda folder: column(folder, "flats.csv", "price", ["0", "1"] * 60),
        "label: column 'price' has two values only, as classes have -> set task.kind",
    ),
    "classes that are numbers": (
        renamed("job.toml", '"regression"', '"classification"'),
        "classes, all of them numbers -> set task.kind",
    ),
    "a certificate that ends soon": (
        certified(CITY, days=20, ago=10),
        "certificate: the certificate ends in 9 days -> renew it",
    ),
    "no certificates": (
        without_tls,
        "certificate: the party file has no [tls] -> make certificates with `fedsim certs`",
    ),
    "a key that others can read": (
        lambda folder: (folder / "linkage.key").chmod(0o644),
        "linkage key: {folder}/linkage.key can be read by other users of this machine -> chmod 600",
    ),
    "a private key that others can read": (
        lambda folder: (folder / "certs" / "primary-city.key").chmod(0o640),
        "certificate: {folder}/certs/primary-city.key can be read by other users of this machine -> chmod 600",
    ),
    "a folder that others can write": (
        lambda folder: (folder / "city-run").chmod(0o777),
        "folder: {folder}/city-run can be written by other users of this machine -> chmod 700",
    ),
    "a file of the future": (into_future, "later than the clock here says -> set the clock"),
    "more threads than processors": (
        renamed("job.toml", "epochs = 8", "epochs = 8\nthreads = 1024"),
        "processors: training.threads is 1024, and this machine has ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WARNED)
def test_what_is_probably_not_meant_is_a_warning(folder, what):
    spoil, told = WARNED[what]
    spoil(folder)
    found = warnings(report(folder, "city"))
    assert any(told.format(folder=folder) in warning for warning in found), found


def test_training_of_a_few_steps_is_warned_of(folder):
    change(folder / "job.toml", "batch_size = 2", "batch_size = 256")
    told = "steps: 8 steps in all; networks learn little from so few -> more epochs or a smaller batch_size"
    assert warnings(report(folder, "city", "rentals")) == [told]


def test_a_clock_that_is_behind_is_suspected(folder):
    found = report(folder, "city", now=datetime.now(UTC) - 30 * DAY)
    assert any("is not valid before" in fault and "set the clock" in fault for fault in faults(found))
    assert any(warning.startswith("clock: ") for warning in warnings(found))


# --- names, dates and classes --------------------------------------------------------------------------------------

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


def test_names_salts_and_dates_are_looked_at_too(folder):
    job = folder / "job.toml"
    job.write_text(job.read_text().partition("[secondaries.rentals.schema]")[0].replace("k = 20", "k = 2") + FIRMS)
    (folder / "rentals.csv").write_text(FIRM_TABLE)
    change(folder / "rentals.toml", 'columns = ["lat", "lon", "rooms", "rating", "rent"]', "")
    found = [fault for fault in faults(report(folder, "rentals")) if fault.startswith("identifiers")]
    assert [fault.partition(" -> ")[0] for fault in found] == [
        "identifiers: column 'name': 1 of 3 are missing, first in row 2",
        "identifiers: column 'town': 1 of 3 are missing, first in row 3",
        "identifiers: column 'founded': 1 of 3 are no dates like 1984-07-31, first in row 2",
        "identifiers: column 'founded': 1 of 3 lie outside the range agreed with rentals, 1900-01-01 to 2025-12-31, "
        "first in row 3",
    ]


def test_a_label_with_one_class_cannot_be_told_apart(folder):
    change(folder / "job.toml", '"regression"', '"classification"')
    column(folder, "flats.csv", "price", ["dear"] * 120)
    found = faults(report(folder, "city"))
    assert "label: column 'price' has one class only -> at least two are needed to tell apart" in found


def test_a_word_for_missing_among_the_classes_is_warned_of(folder):
    change(folder / "job.toml", '"regression"', '"classification"')
    change(folder / "city.toml", 'file = "flats.csv"', 'file = "flats.csv"\nmissing = ["NA"]')
    column(folder, "flats.csv", "price", ["dear", "cheap", "NA"] * 40)
    assert any("40 of 120 hold a word of data.missing" in warning for warning in warnings(report(folder, "city")))


def test_a_split_by_group_needs_groups(folder):
    change(folder / "job.toml", '"random"', '"group"')
    for name, place in (("lat", "1.3"), ("lon", "103.8")):
        column(folder, "flats.csv", name, [place] * 120)
    assert any("all records share 1 sets of identifiers" in fault for fault in faults(report(folder, "city")))


def test_parquet_columns_of_the_wrong_type_are_named(folder):
    frame = pl.read_csv(folder / "flats.csv").with_columns(lat=pl.lit(True), price=pl.concat_list("price"))
    frame.write_parquet(folder / "flats.parquet")
    change(folder / "city.toml", "flats.csv", "flats.parquet")
    found = faults(report(folder, "city"))
    assert "identifiers: column 'lat' holds Boolean; numbers are needed -> convert the column" in found
    assert "label: column 'price' holds List(Float64); numbers or text are needed -> convert the column" in found


def test_no_value_of_any_cell_is_told(folder):
    canaries = {"lat": "77.123456", "lon": "Kanariengasse", "price": "98765,4321"}
    for row, (name, word) in enumerate(canaries.items(), 5):
        cell(folder, "flats.csv", name, row, word)
    approve_now(folder, "city")
    told = str(asdict(report(folder, *PARTIES)))
    assert told.count("first in row") == 3
    assert not any(word in told for word in canaries.values())
