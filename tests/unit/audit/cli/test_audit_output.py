"""Audits of jobs that are linked by names, learn classes, or have two secondaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.config.job import read_job
from fedsim.config.party_file import read_party_file
from fedsim.config.stored_audit import Adversary
from fedsim.data.synthetic import city
from fedsim.linkage.encoding import Key
from fedsim_audit.audit_report import AuditReport, AuditSettings
from fedsim_audit.audit_run import audit_job
from fedsim_audit.cli.audit_output import findings_table

FAST = AuditSettings(targets=30, epochs=1, most_records=200)
HEAD = """
name = "firms"
coordinator = { name = "notary", address = "127.0.0.1:50051" }
primary = { name = "bank", address = "127.0.0.1:50052" }
task = { kind = "classification" }
training = { epochs = 2, batch_size = 64, members = 1 }
"""
BY_NAME = """
[secondaries.register]
k = 5
tau = 0.05

[secondaries.register.schema]
version = 1
fields = [{ column = "name", encoding = { kind = "string" } }]
"""
BY_PLACE = """
[secondaries.maps]
k = 5
metric = "dice"
sigma = 0.4

[secondaries.maps.schema]
version = 1
fields = [
  { column = "lat", encoding = { kind = "numeric", low = 0.9, high = 1.8, threshold = 0.05 } },
  { column = "lon", encoding = { kind = "numeric", low = 103.3, high = 104.4, threshold = 0.05 } },
]
"""
PARTY = """
name = "{name}"
role = "{role}"
folder = "{name}-run"
data = {{ file = "{name}.csv" }}
linkage = {{ key = "linkage.key" }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Firms with names and places, classed as large or small; a register of names; a map of places."""
    place, rng = tmp_path_factory.mktemp("firms"), np.random.default_rng(0)
    town = city(rng, flats=200, rentals=150)
    syllables = ["bau", "tec", "nord", "gas", "metal", "agro", "lux", "ver"]
    names = [" ".join(rng.choice(syllables, 3)) for _ in range(200)]
    size = town.flats["price"].to_numpy() + rng.normal(size=200)
    bank = town.flats.select("lat", "lon", "area").with_columns(name=pl.Series(names), large=size > np.median(size))
    bank.write_csv(place / "bank.csv")
    pl.DataFrame({"name": names[:150], "turnover": size[:150]}).write_csv(place / "register.csv")
    town.rentals.select("lat", "lon", "rent").write_csv(place / "maps.csv")
    (place / "bank.toml").write_text(PARTY.format(name="bank", role="primary") + 'label = { column = "large" }\n')
    for name in ("register", "maps"):
        (place / f"{name}.toml").write_text(PARTY.format(name=name, role="secondary"))
    Key(bytes(32)).write(place / "linkage.key")
    return place


def audited(folder: Path, lists: str, *parties: str) -> AuditReport:
    (folder / "job.toml").write_text(HEAD + lists)
    files = [read_party_file(folder / f"{name}.toml") for name in parties]
    return audit_job(read_job(folder / "job.toml"), files, FAST)


def attacks(report: AuditReport, about: str, who: Adversary) -> set[str]:
    return {row.found.attack for row in report.rows if row.about == about and row.found.adversary is who}


def test_classes_and_a_single_feature_are_attacked_at_the_cut(folder):
    report = audited(folder, BY_NAME, "bank", "register")
    assert "feature inversion" in attacks(report, "register", Adversary.PRIMARY)
    assert {"gradient norm", "gradient direction"} <= attacks(report, "register", Adversary.SECONDARY)


def test_two_secondaries_are_attacked_one_after_the_other_and_told_apart(folder):
    report = audited(folder, BY_NAME + BY_PLACE, "bank", "register", "maps")
    assert "link graph" in attacks(report, "maps", Adversary.PRIMARY)
    assert "link graph" not in attacks(report, "register", Adversary.PRIMARY)
    printed = [str(cell) for cell in findings_table(report).columns[0].cells]
    assert "by the primary, links with register" in printed
    assert "by the primary, links with maps" in printed
    assert report.tables == ("primary 'bank'", "secondary 'register'", "secondary 'maps'")


@pytest.mark.parametrize("protection", ["", '[protection]\ngradients = "none"\n'])
def test_a_secondary_alone_learns_what_is_revealed_of_its_features(folder, protection):
    report = audited(folder, f"{protection}{BY_NAME}", "register")
    assert "feature inversion" in attacks(report, "register", Adversary.PRIMARY)
    assert not attacks(report, "register", Adversary.SECONDARY)
    assert any("made-up label" in note for note in report.notes) == (protection == "")


def test_two_secondaries_without_a_primary_leave_one_out_and_say_so(folder):
    report = audited(folder, BY_NAME + BY_PLACE, "register", "maps")
    assert {row.about for row in report.rows} == {"register"}
    assert any("'maps' was left out" in note for note in report.notes)
