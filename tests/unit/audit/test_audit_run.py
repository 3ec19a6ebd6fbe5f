"""The audit of a small job: what it reports, skips and advises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit_fixtures import FAST, read_party_files
from fedsim.config.job import read_job
from fedsim.config.stored_audit import Adversary, AttackKind, Victim
from fedsim.errors import InputError, SettingError
from fedsim_audit.audit_report import AuditReport, AuditSettings, PlannedAttack, run_attacks
from fedsim_audit.audit_run import audit_job


@pytest.fixture(scope="module")
def report(folder: Path) -> AuditReport:
    return audit_job(read_job(folder / "job.toml"), read_party_files(folder, "city", "rentals"), FAST)


def test_the_first_line_says_that_tau_holds_and_places_leak(report):
    assert report.headline.startswith("tau=0.05")
    assert "from all links together" in report.headline
    assert {row.found.adversary for row in report.rows} == {Adversary.PRIMARY, Adversary.SECONDARY}
    assert not report.broken
    assert any("collusion" in skipped.what for skipped in report.skipped)


@pytest.fixture(scope="module")
def generous(folder: Path) -> AuditReport:
    return audit_job(
        read_job(folder / "job.toml"), read_party_files(folder, "city", "rentals"), replace(FAST, limit=0.999)
    )


def test_a_generous_limit_does_not_hide_that_tau_is_not_enough(generous):
    assert "from all links together" in generous.headline


def test_an_audit_repeats_by_its_seed_whatever_its_limit(report, generous):
    assert [row.found for row in generous.rows] == [row.found for row in report.rows]


def test_one_party_alone_is_split_in_halves_and_the_report_says_so(folder):
    job = read_job(folder / "job.toml")
    report = audit_job(job, read_party_files(folder, "rentals"), FAST)
    assert any("a random half of it" in note for note in report.notes)
    assert not [row for row in report.rows if row.found.adversary is Adversary.SECONDARY]
    assert "labels" in [skipped.what for skipped in report.skipped]


def test_an_attack_beyond_the_memory_is_left_out_and_the_others_run(folder):
    report = audit_job(
        read_job(folder / "job.toml"), read_party_files(folder, "city", "rentals"), replace(FAST, memory=1000)
    )
    left = [skipped for skipped in report.skipped if "GiB of memory" in skipped.why]
    assert any("likelihood" in skipped.what for skipped in left)
    assert report.rows


def test_an_attack_that_cannot_run_leaves_its_reason():
    def fails():
        raise InputError("no record has a partner")

    rows, skipped = run_attacks(
        "a",
        [PlannedAttack(AttackKind.LIKELIHOOD, Adversary.PRIMARY, Victim.SECONDARY, "greedy", "all", fails)],
        memory=1,
    )
    assert not rows
    assert skipped[0].why == "no record has a partner"


@pytest.mark.parametrize("change", [{"limit": 1.0}, {"metres": 0.0}, {"most_records": 3}])
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(SettingError):
        AuditSettings(**change)


def test_a_coordinator_alone_has_nothing_to_audit(folder):
    with pytest.raises(SettingError) as caught:
        audit_job(read_job(folder / "job.toml"), read_party_files(folder, "notary"), FAST)
    assert caught.value.code == "no-table"
