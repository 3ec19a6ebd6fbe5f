"""Heads of audit logs at the peers: an owner who writes the log anew, or cuts it off, is found out."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FileError
from fedsim.protocol.certificates import issue_certificates, party_files
from fedsim.protocol.messages import Party, Phase, Role
from fedsim.protocol.tls import read_credentials
from fedsim.runs import log_receipts
from fedsim.runs.log_receipts import LogExchange, confirm_log, receipt_path
from fedsim.runs.run_folder import AuditLog, open_audit_log, read_audit_log
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all

CITY, RENTALS = Party(Role.PRIMARY, "city"), Party(Role.SECONDARY, "rentals")
JOB = "ab" * 32


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    issue_certificates(folder, [CITY, RENTALS], datetime.now(UTC))
    issue_certificates(folder / "other", [CITY, RENTALS], datetime.now(UTC))
    return folder


def exchange_of(folder, party, certs):
    own = None if certs is None else read_credentials(certs / "ca.pem", *party_files(certs, party), party)
    return LogExchange(AuditLog(folder / party.name / "audit.jsonl", party), JOB, own)


def worked(exchange, events):
    for event in events:
        exchange.log.append(event, {"steps": 7})
    return list(read_audit_log(exchange.log.path))


def receipts_of(folder, holder=CITY, owner=RENTALS):
    return receipt_path(folder / holder.name, owner)


@pytest.fixture
def parties(tmp_path, certs):
    """City holds two receipts of the log of rentals, which has five entries."""
    rentals, city = exchange_of(tmp_path, RENTALS, certs), exchange_of(tmp_path, CITY, certs)
    for phase, events in ((Phase.LINK, ["approved", "linked"]), (Phase.TRAIN, ["training", "saved"])):
        worked(rentals, events)
        city.receive(RENTALS, rentals.head(phase))
    worked(rentals, ["finished"])
    return rentals, city


def test_peers_confirm_a_log_up_to_their_last_receipt(parties, tmp_path, certs):
    found = confirm_log(worked(parties[0], []), [receipts_of(tmp_path)], (certs / "ca.pem").read_bytes())
    assert (found.entries, found.receipts, found.signed) == (4, 2, 2)
    assert receipts_of(tmp_path).stat().st_mode & 0o077 == 0


def test_a_peer_notes_the_head_in_its_own_log(parties):
    entries = worked(parties[1], [])
    assert [entry.what for entry in entries] == ["peer's log", "peer's log"]
    assert entries[-1].facts["entries"] == 4


REWRITTEN = [["approved", "linked", "saved", "finished"], ["approved", "linked", "training"], ["finished"]]


@pytest.mark.parametrize("events", REWRITTEN)
def test_an_owner_who_writes_the_log_anew_or_cuts_it_off_is_found_out(parties, tmp_path, events):
    parties[0].log.path.unlink()
    entries = worked(parties[0], events)  # a chain without a fault
    with raises(FileError, "log-rewritten"):
        confirm_log(entries, [receipts_of(tmp_path)])


def changed(line, **changes):
    return {**json.loads(line), **changes}


def test_a_receipt_that_its_party_did_not_sign_is_refused(parties, tmp_path, certs):
    path = receipts_of(tmp_path)
    line, entries = path.read_text().splitlines()[0], worked(parties[0], [])
    other = exchange_of(tmp_path / "other", RENTALS, certs / "other")
    city = exchange_of(tmp_path / "other", CITY, certs)
    forged = {
        "another statement": changed(
            line, statement=json.loads(line)["statement"].replace('"entries": 2', '"entries": 1')
        ),
        "another party's certificate": changed(line, certificate=city.head(Phase.LINK).certificate),
        "another authority's certificate": changed(line, certificate=other.head(Phase.LINK).certificate),
        "no signature": changed(line, signature=""),
        "no JSON object": [1],
    }
    for what, receipt in forged.items():
        path.write_text(json.dumps(receipt) + "\n")
        with raises(FileError, "bad-receipt"):
            confirm_log(entries, [path], (certs / "ca.pem").read_bytes())
            pytest.fail(what)


def test_a_head_of_another_party_or_without_a_signature_is_noted_and_not_stored(parties, tmp_path, certs):
    _, city = parties
    unsigned = exchange_of(tmp_path / "bare", RENTALS, None).head(Phase.LINK)
    before = receipts_of(tmp_path).read_bytes()
    for head in (unsigned, city.head(Phase.LINK), log_receipts.LogHead("{", "", signature=np.zeros(0, np.uint8))):
        city.receive(RENTALS, head)
    assert receipts_of(tmp_path).read_bytes() == before
    assert [entry.what for entry in worked(city, [])][-3:] == ["peer's log refused"] * 3


def test_a_peer_cannot_fill_the_disk_with_heads(parties, tmp_path, monkeypatch):
    monkeypatch.setattr(log_receipts, "MAX_RECEIPTS", 4)
    rentals, city = parties
    for _ in range(9):
        city.receive(RENTALS, rentals.head(Phase.TRAIN))
    assert len(receipts_of(tmp_path).read_text().splitlines()) == 4


def test_after_a_job_every_party_holds_receipts_of_those_it_talked_to(tmp_path):
    lay_out(tmp_path)
    job, files = read_all(tmp_path)
    run_local(job, list(files.values()))
    for name, peers in {
        "rentals": ["city", "notary"],
        "city": ["rentals", "notary"],
        "notary": ["city", "rentals"],
    }.items():
        entries = list(read_audit_log(open_audit_log(files[name]).path))
        paths = [receipt_path(files[peer].folder, files[name].party) for peer in peers]
        found = confirm_log(entries, paths)
        assert found.receipts >= 2
        assert found.signed == 0  # parties of one process have no certificates
        assert found.entries > 4
