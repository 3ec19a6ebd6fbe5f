"""Parties that hang, networks that break, disks that are full: nothing is lost, and everybody is told."""

from __future__ import annotations

import resource
import signal
import time
from contextlib import contextmanager

import numpy as np
import pytest

from e2e.process_hooks import slow_steps
from fedsim_lab.faults.local_job import CITY, NOTARY, RENTALS, create_local_job
from fedsim_lab.faults.network import ProxyNetwork
from fedsim_lab.faults.processes import heartbeat, party_processes

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


@pytest.mark.parametrize("stopped", [[CITY], [RENTALS, NOTARY]])
def test_a_party_that_hangs_longer_than_the_heartbeat_goes_on_where_it_was(stopped, expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place, dict.fromkeys(place.names, heartbeat(1.0))) as parties:
        parties.start()
        parties.until_step(6)
        for name in stopped:
            parties.running[name].send(signal.SIGSTOP)
        time.sleep(6)
        for name in stopped:
            parties.running[name].send(signal.SIGCONT)
        assert parties.finish() == expected
        waiting = RENTALS if stopped == [CITY] else CITY
        assert "lost" in parties.said(waiting)
        assert "retrying" in parties.said(waiting)


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


def test_a_network_that_is_dead_for_half_a_minute_is_waited_for(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with proxies(place) as networks, party_processes(place) as parties:
        parties.start()
        parties.until_step(6)
        for network in networks:
            network.stall()
        time.sleep(30)
        assert "secondary 'rentals' is connected but has not answered" in parties.said(CITY)
        for network in networks:
            network.resume()
        assert parties.finish() == expected


def test_a_slow_party_is_waited_for(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place, {RENTALS: slow_steps(4.0, 3)}) as parties:
        parties.start()
        assert parties.finish() == expected
        assert "secondary 'rentals' is connected but has not answered" in parties.said(CITY)


@pytest.mark.parametrize("name", [CITY, RENTALS])
def test_a_full_disk_stops_everybody_with_the_reason_and_spoils_no_checkpoint(name, expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place) as parties:
        parties.start()
        parties.until_step(6)
        # A file of this size is as large as the disk allows: audit log and messages still fit, a checkpoint does not.
        resource.prlimit(parties.running[name].pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        assert parties.wait(20) == {NOTARY: 2, CITY: 2, RENTALS: 2}
        assert "cannot write the checkpoint" in parties.said(name)
        assert "is intact" in parties.said(name)
        role = {CITY: "primary", RENTALS: "secondary"}[name]
        told = f"{role} '{name}' stopped: it cannot read or write one of its files"
        assert all(told in parties.said(other) for other in place.names if other != name)
        parties.start()
        assert parties.finish() == expected


def test_a_coordinator_with_a_full_disk_says_so_and_links_later(expected, tmp_path):
    place = create_local_job(tmp_path / "job", training=TRAINING)
    with party_processes(place) as parties:
        parties.start(NOTARY)
        parties.until(lambda: parties.running[NOTARY].pid is not None)
        resource.prlimit(parties.running[NOTARY].pid, resource.RLIMIT_FSIZE, (10_000, 10_000))
        parties.start(CITY, RENTALS)
        assert parties.wait(20) == {NOTARY: 2, CITY: 2, RENTALS: 2}
        assert "cannot write" in parties.said(NOTARY)
        assert "coordinator 'notary' stopped: it cannot read or write" in parties.said(RENTALS)
        parties.start()
        assert parties.finish() == expected


def test_a_primary_that_is_gone_for_good_is_named_by_all_who_wait_for_it(tmp_path):
    place = create_local_job(tmp_path / "job", network={"wait_seconds": 3})
    with party_processes(place, {RENTALS: slow_steps(1.0, 3)}) as parties:
        parties.start()
        parties.until_step(2)
        parties.running.pop(CITY).kill()
        assert parties.wait(20) == {NOTARY: 3, RENTALS: 3}
        assert all("primary 'city'" in parties.said(name).splitlines()[-1] for name in (NOTARY, RENTALS))


def test_a_coordinator_that_started_anew_is_not_left_alone_while_the_others_train(tmp_path):
    place, quiet = (create_local_job(tmp_path / name, network={"wait_seconds": 3}) for name in ("job", "quiet"))
    with party_processes(place, {RENTALS: slow_steps(0.6, *range(3, 13))}) as parties, party_processes(quiet) as others:
        parties.start()
        parties.until_step(2)
        parties.restart(NOTARY)
        others.start()
        assert parties.finish() == others.finish()
