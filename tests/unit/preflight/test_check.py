"""What would stop a job is reported before it starts, with a fix and without any value of a table."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

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
from fedsim.linkage.encoding import Key, NumericFilter
from fedsim.preflight.check import check_disk, check_job
from fedsim.preflight.estimate import NetworkLink, build_workload, estimate_cost
from fedsim.preflight.finding import CheckFinding, CheckLevel
from fedsim.preflight.table import PartyInJob
from fedsim.protocol.grpc_transport import GrpcTransport
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import read_credentials
from fedsim.registry import ENCODINGS, PRESETS
from fedsim.runs.run_folder import lock_run_folder
from fedsim_ops.authority import Authority, issue_certificates, party_files
from fedsim_ops.relay import read_relay
from job_fixtures import PARTIES, approve_now, change
from relay_fixtures import HUB, relay_in_thread


def checks_and_codes(findings: list[CheckFinding]) -> list[tuple[str, str]]:
    return [(finding.check, finding.code) for finding in findings]


# --- all is well ---------------------------------------------------------------------------------------------------


def test_a_job_that_is_ready_passes_without_warnings(folder):
    found = report(folder, *PARTIES)
    assert found.passed
    assert not warnings(found)
    assert [section.title.split(" ")[0] for section in found.sections] == [
        "job", "coordinator", "primary", "secondary", "together"
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


def test_a_party_file_in_the_place_of_the_job_is_reported_once(folder):
    job, city = folder / "job.toml", folder / "city.toml"
    [finding] = failures(check_job(city, [job], link=NetworkLink(), now=datetime.now(UTC), call_peers=False))
    assert finding.code == "argument-order"
    assert f"fedsim check {job} {city}" in finding.fix
    assert [finding.code for finding in failures(report(folder, "job"))] == ["argument-order"]


# --- what stops a party, one change at a time ----------------------------------------------------------------------


def recoded(folder: Path) -> None:
    text = (folder / "flats.csv").read_text()
    (folder / "flats.csv").write_text(text, encoding="utf-16")


def semicolons(folder: Path) -> None:
    change(folder / "flats.csv", ",", ";")


def foreign_authority(folder: Path) -> None:
    (folder / "certs" / "ca.pem").write_bytes(Authority.create(datetime.now(UTC)).pair.certificate)


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
        section = report(folder, "rentals", peers=True).sections[1]
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
        notary = report(folder, "notary", peers=True).sections[1].findings
        assert [found.level for found in notary if found.check in ("relay", "port")] == [CheckLevel.OK] * 2
        found = failures(report(folder, "rentals", peers=True))
        assert {finding.check for finding in found} == {"peers"}  # none of them is registered
    found = failures(report(folder, "rentals", peers=True))
    assert checks_and_codes(found) == [("relay", "relay-unreachable")]


def test_without_a_certificate_no_peer_is_called(folder):
    (folder / "certs" / "secondary-rentals.key").unlink()
    assert checks_and_codes(warnings(report(folder, "rentals", peers=True))) == [("peers", "no-certificate")]


# --- names, dates and classes --------------------------------------------------------------------------------------


def test_an_engine_that_is_not_installed_fails(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    renamed("notary.toml", "[tls]", 'engine = "ray:auto"\n[tls]')(folder)
    assert_found(failures(report(folder, "notary")), "engine", "missing-package", "fedsim-vfl[ray]")
