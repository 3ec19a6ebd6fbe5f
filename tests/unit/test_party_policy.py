"""What a party demands of a job, and that its refusal gives nothing away."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.party.job import Job, read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.policy import record_refusals, refusals

GOLDEN = Path(__file__).parents[1] / "golden"


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
    assert refusals(job_with(tmp_path), party_with(tmp_path, name, rule)) == [told]


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
    assert refusals(job_with(tmp_path), party_with(tmp_path, "rentals", rule)) == []


def test_a_bound_on_tau_refuses_a_job_without_noise(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_tau = 0.1")
    silent = refusals(job_with(tmp_path, "tau = 0.01"), rentals)
    assert silent == ["secondary 'rentals' demands tau of at most 0.1, the job has no noise"]


def test_a_bound_on_epochs_refuses_a_job_that_does_not_say_how_many(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_epochs = 500")
    [told] = refusals(job_with(tmp_path, "epochs = 40"), rentals)
    assert "the job leaves their number to the preset; state it" in told


def test_every_broken_rule_is_told_at_once(tmp_path):
    rentals = party_with(tmp_path, "rentals", "max_tau = 0.001\nmax_k = 20\nmin_candidates = 1000")
    assert len(refusals(job_with(tmp_path), rentals)) == 2
    assert len(refusals(job_with(tmp_path), rentals, n_records=999)) == 3


def test_a_refusal_shows_no_count_column_or_path(tmp_path):
    rentals = party_with(tmp_path, "rentals", 'min_candidates = 1000\ncolumns = ["lon"]')
    assert record_refusals(rentals, 1000) == []
    told = " ".join(refusals(job_with(tmp_path), rentals, n_records=987))
    assert "at least 1,000 records" in told
    assert not any(word in told for word in ("987", "latitude", ".csv", str(tmp_path)))
