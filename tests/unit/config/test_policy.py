"""What a policy requires of a job, and that a refusal discloses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.config.job import FeatureTerms, Job, Protection, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.config.policy import policy_violations, record_count_violations
from fedsim.config.stored_audit import AUDIT_FORMAT, audit_command, audit_path, audit_shortfall

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


@pytest.mark.parametrize(
    ("name", "condition", "values"),
    [
        ("rentals", "max_tau = 0.001", ("0.001", "0.01")),
        ("rentals", "max_k = 20", ("20", "50")),
        ("rentals", 'parties = ["notary", "town", "schools"]', ("town", "city")),
        ("rentals", 'columns = ["lon"]', ("1",)),
        ("rentals", "max_epsilon_per_km = 10", ("10", "no blur")),
        ("rentals", "min_degree = 5", ("5", "1")),
        ("rentals", "min_feature_noise = 2", ("2", "0")),
        ("city", "sealed_labels = true", ("sealed",)),
        ("rentals", "audit = { limit = 0.3 }", ("0.3", "fedsim audit")),
        ("city", "max_tau = 0.5", ("0.5", "'schools'", "sigma 0.4")),
        ("city", 'parties = ["notary", "rentals"]', ("rentals", "schools")),
        ("notary", "max_k = 40", ("40", "'rentals'", "50")),
    ],
)
def test_a_violation_names_the_rule_the_party_and_both_values(tmp_path, name, condition, values):
    party_file = party_with(tmp_path, name, condition)
    [violation] = policy_violations(job_with(tmp_path), party_file)
    assert violation.rule == condition.partition(" ")[0]
    assert all(value in violation.message for value in (str(party_file.party), *values))


@pytest.mark.parametrize(
    "rule",
    [
        "max_tau = 0.01",
        "max_k = 50",
        'parties = ["town", "city", "notary", "schools"]',
        'columns = ["latitude", "lon"]',
        "min_candidates = 1000",
    ],
)
def test_a_condition_that_is_met_refuses_nothing(tmp_path, rule):
    assert policy_violations(job_with(tmp_path), party_with(tmp_path, "rentals", rule)) == []


def test_a_retention_counts_under_sealed_labels_only(tmp_path):
    party, sealed = party_with(tmp_path, "rentals", "max_retention_days = 30"), job_with(tmp_path).to_dict()
    assert policy_violations(job_with(tmp_path), party) == []
    for days, refused in ((None, ["max_retention_days"]), (31, ["max_retention_days"]), (30, [])):
        sealed["protection"] = {"gradients": "none", "retention_days": days}
        assert [violation.rule for violation in policy_violations(Job.from_dict(sealed), party)] == refused


LIST = "tau = 0.01"
GUARDED = f"""{LIST}
blur = {{ latitude = "lat", longitude = "lon", epsilon_per_km = 5 }}
min_degree = 5"""
CUT = """[protection]
features = { noise = 3 }

[network]"""


@pytest.mark.parametrize(
    "rule",
    [
        "max_epsilon_per_km = 5",
        "min_degree = 5",
        "min_feature_noise = 3",
    ],
)
def test_a_job_that_protects_as_much_as_required_is_accepted(tmp_path, rule):
    path = tmp_path / "job.toml"
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace(LIST, GUARDED).replace("[network]", CUT)
    path.write_text(text, encoding="utf-8")
    assert policy_violations(read_job(path), party_with(tmp_path, "rentals", rule)) == []


def test_weaker_protection_than_required_is_a_violation(tmp_path):
    rentals = party_with(tmp_path, "rentals", "min_feature_noise = 2\nmax_epsilon_per_km = 1")
    blur = 'blur = { latitude = "lat", longitude = "lon", epsilon_per_km = 5 }'
    job = job_with(tmp_path, LIST, f"{LIST}\n{blur}")
    job = job.model_copy(update={"protection": Protection(features=FeatureTerms(noise=1.0))})
    rules = [violation.rule for violation in policy_violations(job, rentals)]
    assert rules == ["max_epsilon_per_km", "min_feature_noise"]


def test_a_policy_that_asks_for_it_accepts_the_protected_preset(tmp_path):
    rentals = party_with(tmp_path, "rentals", "sealed_labels = true\nmax_epsilon_per_km = 5")
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8")
    path = tmp_path / "job.toml"
    path.write_text(f'{text}\n[protection]\npreset = "protected"\n', encoding="utf-8")
    assert not policy_violations(read_job(path), rentals)


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


def test_a_bound_on_tau_refuses_a_job_without_noise(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_tau = 0.1")
    [violation] = policy_violations(job_with(tmp_path, "tau = 0.01"), rentals)
    assert violation.rule == "max_tau"


def test_all_violations_are_reported_at_once(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_tau = 0.001\nmax_k = 20\nmin_candidates = 1000")
    assert len(policy_violations(job_with(tmp_path), rentals)) == 2
    assert len(policy_violations(job_with(tmp_path), rentals, n_records=999)) == 3


def test_a_refusal_shows_no_count_column_or_path(tmp_path):
    rentals = party_with(tmp_path, "rentals", 'min_candidates = 1000\ncolumns = ["lon"]')
    assert record_count_violations(rentals, 1000) == []
    violations = policy_violations(job_with(tmp_path), rentals, n_records=987)
    assert [violation.rule for violation in violations] == ["columns", "min_candidates"]
    text = " ".join(violation.message for violation in violations)
    assert not any(word in text for word in ("987", "latitude", ".csv", str(tmp_path)))
