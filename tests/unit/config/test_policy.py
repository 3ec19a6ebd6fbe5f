"""What a party demands of a job, and that its refusal gives nothing away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim.config.job import CutTerms, Job, Protection, read_job
from fedsim.config.party_file import PartyFile, read_party_file
from fedsim.config.policy import AUDIT_FORMAT, audit_path, audit_shortfall, policy_violations, record_count_violations

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
    ("name", "rule", "told"),
    [
        ("rentals", "max_tau = 0.001", "secondary 'rentals' demands tau of at most 0.001, the job has 0.01"),
        ("rentals", "min_k = 60", "secondary 'rentals' demands k of at least 60, the job has 50"),
        ("rentals", "max_k = 20", "secondary 'rentals' demands k of at most 20, the job has 50"),
        (
            "rentals",
            'hardening = ["bit-flip"]',
            "secondary 'rentals' demands filters hardened by bit-flip, the job has balance",
        ),
        ("rentals", 'methods = ["avgsim"]', "secondary 'rentals' allows the methods avgsim, the job has fedsim"),
        ("rentals", 'wire = ["float16"]', "secondary 'rentals' allows float16 on the wire, the job has float32"),
        ("rentals", "max_epochs = 30", "secondary 'rentals' allows at most 30 epochs, the job has 40"),
        ("rentals", 'primary = ["town"]', "secondary 'rentals' works with the primary town only, the job has city"),
        ("rentals", "coordinator = []", "secondary 'rentals' works with the coordinator none only, the job has notary"),
        (
            "rentals",
            'columns = ["lon"]',
            "secondary 'rentals' would use 1 of its columns against its own policy; its owner must change one of "
            "the two",
        ),
        (
            "rentals",
            "max_epsilon_per_km = 10",
            "secondary 'rentals' demands places blurred with epsilon of at most 10 per km, the job has none",
        ),
        ("rentals", "min_degree = 5", "secondary 'rentals' demands min_degree of at least 5, the job has 1"),
        ("rentals", "min_dummies = 0.2", "secondary 'rentals' demands dummies of at least 0.2, the job has 0"),
        (
            "rentals",
            "hide_rows = true",
            "secondary 'rentals' demands hidden rows, the job shows the primary which rows repeat",
        ),
        (
            "rentals",
            "min_feature_noise = 2",
            "secondary 'rentals' demands noise of at least 2 deviations on features, the job has 0",
        ),
        (
            "rentals",
            "activations = { min_noise = 0.5 }",
            "secondary 'rentals' demands noise of at least 0.5 on activations, the job has none",
        ),
        (
            "city",
            "gradients = { min_noise = 2 }",
            "primary 'city' demands noise of at least 2 on gradients, the job has none",
        ),
        (
            "rentals",
            "audit = { limit = 0.3 }",
            "secondary 'rentals' demands an audit of this very job in which no attack on it gains more than 0.3, and "
            "has run none; its owner runs `fedsim audit`",
        ),
        (
            "city",
            "max_tau = 0.5",
            "primary 'city' demands tau of at most 0.5 for secondary 'schools', the job has sigma 0.4 and promises "
            "no tau",
        ),
        (
            "city",
            'secondaries = ["rentals"]',
            "primary 'city' works with the secondary rentals only, the job has schools",
        ),
        (
            "notary",
            "max_k = 40",
            "coordinator 'notary' demands k of at most 40 for secondary 'rentals', the job has 50",
        ),
    ],
)
def test_a_broken_rule_is_told_in_full(tmp_path, name, rule, told):
    assert policy_violations(job_with(tmp_path), party_with(tmp_path, name, rule)) == [told]


@pytest.mark.parametrize(
    "rule",
    [
        "max_tau = 0.01",
        "min_k = 50\nmax_k = 50",
        'hardening = ["balance"]',
        'methods = ["avgsim", "fedsim"]',
        "max_epochs = 40",
        'primary = ["town", "city"]\nsecondaries = ["schools"]',
        'columns = ["latitude", "lon"]',
        "min_candidates = 1000",
    ],
)
def test_a_rule_that_is_kept_refuses_nothing(tmp_path, rule):
    assert policy_violations(job_with(tmp_path), party_with(tmp_path, "rentals", rule)) == []


LIST = "tau = 0.01"
GUARDED = f"""{LIST}
blur = {{ latitude = "lat", longitude = "lon", epsilon_per_km = 5 }}
min_degree = 5
dummies = 0.2
hide_rows = true"""
CUT = """[protection]
features = { noise = 3 }
activations = { clip = 1.0, noise = 0.5 }
gradients = { clip = 0.1, noise = 2 }

[network]"""


@pytest.mark.parametrize(
    "rule",
    [
        "max_epsilon_per_km = 5",
        "min_degree = 5\nmin_dummies = 0.2\nhide_rows = true",
        "activations = { min_noise = 0.5, max_clip = 1.0 }\ngradients = { min_noise = 2 }",
        "min_feature_noise = 3",
    ],
)
def test_a_job_that_protects_as_much_as_is_demanded_is_taken(tmp_path, rule):
    path = tmp_path / "job.toml"
    text = (GOLDEN / "job.toml").read_text(encoding="utf-8").replace(LIST, GUARDED).replace("[network]", CUT)
    path.write_text(text, encoding="utf-8")
    assert policy_violations(read_job(path), party_with(tmp_path, "rentals", rule)) == []


def test_weaker_protection_than_demanded_is_told_by_its_figures(tmp_path):
    rentals = party_with(tmp_path, "rentals", "activations = { min_noise = 2, max_clip = 0.5 }\nmax_epsilon_per_km = 1")
    blur = 'blur = { latitude = "lat", longitude = "lon", epsilon_per_km = 5 }'
    job = job_with(tmp_path, LIST, f"{LIST}\n{blur}")
    job = job.model_copy(update={"protection": Protection(activations=CutTerms(clip=1.0, noise=0.5))})
    assert [told.partition("demands ")[2] for told in policy_violations(job, rentals)] == [
        "places blurred with epsilon of at most 1 per km, the job has epsilon 5 per km",
        "noise of at least 2 on activations, the job has 0.5",
        "activations clipped at 0.5 or less, the job has 1",
    ]


FINDING = {"about": "rentals", "adversary": "primary", "attack": "feature inversion", "verdict": "kept", "leak": 0.2}
QUICK = "has run a quick one alone, which tries too little to rely on (leave out --quick)"
WITHOUT_LABELS = (
    "has run one without any attack on its features, for want of labels to train with (name the primary's file too, or "
    "one of that name with a table of your own and any label)"
)


def report_on_file(job: Job, own: PartyFile, **changes: object) -> None:
    """An audit of a job as `fedsim audit` writes it, with one attack on this party."""
    told = {"format": AUDIT_FORMAT, "hash": job.hash, "tables": [str(own.party)], "settings": {"quick": False}}
    report = {**told, "findings": [FINDING], **changes}
    path = audit_path(job, own)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({}, ""),
        ({"hash": "0" * 64}, "has run none"),
        ({"tables": ["primary 'city'"]}, "has run none"),
        ({"findings": []}, "has run none"),
        ({"findings": [{"leak": "0.2"}]}, "has run none"),
        ({"findings": [FINDING | {"leak": 0.31}]}, "found 1 attack above it"),
        ({"findings": [FINDING | {"leak": float("nan")}]}, "found 1 attack above it"),
        ({"findings": [FINDING | {"verdict": "broken"}]}, "found a guarantee broken"),
        ({"findings": [FINDING, FINDING | {"about": "schools", "leak": 0.9}]}, ""),
        ({"findings": [FINDING | {"adversary": "secondary"}]}, "has run one that attacks others alone"),
        ({"settings": {"quick": True}}, QUICK),
        ({"settings": None}, QUICK),
        ({"settings": {}}, QUICK),
        ({"findings": [FINDING | {"attack": "likelihood"}]}, WITHOUT_LABELS),
    ],
)
def test_only_an_audit_of_this_job_on_the_own_table_and_under_the_limit_will_do(tmp_path, changes, lacking):
    job, rentals = job_with(tmp_path), party_with(tmp_path, "rentals", "audit = { limit = 0.3 }")
    report_on_file(job, rentals, **changes)
    assert audit_shortfall(job, rentals) == lacking
    assert bool(policy_violations(job, rentals)) == bool(lacking)


def test_an_audit_of_the_job_before_it_changed_will_not_do(tmp_path):
    job, rentals = job_with(tmp_path), party_with(tmp_path, "rentals", "audit = { limit = 0.3 }")
    report_on_file(job, rentals)
    assert audit_shortfall(job_with(tmp_path, "k = 50", "k = 49"), rentals) == "has run none"


def test_a_demanded_audit_that_is_missing_shows_others_no_path(tmp_path):
    told = " ".join(policy_violations(job_with(tmp_path), party_with(tmp_path, "rentals", "audit = { limit = 0.3 }")))
    assert "fedsim audit" in told
    assert str(tmp_path) not in told


def test_a_bound_on_tau_refuses_a_job_without_noise(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_tau = 0.1")
    silent = policy_violations(job_with(tmp_path, "tau = 0.01"), rentals)
    assert silent == ["secondary 'rentals' demands tau of at most 0.1, the job has no noise"]


def test_a_bound_on_epochs_refuses_a_job_that_does_not_say_how_many(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_epochs = 500")
    [told] = policy_violations(job_with(tmp_path, "epochs = 40"), rentals)
    assert "the job leaves their number to the preset; state it" in told


def test_every_broken_rule_is_told_at_once(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_tau = 0.001\nmax_k = 20\nmin_candidates = 1000")
    assert len(policy_violations(job_with(tmp_path), rentals)) == 2
    assert len(policy_violations(job_with(tmp_path), rentals, n_records=999)) == 3


def test_a_refusal_shows_no_count_column_or_path(tmp_path):
    rentals = party_with(tmp_path, "rentals", 'min_candidates = 1000\ncolumns = ["lon"]')
    assert record_count_violations(rentals, 1000) == []
    told = " ".join(policy_violations(job_with(tmp_path), rentals, n_records=987))
    assert "at least 1,000 records" in told
    assert not any(word in told for word in ("987", "latitude", ".csv", str(tmp_path)))
