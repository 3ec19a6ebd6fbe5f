"""Parties that hang, networks that break, disks that are full: nothing is lost, and everybody is told."""

from __future__ import annotations

import resource
import signal
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import numpy as np
import pytest

from e2e.process_hooks import held_step, slow_steps
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job
from fedsim_lab.faults.network import ProxyNetwork
from fedsim_lab.faults.processes import each, heartbeat, party_processes, setting
from fedsim_ops.authority import issue_certificates

TRAINING = {"epochs": 8}
LAST_STEP = 48


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the job learns where nothing happens."""
    with party_processes(create_local_job(tmp_path_factory.mktemp("quiet") / "job", training=TRAINING)) as parties:
        parties.start()
        return parties.finish()


@contextmanager
def proxies(place):
    """Networks before coordinator and primary."""
    network = ProxyNetwork(place)
    try:
        yield list(network.proxies.values())
    finally:
        network.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [[CITY], [RENTALS, NOTARY]])
def test_a_party_that_hangs_longer_than_the_heartbeat_goes_on_where_it_was(stopped, expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place, dict.fromkeys(place.names, heartbeat(1.0))) as parties:
        parties.start()
        parties.until_step(6)
        for name in stopped:
            parties.running[name].send(signal.SIGSTOP)
        waiting = RENTALS if stopped == [CITY] else CITY
        parties.until(lambda: "lost" in parties.output_of(waiting))
        for name in stopped:
            parties.running[name].send(signal.SIGCONT)
        assert parties.finish() == expected
        assert "retrying" in parties.output_of(waiting)


@pytest.mark.slow
def test_a_network_that_delays_cuts_and_stalls_at_random_changes_nothing(expected, tmp_path):
    place, rng = create_local_job(tmp_path / "job", training=TRAINING), np.random.default_rng()
    with proxies(place) as networks, party_processes(place) as parties:
        parties.start()
        for step in range(-1, LAST_STEP, 2):
            parties.until_step(step)
            time.sleep(rng.uniform(0, 0.1))
            misbehave(networks[rng.integers(2)], rng)
        assert parties.finish() == expected


def misbehave(network, rng):
    """For up to half a second: cut, and for a while closed; or silent; or late."""
    network.delay = rng.uniform(0, 0.02)
    how = rng.integers(3)
    if how == 0:
        network.closed = True
        network.cut()
    elif how == 1:
        network.stall()
    time.sleep(rng.uniform(0, 0.5))
    network.closed = False
    network.resume()


@pytest.mark.slow
def test_a_network_that_is_dead_for_a_while_is_waited_for(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with proxies(place) as networks, party_processes(place) as parties:
        parties.start()
        parties.until_step(6)
        for network in networks:
            network.stall()
        parties.until(lambda: "secondary 'rentals' is connected but has not answered" in parties.output_of(CITY))
        for network in networks:
            network.resume()
        assert parties.finish() == expected


@pytest.mark.slow
def test_certificates_keys_and_authority_are_replaced_in_the_middle_of_a_training(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    certs, new = place.folder / "certs", tmp_path / "new"
    issue_certificates(new, place.job.parties, datetime.now(UTC))
    often = setting("fedsim.runtime.party_context", "RELOAD_SECONDS", 0.1)
    before = {NOTARY: often, CITY: often, RENTALS: each(often, slow_steps(0.1, *range(4, 30)))}
    with proxies(place) as networks, party_processes(place, before) as parties:

        def noticed(times):
            parties.until(
                lambda: all(parties.output_of(name).count("new connections use") == times for name in place.names)
            )

        parties.start()
        parties.until_step(4)
        (certs / "ca.pem").write_bytes((certs / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
        noticed(times=1)
        for path in (path for end in ("key", "pem") for path in new.glob(f"*-*.{end}")):
            path.replace(certs / path.name)
        noticed(times=2)
        (certs / "ca.pem").write_bytes((new / "ca.pem").read_bytes())
        noticed(times=3)
        for network in networks:  # whoever connects again shows a new certificate, and nobody trusts the old authority
            network.cut()
        assert parties.finish() == expected


def test_a_slow_party_is_waited_for(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place, {RENTALS: slow_steps(4.0, 3)}) as parties:
        parties.start()
        assert parties.finish() == expected
        assert "secondary 'rentals' is connected but has not answered" in parties.output_of(CITY)


@pytest.mark.parametrize("name", [CITY, RENTALS])
def test_a_full_disk_stops_everybody_with_the_reason_and_spoils_no_checkpoint(name, expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place) as parties:
        parties.start()
        parties.until_step(6)
        # A file of this size is as large as the disk allows: audit log and messages still fit, a checkpoint does not.
        resource.prlimit(parties.running[name].pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        assert parties.wait() == {NOTARY: 2, CITY: 2, RENTALS: 2}
        assert "cannot write the checkpoint" in parties.output_of(name)
        assert "is intact" in parties.output_of(name)
        role = {CITY: "primary", RENTALS: "secondary"}[name]
        reason = f"{role} '{name}' stopped: it cannot read or write one of its files"
        assert all(reason in parties.output_of(other) for other in place.names if other != name)
        parties.start()
        assert parties.finish() == expected


def test_a_coordinator_with_a_full_disk_says_so_and_links_later(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place) as parties:
        parties.start(NOTARY)
        parties.until(lambda: parties.running[NOTARY].pid is not None)
        resource.prlimit(parties.running[NOTARY].pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
        parties.start(CITY, RENTALS)
        assert parties.wait() == {NOTARY: 2, CITY: 2, RENTALS: 2}
        assert "cannot write" in parties.output_of(NOTARY)
        assert "coordinator 'notary' stopped: it cannot read or write" in parties.output_of(RENTALS)
        parties.start()
        assert parties.finish() == expected


def test_a_primary_that_is_gone_for_good_is_named_by_all_who_wait_for_it(tmp_path):
    place = create_local_job(tmp_path / "job", network={"wait_seconds": 3})
    with party_processes(place, {RENTALS: held_step(3, tmp_path / "go on")}) as parties:
        parties.start()
        parties.until_step(2)
        parties.running.pop(CITY).kill()
        (tmp_path / "go on").touch()
        assert parties.wait() == {NOTARY: 3, RENTALS: 3}
        assert all("primary 'city'" in parties.output_of(name).splitlines()[-1] for name in (NOTARY, RENTALS))


def test_a_coordinator_that_started_anew_is_not_left_alone_while_the_others_train(tmp_path):
    place, quiet = (create_local_job(tmp_path / name, network={"wait_seconds": 3}) for name in ("job", "quiet"))
    with party_processes(place, {RENTALS: slow_steps(0.6, *range(3, 13))}) as parties, party_processes(quiet) as others:
        parties.start()
        parties.until_step(2)
        parties.restart(NOTARY)
        others.start()
        assert parties.finish() == others.finish()
