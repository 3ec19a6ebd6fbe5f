"""What would stop a job is reported before it starts, with a fix and without any value of a table."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.errors import InputError
from fedsim.linkage.encoding import Key, NumericFilter
from fedsim.pipeline.party_table import PartyData
from fedsim.preflight import check
from fedsim.preflight.check import CheckReport, check_disk, check_job
from fedsim.preflight.estimate import NetworkLink, build_workload, estimate_cost
from fedsim.preflight.finding import CheckFinding, CheckLevel
from fedsim.preflight.table import PartyInJob
from fedsim.protocol.certificates import Authority, issue_certificates, party_files
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim.registry import ENCODINGS, PRESETS
from fedsim.runs.run_folder import lock_run_folder
from fedsim.types import derive_seed
from fedsim_ops.relay import read_relay
from job_fixtures import PARTIES, approve_now, change, fill
from relay_fixtures import HUB, relay_in_thread

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


def failures(found: CheckReport, level: CheckLevel = CheckLevel.FAILS) -> list[CheckFinding]:
    """Return all findings of a level."""
    return [finding for section in found.sections for finding in section.findings if finding.level is level]


def warnings(found: CheckReport) -> list[CheckFinding]:
    return failures(found, CheckLevel.WARNING)


def checks_and_codes(findings: list[CheckFinding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.code) for finding in findings]


def assert_found(findings: list[CheckFinding], check: str, code: str, *words: str) -> None:
    """Assert that a finding has this check and code, a fix, and these words (names and numbers) in its text."""
    matching = [finding for finding in findings if finding.check == check and code in ("", finding.code)]
    texts = [f"{finding.result} -> {finding.fix}" for finding in matching]
    assert any(all(word in text for word in words) for text in texts), findings
    assert all(finding.fix for finding in matching)


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


def test_a_job_that_is_ready_passes_without_warnings(folder):
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


def test_all_faults_of_a_job_are_reported_at_once_with_their_lines(folder):
    change(folder / "job.toml", "epochs = 8", "epoch = 8")
    change(folder / "job.toml", '"modern"', '"moddern"')
    change(folder / "job.toml", "k = 20", "k = 0")
    change(folder / "job.toml", "threshold = 0.05 } },\n  { column", "treshold = 0.05 } },\n  { column")
    found = failures(report(folder, "rentals"))
    assert [finding.code for finding in found][:3] == ["unknown-choice", "unknown-setting", "invalid-value"]
    for finding, line, near in zip(found, (18, 20, 29, 33), ("modern", "epochs", "10,000", "threshold"), strict=True):
        assert f"line {line}:" in finding.result
        assert near in finding.fix


def test_a_job_that_cannot_be_read_does_not_hide_problems_of_a_party(folder):
    (folder / "job.toml").write_text("name = [")
    (folder / "linkage.key").unlink()
    (folder / "flats.csv").unlink()
    found = failures(report(folder, "city"))
    assert [finding.check for finding in found] == ["job file", "data", "linkage key"]


@pytest.mark.parametrize(
    ("old", "new", "code", "near"),
    [
        ("[data]", "[dta]", "unknown-setting", "data"),
        ('role = "secondary"', 'role = "second"', "unknown-choice", "secondary"),
        ('name = "rentals"', "name = ", "invalid-toml", ""),
    ],
)
def test_faults_of_a_party_file_are_reported_with_the_nearest_name(folder, old, new, code, near):
    change(folder / "rentals.toml", old, new)
    assert_found(failures(report(folder, "rentals")), "party file", code, near)


def test_a_column_of_another_name_is_reported_with_the_line_that_maps_it(folder):
    change(folder / "flats.csv", "lat,lon", "Latitude,lon")
    assert_found(failures(report(folder, "city")), "columns", "", '[identifiers] lat = "Latitude"', "city.toml")


def test_the_linkage_is_measured_on_the_partys_own_table(folder):
    findings = [finding for finding in report(folder, "rentals").sections[-1].findings if finding.check == "linkage"]
    assert {finding.result.split(": ")[1].split()[0] for finding in findings} == {"found", "ties", "filters"}


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


def test_a_party_file_in_the_place_of_the_job_is_reported_once(folder):
    job, city = folder / "job.toml", folder / "city.toml"
    [finding] = failures(check_job(city, [job], link=NetworkLink(), now=datetime.now(UTC), call_peers=False))
    assert finding.code == "argument-order"
    assert f"fedsim check {job} {city}" in finding.fix
    assert [finding.code for finding in failures(report(folder, "job"))] == ["argument-order"]


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
    """Return a certificate of the city that was issued some days ago and is valid for ``days`` days."""

    def put(folder: Path) -> None:
        then = datetime.now(UTC) - ago * DAY
        authority = Authority.create(then)
        pair = authority.issue(party, then, days)
        certificate, key = party_files(folder / "certs", CITY)
        (folder / "certs" / "ca.pem").write_bytes(authority.pair.certificate)
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)

    return put


STOPPED: dict[str, tuple[Change, str, str, tuple[str, ...]]] = {
    "exchanged coordinates": (
        renamed("flats.csv", "lat,lon", "lon,lat"), "identifiers", "", ('[identifiers] lat = "lon", lon = "lat"',)
    ),
    "a constant label": (
        lambda folder: column(folder, "flats.csv", "price", ["7"] * 120), "label", "", ("'price'",)
    ),
    "another name": (renamed("city.toml", 'name = "city"', 'name = "town"'), "takes part", "not-a-party", ("'town'",)),
    "an unknown identifier": (
        renamed("city.toml", "[label]", '[identifiers]\nlatt = "lat"\n[label]'),
        "columns", "unknown-column", ("'latt'", "'lat'"),
    ),
    "no table": (lambda folder: (folder / "flats.csv").unlink(), "data", "", ("flats.csv",)),
    "semicolons": (semicolons, "data", "", ("data.separator = ';'",)),
    "UTF-16": (recoded, "data", "", ("UTF-16", "UTF-8")),
    "no rows": (first_lines("flats.csv", 1), "data", "", ("flats.csv",)),
    "a column twice": (renamed("flats.csv", "storey,age", "age,age"), "data", "", ("'age'",)),
    "a column with another name": (
        renamed("flats.csv", "lat,lon", "lat,long"), "columns", "", ("'lon'", '"long"')
    ),
    "decimal commas in an identifier": (
        lambda folder: with_commas(folder, "flats.csv", "lat"), "identifiers", "", ("'lat'", "120 of 120", "row 1")
    ),
    "a missing identifier": (
        lambda folder: cell(folder, "flats.csv", "lon", 7, None), "identifiers", "", ("'lon'", "1 of 120", "row 7")
    ),
    "an identifier out of range": (
        lambda folder: cell(folder, "flats.csv", "lat", 9, "50.5"),
        "identifiers", "", ("'lat'", "1 of 120", "0.9 to 1.8", "row 9"),
    ),
    "a label with commas": (
        lambda folder: with_commas(folder, "flats.csv", "price"), "label", "", ("'price'", "120 of 120", "row 1")
    ),
    "a label of zero on a log scale": (
        lambda folder: (
            renamed("job.toml", '"regression"', '"regression"\nlabel_scale = "log"')(folder),
            cell(folder, "flats.csv", "price", 3, "0"),
        ),
        "label", "label-not-positive", ("'price'", "label_scale"),
    ),
    "no label": (
        lambda folder: column(folder, "flats.csv", "price", [None] * 120), "label", "constant-label", ("'price'",)
    ),
    "too few records": (first_lines("flats.csv", 5), "records", "", ("4 records",)),
    "no key": (lambda folder: (folder / "linkage.key").unlink(), "linkage key", "", ("{folder}/linkage.key",)),
    "another file as key": (
        lambda folder: (folder / "linkage.key").write_text("no key"), "linkage key", "", ("linkage.key",)
    ),
    "a condition of the policy": (
        renamed("city.toml", "[serving]", "[policy]\nmax_k = 10\n[serving]"), "policy", "max_k", ("10", "20")
    ),
    "a column the policy does not list": (
        renamed("city.toml", "[serving]", '[policy]\ncolumns = ["lat", "lon"]\n[serving]'),
        "policy", "columns", ("price",),
    ),
    "no approval": (
        lambda folder: shutil.rmtree(folder / "city-run"),
        "approval", "not-approved", ("fedsim approve {folder}/job.toml {folder}/city.toml",),
    ),
    "a job that has changed": (
        renamed("job.toml", "epochs = 8", "epochs = 9"), "approval", "job-changed", ("job.training.epochs",)
    ),
    "a new column": (
        lambda folder: column(folder, "flats.csv", "rooms", ["1"] * 120), "approval", "columns-changed", ()
    ),
    "an expired certificate": (certified(CITY, days=10, ago=20), "certificate", "", ("primary-city.pem",)),
    "a certificate of another role": (
        certified(Party(Role.SECONDARY, "city"), days=10, ago=0), "certificate", "", ("secondary 'city'",)
    ),
    "another authority": (foreign_authority, "certificate", "", ("primary-city.pem",)),
    "no certificate": (
        lambda folder: (folder / "certs" / "primary-city.pem").unlink(), "certificate", "", ("primary-city.pem",)
    ),
    "a folder below a file": (
        renamed("city.toml", '"city-run"', '"flats.csv/run"'), "folder", "not-writable", ("{folder}/flats.csv",)
    ),
    "an address of another machine": (
        renamed("city.toml", "[serving]", '[network]\nlisten = "192.0.2.1:50052"\n[serving]'),
        "port", "port-unavailable", ("192.0.2.1:50052",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", STOPPED)
def test_what_stops_the_primary_is_reported_with_a_fix(folder, what):
    spoil, check, code, words = STOPPED[what]
    spoil(folder)
    assert_found(failures(report(folder, "city")), check, code, *(word.format(folder=folder) for word in words))


def test_one_problem_hides_no_other(folder):
    change(folder / "flats.csv", "storey,age", "age,age")
    lines = (folder / "flats.csv").read_text().splitlines()
    lines[4] = "," + lines[4].partition(",")[2]  # the fourth record has no latitude
    (folder / "flats.csv").write_text("\n".join(lines))
    (folder / "linkage.key").unlink()
    shutil.rmtree(folder / "certs")
    checks = {finding.check for finding in failures(report(folder, "city"))}
    assert checks == {"data", "identifiers", "linkage key", "certificate"}


# --- the secondary, the coordinator, and all together --------------------------------------------------------------


def test_a_secondary_needs_as_many_records_as_partners_and_as_its_policy_requires(folder):
    first_lines("rentals.csv", 13)(folder)
    found = failures(report(folder, "rentals"))
    assert_found(found, "records", "", "20", "12")
    assert_found(found, "policy", "min_candidates", "1,000")


def test_different_keys_and_authorities_are_found_when_both_files_are_available(folder):
    Key(b"\1" * 32).write(folder / "other.key")
    change(folder / "rentals.toml", '"linkage.key"', '"other.key"')
    (folder / "other").mkdir()
    (folder / "other" / "ca.pem").write_bytes(Authority.create(datetime.now(UTC)).pair.certificate)
    change(folder / "rentals.toml", "certs/ca.pem", "other/ca.pem")
    found = checks_and_codes(failures(report(folder, "city", "rentals")))
    assert {("linkage keys", "different-keys"), ("authorities", "different-authorities")} <= set(found)


def test_a_file_or_a_folder_given_twice_is_found(folder):
    assert ("files", "duplicate-party") in checks_and_codes(failures(report(folder, "city", "city")))
    change(folder / "rentals.toml", '"rentals-run"', '"city-run"')
    assert ("files", "shared-folder") in checks_and_codes(failures(report(folder, "city", "rentals")))


def test_a_port_in_use_is_found(folder):
    address = read_job(folder / "job.toml").coordinator.address
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        found = failures(report(folder, "notary"))
    assert checks_and_codes(found) == [("port", "port-unavailable")]


def test_a_port_of_metrics_in_use_is_a_warning(folder):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        change(folder / "city.toml", "[tls]", f'[telemetry]\nmetrics = "127.0.0.1:{port}"\n[tls]')
        assert_found(warnings(report(folder, "city")), "telemetry", "port-unavailable", str(port))


def test_a_missing_login_of_the_proxy_is_not_a_problem_of_the_certificate(folder):
    settings = '[network]\nproxy = "http://127.0.0.1:3128"\nproxy_login = "no-such-file"\n[tls]'
    change(folder / "city.toml", "[tls]", settings)
    assert_found(failures(report(folder, "city")), "proxy", "no-proxy-login", "no-such-file")


def test_a_process_that_runs_the_job_is_found(folder):
    with lock_run_folder(read_job(folder / "job.toml"), read_party_file(folder / "rentals.toml")):
        [finding] = failures(report(folder, "rentals"))
    assert finding.code == "already-running"
    assert str(os.getpid()) in finding.result
    assert report(folder, "rentals").passed


def test_a_full_disk_is_found(folder):
    job, own = read_job(folder / "job.toml"), read_party_file(folder / "rentals.toml")
    usual = estimate_cost(job, build_workload(job, {}, {}), NetworkLink())
    for need, level in ((10**18, CheckLevel.FAILS), (0, CheckLevel.OK)):
        case = PartyInJob(job, own, None, None, replace(usual, disk={"rentals": need}))
        assert [finding.level for finding in check_disk(case)] == [level]


def test_a_message_that_is_too_large_is_found_before_it_is_sent(folder):
    change(folder / "job.toml", "threshold = 0.05 }", "threshold = 0.05, bits = 8388608 }")
    assert "records" in [finding.check for finding in failures(report(folder, "rentals"))]


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(check.PACKAGES, "no_such_module", "no-such-package")
    assert_found(failures(report(folder)), "software", "missing-package", "no-such-package")


@pytest.mark.parametrize("module", check.TELEMETRY_MODULES["otlp"])
def test_a_missing_exporter_of_traces_is_named(folder, monkeypatch, module):
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == module else find_spec(name))
    change(folder / "city.toml", "[tls]", '[telemetry]\notlp = "http://127.0.0.1:4318"\n[tls]')
    assert_found(failures(report(folder, "city")), "telemetry", "missing-package", module)


def test_choices_of_other_packages_can_be_checked(folder):
    @dataclass(frozen=True)
    class WideNumber(NumericFilter):
        KIND: ClassVar[str] = "wide-number"

    change(folder / "job.toml", 'kind = "numeric"', 'kind = "wide-number"')
    change(folder / "job.toml", '"modern"', '"mine"')
    with (
        ENCODINGS.temporarily("wide-number", WideNumber, summary="Numbers of another package."),
        PRESETS.temporarily("mine", object(), summary="A preset of another package."),
    ):
        for name in PARTIES:
            approve_now(folder, name)
        found = report(folder, *PARTIES)
        assert found.passed, failures(found)
        assert any("preset mine" in assumption for assumption in found.estimate.assumed)
        cell(folder, "flats.csv", "lon", 7, None)
        assert_found(failures(report(folder, "city")), "identifiers", "", "'lon'", "row 7")


# --- peers ---------------------------------------------------------------------------------------------------------


def test_peers_are_called_only_on_request(folder):
    job = read_job(folder / "job.toml")
    certs, notary = folder / "certs", job.parties[0]
    own = read_credentials(certs / "ca.pem", *party_files(certs, notary), notary)
    listener = GrpcTransport(own).listen(job.coordinator.address, lambda _, line: line.close())
    try:
        section = report(folder, "rentals", peers=True).sections[2]
    finally:
        listener.close()
    reached, unreached = [finding for finding in section.findings if finding.check == "peers"]
    assert reached.level is CheckLevel.OK
    assert job.coordinator.address in reached.result
    assert unreached.code == "peer-unreachable"
    assert job.primary.address in unreached.result
    assert report(folder, "rentals").passed


def test_a_relay_is_tested_and_what_is_wrong_is_named(folder):
    job, certs = read_job(folder / "job.toml"), folder / "certs"
    issue_certificates(certs, [HUB], datetime.now(UTC))
    with relay_in_thread(read_relay([certs / "ca.pem"], *party_files(certs, HUB))) as hub:
        for address in (job.coordinator.address, job.primary.address):
            change(folder / "job.toml", f'"{address}"', f'"{hub}"')
        for name in ("notary", "rentals"):
            approve_now(folder, name)
        notary = report(folder, "notary", peers=True).sections[2].findings
        assert [found.level for found in notary if found.check in ("relay", "port")] == [CheckLevel.OK] * 2
        found = failures(report(folder, "rentals", peers=True))
        assert {finding.check for finding in found} == {"peers"}  # none of them is registered
    found = failures(report(folder, "rentals", peers=True))
    assert checks_and_codes(found) == [("relay", "relay-unreachable")]


def test_without_a_certificate_no_peer_is_called(folder):
    (folder / "certs" / "secondary-rentals.key").unlink()
    assert checks_and_codes(warnings(report(folder, "rentals", peers=True))) == [("peers", "no-certificate")]


# --- warnings ------------------------------------------------------------------------------------------------------


def ids(folder: Path) -> None:
    column(folder, "flats.csv", "id", [str(number) for number in range(1000, 1120)])


def into_future(folder: Path) -> None:
    later = (datetime.now(UTC) + DAY).timestamp()
    os.utime(folder / "flats.csv", (later, later))


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
    "traces in plaintext": (
        watched('otlp = "http://collector.example.org:4318"'), "telemetry", "plaintext-telemetry", ("https",)
    ),
    "a file of the future": (into_future, "clock", "clock-behind", ()),
    "more threads than processors": (
        renamed("job.toml", "epochs = 8", "epochs = 8\nthreads = 1024"), "processors", "too-many-threads", ("1024",)
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


def test_a_gpu_that_this_machine_lacks_is_a_warning(folder, monkeypatch):
    monkeypatch.setattr("fedsim.preflight.check.GPU_FILES", (folder / "no-gpu",))
    change(folder / "city.toml", 'role = "primary"', 'role = "primary"\ndevice = "cuda"')
    assert checks_and_codes(failures(report(folder, "city"), CheckLevel.WARNING)) == [("device", "no-gpu")]


def test_a_clock_that_is_behind_is_suspected(folder):
    found = report(folder, "city", now=datetime.now(UTC) - 30 * DAY)
    assert_found(failures(found), "certificate", "", "clock")
    assert_found(warnings(found), "clock", "clock-behind")


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


def test_an_engine_that_is_not_installed_fails(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    renamed("notary.toml", "[tls]", 'engine = "ray:auto"\n[tls]')(folder)
    assert_found(failures(report(folder, "notary")), "engine", "missing-package", "fedsim-vfl[ray]")
