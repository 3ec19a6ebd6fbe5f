"""A party that refuses, fails or is incompatible reports why; within seconds all stop and name the party and reason."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from e2e.process_hooks import held_step, skewed_clock
from fedsim_lab.faults.local_job import CITY, MEMBERS, NOTARY, RENTALS, SCHOOLS, create_local_job, moved
from fedsim_lab.faults.processes import party_processes, setting
from fedsim_ops.authority import issue_certificates


@pytest.fixture
def place(tmp_path):
    return create_local_job(tmp_path / "job")


@pytest.fixture
def place_of_four(tmp_path):
    """With a second secondary, which hears of the first as everybody does."""
    return create_local_job(tmp_path / "job", n_secondaries=2)


def run_to_the_end(place, before=None):
    """Everybody's exit code and words."""
    with party_processes(place, before) as parties:
        parties.start()
        codes = parties.wait()
        return codes, {name: parties.output_of(name) for name in place.names}


def assert_all_told(place, reason, before=None):
    codes, outputs = run_to_the_end(place, before)
    assert set(codes.values()) == {2}, outputs
    assert all(reason in words for words in outputs.values()), outputs
    assert not any("Traceback" in words for words in outputs.values()), outputs
    assert not any("did not connect" in words for words in outputs.values()), outputs  # nobody waited in vain


def assert_nothing_sent(place, name):
    """Not even encoded: the party had looked at nothing yet. What others approved may be linked before they hear."""
    assert not (place.run(name) / "encoded").exists()
    assert not list(place.run(NOTARY).glob(f"lists/{name if name in (RENTALS, SCHOOLS) else '*'}/linked*"))
    assert place.checkpoints().steps() == []


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"max_tau": 0.01}, "tau of at most 0.01"),
        ({"min_candidates": 1000}, "at least 1,000 records"),
    ],
)
def test_a_policy_that_refuses_is_heard_by_everybody(place, policy, reason):
    place.change_party(RENTALS, policy=policy)
    assert_all_told(place, reason)
    assert_nothing_sent(place, RENTALS)


@pytest.mark.parametrize("name", [NOTARY, RENTALS])
def test_an_owner_who_has_not_approved_is_named_to_everybody(place, name):
    shutil.rmtree(place.own(name).folder / "approvals")
    assert_all_told(place, "has not approved")
    assert_nothing_sent(place, name)


@pytest.mark.parametrize("name", [CITY, RENTALS])
def test_a_job_changed_on_one_side_is_shown_with_the_difference(place, name):
    place.change_job_of(name, training={"epochs": 4})
    place.approve(name)
    assert_all_told(place, "training.epochs")
    assert_nothing_sent(place, name)


def test_another_release_is_refused(place):
    other = {RENTALS: setting("fedsim.runtime.party_context", "VERSION", "0.0.9")}
    assert_all_told(place, "another release", other)
    assert_nothing_sent(place, RENTALS)


def test_another_linkage_key_is_found_by_the_coordinator(place):
    (place.folder / "other.key").write_text("1e" * 32)
    (place.folder / "other.key").chmod(0o600)
    place.change_party(RENTALS, linkage={"key": "other.key"})
    assert_all_told(place, "fingerprint")


def test_a_defect_of_a_party_is_told_to_everybody(place_of_four):
    broken = {CITY: setting("fedsim.runtime.primary", "PartyData", None)}
    codes, outputs = run_to_the_end(place_of_four, broken)
    assert codes == {NOTARY: 2, CITY: 1, RENTALS: 2, SCHOOLS: 2}, outputs
    assert "bug in FedSim" in outputs.pop(CITY)
    assert all("primary 'city' stopped: an internal error" in words for words in outputs.values()), outputs


def test_a_table_that_cannot_be_used_is_named_without_its_contents(place):
    table = place.folder / "city.csv"
    table.write_text(table.read_text().replace("price", "prize"))
    codes, outputs = run_to_the_end(place)
    assert set(codes.values()) == {2}, outputs
    assert "prize" in outputs.pop(CITY)
    assert all("primary 'city' stopped: its table" in words for words in outputs.values()), outputs


def test_a_log_that_cannot_be_written_stops_everybody(place_of_four):
    (place_of_four.own(SCHOOLS).folder / "audit.jsonl").mkdir(parents=True)
    codes, outputs = run_to_the_end(place_of_four)
    assert set(codes.values()) == {2}, outputs
    assert "error: cannot write the audit log" in outputs.pop(SCHOOLS)
    assert all("secondary 'schools' stopped: it cannot read or write" in words for words in outputs.values()), outputs


@pytest.mark.parametrize("name", [NOTARY, CITY])
def test_a_port_in_use_is_named(place, name):
    host, port = place.job.address_of(MEMBERS[name]).split(":")
    with socket.create_server((host, int(port))) as stranger, ThreadPoolExecutor() as thread:
        thread.submit(answer_rudely, stranger)
        codes, outputs = run_to_the_end(place)
        stranger.shutdown(socket.SHUT_RDWR)
    assert set(codes.values()) == {2}, outputs
    assert f"cannot listen at {host}:{port}" in outputs[name]


def answer_rudely(server):
    """Another service, which does not know TLS."""
    with suppress(OSError):
        while True:
            with server.accept()[0] as line:
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_peer_that_never_comes_is_named_after_the_time_the_job_gives(tmp_path):
    place = create_local_job(tmp_path / "job", network={"wait_seconds": 3})
    with party_processes(place) as parties:
        parties.start(NOTARY, CITY)
        codes = parties.wait()
        assert set(codes.values()) <= {2, 3}  # waited for it, or heard of it
        assert 3 in codes.values()
        assert all(
            "secondary 'rentals' did not connect within 3 seconds" in parties.output_of(name) for name in (NOTARY, CITY)
        )


def with_certificate(place, files, days_ago=0):
    """Give 'rentals' another certificate, stored in ``files`` and issued ``days_ago`` days ago."""
    folder, party = files
    then = datetime.now(UTC) - timedelta(days=days_ago)
    issue_certificates(place.folder / folder, [MEMBERS[party]], then, 1)
    stem = f"{folder}/{MEMBERS[party].role}-{party}"
    place.change_party(
        RENTALS, tls={"authority": f"{folder}/ca.pem", "certificate": f"{stem}.pem", "key": f"{stem}.key"}
    )


@pytest.mark.parametrize(
    ("files", "days_ago", "reason"),
    [
        (("certs-of-others", RENTALS), 0, "comes from another authority"),
        (("certs-by-name", SCHOOLS), 0, "secondary 'schools'"),
        (("certs-by-role", CITY), 0, "primary 'city'"),
        (("certs-of-old", RENTALS), 30, "expired"),
    ],
)
def test_a_wrong_certificate_is_named_by_its_owner_and_missed_by_the_others(tmp_path, files, days_ago, reason):
    place = create_local_job(tmp_path / "job", network={"wait_seconds": 3})
    with_certificate(place, files, days_ago)
    codes, outputs = run_to_the_end(place)
    assert codes.pop(RENTALS) == 2
    assert set(codes.values()) <= {2, 3}, outputs
    assert reason in outputs[RENTALS]
    assert all("secondary 'rentals' did not connect" in outputs[name] for name in (NOTARY, CITY)), outputs
    assert_nothing_sent(place, RENTALS)


def test_a_second_process_of_a_party_leaves_and_the_first_does_not_notice(tmp_path):
    place, quiet = create_local_job(tmp_path / "job"), create_local_job(tmp_path / "quiet")
    elsewhere = moved(place, tmp_path / "elsewhere")
    impatient = setting("fedsim.protocol.handshake", "NAME_TAKEN_SECONDS", 1.0)
    with (
        party_processes(place, {RENTALS: held_step(3, tmp_path / "go on")}) as parties,
        party_processes(elsewhere, {RENTALS: impatient}) as others,
        party_processes(quiet) as calm,
    ):
        parties.start()
        parties.until_step(2)
        others.start(RENTALS)
        assert others.wait() == {RENTALS: 2}
        assert "another process is already connected as secondary 'rentals'" in others.output_of(RENTALS)
        (tmp_path / "go on").touch()
        calm.start()
        assert parties.finish() == calm.finish()


def test_a_party_that_runs_already_on_this_machine_is_not_started_again(tmp_path):
    place = create_local_job(tmp_path / "job")
    held = {RENTALS: held_step(3, tmp_path / "go on")}
    with party_processes(place, held) as parties, party_processes(place) as twins:
        parties.start()
        parties.until_step(2)
        twins.start()
        assert set(twins.wait().values()) == {2}
        assert all("already running job 'flats'" in twins.output_of(name) for name in place.names)
        (tmp_path / "go on").touch()
        assert set(parties.wait().values()) == {0}


def test_a_clock_that_is_a_day_ahead_is_worth_a_word_and_nothing_else(tmp_path):
    ahead, right = create_local_job(tmp_path / "ahead"), create_local_job(tmp_path / "right")
    with party_processes(ahead, {CITY: skewed_clock(86_400.0)}) as parties, party_processes(right) as others:
        parties.start()
        hashes = parties.finish()
        assert "the clock of primary 'city' differs by +1440 minutes" in parties.output_of(NOTARY)
        assert "the clock of coordinator 'notary' differs by -1440 minutes" in parties.output_of(CITY)
        others.start()
        assert others.finish() == hashes


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_party_that_dials_in_vain_stops_at_once_when_its_owner_says_so(tmp_path, how):
    place = create_local_job(tmp_path / "job", n_secondaries=2)
    with party_processes(place) as parties:
        parties.start(RENTALS, SCHOOLS)
        for name, seconds in ((RENTALS, 0.0), (SCHOOLS, 0.3)):
            parties.until(lambda name=name: "waiting for coordinator 'notary'" in parties.output_of(name))
            time.sleep(seconds)  # in the midst of another attempt
            parties.running[name].send(how)
        assert parties.wait() == {RENTALS: 130, SCHOOLS: 130}


def test_an_owner_who_stops_a_party_is_heard_by_everybody(tmp_path):
    place = create_local_job(tmp_path / "job")
    with party_processes(place, {RENTALS: held_step(3, tmp_path / "go on")}) as parties:
        parties.start()
        parties.until_step(2)
        parties.running[CITY].send(signal.SIGTERM)
        parties.running[CITY].wait()
        (tmp_path / "go on").touch()
        assert parties.wait() == {NOTARY: 3, CITY: 130, RENTALS: 3}
        reason_of_stop = "primary 'city' stopped: its owner stopped it"
        assert all(reason_of_stop in parties.output_of(name) for name in (NOTARY, RENTALS))
        assert "messages between the parties" in parties.output_of(CITY)
