"""Schedules of faults, how their outcomes are judged, and mutated frames; campaigns themselves run by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedsim_lab.faults import campaign
from fedsim_lab.faults.campaign import Facilities, ViolationError
from fedsim_lab.faults.local_job import CITY, NOTARY, RELAY, RENTALS
from fedsim_lab.faults.network import ProxyNetwork

EVERYTHING, NOTHING = Facilities(namespaces=True, clock=True), Facilities(namespaces=False, clock=False)


def test_a_schedule_is_replayed_by_its_seed():
    first, again, other = (campaign.draw_schedule(seed, EVERYTHING) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_two_hundred_schedules_try_every_kind_of_fault_at_every_party():
    faults = [fault for seed in range(200) for fault in campaign.draw_schedule(seed, EVERYTHING).faults]
    tried = {(fault.kind, fault.party) for fault in faults}
    assert tried == {(kind, party) for kind in campaign.KINDS for party in campaign.PARTIES}


def test_through_a_relay_it_is_disturbed_too():
    schedules = [campaign.draw_schedule(seed, EVERYTHING, relay=True) for seed in range(100)]
    tried = {(fault.kind, fault.party) for schedule in schedules for fault in schedule.faults}
    links = {"partition", "slow link", "lossy link"}
    assert {kind for kind, party in tried if party == RELAY} == links | {"kill", "pause"}
    assert {party for kind, party in tried if kind in links} == {RELAY}
    assert schedules[3].name == "relay-3"


def test_without_root_and_compiler_only_what_a_user_may_do_is_tried():
    schedules = [campaign.draw_schedule(seed, NOTHING) for seed in range(50)]
    assert {schedule.network for schedule in schedules} == {"proxy"}
    kinds = {fault.kind for schedule in schedules for fault in schedule.faults}
    assert kinds == set(campaign.KINDS) - {"disk full", "clock jump"}


def test_every_kill_of_the_long_job_meets_a_party_that_has_not_ended():
    schedule = campaign.draw_kills(50, seed=0)
    kills = [fault for fault in schedule.faults if fault.kind == "kill"]
    assert (len(kills), {fault.party for fault in kills}) == (50, set(campaign.PARTIES))
    assert max(fault.step for fault in kills) < (schedule.epochs - 1) * campaign.STEPS_PER_EPOCH
    assert {fault.party for fault in schedule.faults if fault.kind == "lossy link"} == set(ProxyNetwork.parties)


def supervisor(log: str) -> campaign._ScheduleRun:
    """A supervisor whose parties have all written this log."""
    parties = SimpleNamespace(output_of=lambda name: log, running={})
    return campaign._ScheduleRun(None, campaign.draw_schedule(0, NOTHING), None, parties)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "log", "violation"),
    [
        (1, "Traceback", "crashed"),
        (-11, "", "crashed"),
        (2, "error: something is wrong", "unexplained"),
    ],
)
def test_a_crash_or_an_unexplained_refusal_is_a_violation(code, log, violation):
    with pytest.raises(ViolationError) as caught:
        supervisor(log)._judge_exit(CITY, code)
    assert caught.value.code == violation


def test_a_refusal_that_names_the_damage_is_repaired_and_its_peers_start_again():
    run, repaired = supervisor("error: the file checkpoint.json of 'rentals' is damaged"), []
    run._damage(RENTALS, "truncation", ("checkpoint.json",), lambda: repaired.append(True))
    run._judge_exit(RENTALS, 2)
    run._judge_exit(NOTARY, 2)
    run._judge_exit(CITY, 3)
    assert (run.outcome.refusals, repaired, run.outcome.restarts) == (["truncation"], [True], 3)
