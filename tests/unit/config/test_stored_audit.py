"""A stored audit counts for exactly the job and table that it attacked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.config.policy import audit_shortfall, policy_violations
from fedsim.config.stored_audit import AUDIT_FORMAT, audit_command, audit_path

GOLDEN = Path(__file__).parents[2] / "golden"


def job_with(folder: Path, old: str = "", new: str = "") -> Job:
    path = folder / "job.toml"
    path.write_text((GOLDEN / "job.toml").read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return read_job(path)


def party_with(folder: Path, name: str, rule: str) -> PartyFile:
    """A party with this rule as its whole policy."""
    text = (GOLDEN / f"job_{name}.toml").read_text(encoding="utf-8").partition("[policy]")[0]
    path = folder / f"{name}.toml"
    path.write_text(f"{text}\n[policy]\n{rule}\n", encoding="utf-8")
    return read_party_file(path)


FINDING = {
    "about": "rentals",
    "adversary": "primary",
    "victim": "secondary",
    "attack": "feature inversion",
    "verdict": "kept",
    "leak": 0.2,
}


def report_on_file(job: Job, own: PartyFile, **changes: object) -> None:
    """An audit of a job as `fedsim audit` writes it, with one attack on this party."""
    facts = {"format": AUDIT_FORMAT, "hash": job.hash, "tables": [str(own.party)], "settings": {"quick": False}}
    report = {**facts, "findings": [FINDING], **changes}
    path = audit_path(job, own)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ""),
        ({"hash": "0" * 64}, "missing"),
        ({"tables": ["primary 'city'"]}, "missing"),
        ({"findings": []}, "missing"),
        ({"findings": [{"leak": "0.2"}]}, "missing"),
        ({"findings": [FINDING | {"leak": 0.31}]}, "above-limit"),
        ({"findings": [FINDING | {"leak": float("nan")}]}, "above-limit"),
        ({"findings": [FINDING | {"verdict": "broken"}]}, "broken-guarantee"),
        ({"findings": [FINDING, FINDING | {"about": "schools", "leak": 0.9}]}, ""),
        ({"findings": [FINDING | {"victim": "primary"}]}, "no-attack"),
        ({"findings": [FINDING | {"victim": None}]}, "missing"),
        ({"settings": {"quick": True}}, "quick"),
        ({"settings": None}, "quick"),
        ({"settings": {}}, "quick"),
        ({"findings": [FINDING | {"attack": "likelihood"}]}, "no-feature-attack"),
    ],
)
def test_an_audit_must_be_of_this_job_on_the_own_table_and_within_the_limit(tmp_path, changes, code):
    job, rentals = job_with(tmp_path), party_with(tmp_path, "rentals", "audit = { limit = 0.3 }")
    report_on_file(job, rentals, **changes)
    found = audit_shortfall(job, rentals)
    assert (found.code if found else "") == code
    assert [violation.rule for violation in policy_violations(job, rentals)] == (["audit"] if code else [])


def test_an_attack_of_the_coordinator_on_the_primary_counts_for_the_primary_alone(tmp_path):
    job, names = job_with(tmp_path), FINDING | {"adversary": "coordinator", "victim": "primary", "leak": 0.4}
    for name, code in (("city", "above-limit"), ("rentals", "")):
        own = party_with(tmp_path, name, "audit = { limit = 0.3 }")
        report_on_file(job, own, findings=[FINDING, names])
        found = audit_shortfall(job, own)
        assert (found.code if found else "") == code


def test_the_command_of_an_audit_names_files_that_the_party_has(tmp_path):
    job, rentals = job_with(tmp_path), party_with(tmp_path, "rentals", "")
    assert audit_command(job, rentals).split()[2:] == [str(job.path), str(rentals.path)]
    city = party_with(tmp_path, "city", "")
    assert audit_command(job, rentals).split()[2:] == [str(job.path), str(city.path), str(rentals.path)]


def test_an_audit_of_the_job_before_it_changed_is_not_sufficient(tmp_path):
    job, rentals = job_with(tmp_path), party_with(tmp_path, "rentals", "audit = { limit = 0.3 }")
    report_on_file(job, rentals)
    assert audit_shortfall(job_with(tmp_path, "k = 50", "k = 49"), rentals).code == "missing"


def test_a_missing_audit_shows_others_no_path(tmp_path):
    [violation] = policy_violations(job_with(tmp_path), party_with(tmp_path, "rentals", "audit = { limit = 0.3 }"))
    assert str(tmp_path) not in violation.message
