"""What a policy requires of a job, and that a refusal discloses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.config.job import FeatureTerms, Job, Protection, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.config.policy import policy_violations, record_count_violations

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
        ("rentals", "min_feature_noise = 2", ("2", "0")),
        ("rentals", "min_m = 10", ("10", "single records")),
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
blur = {{ latitude = "lat", longitude = "lon", epsilon_per_km = 5 }}"""
CUT = """[protection]
features = { noise = 3 }

[network]"""


@pytest.mark.parametrize(
    "rule",
    [
        "max_epsilon_per_km = 5",
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
