"""The attacks on direct linking fail against every guard, and succeed without it."""

from __future__ import annotations

from io import StringIO

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from audit_fixtures import FAST
from fedsim.config.job import SecondaryTerms
from fedsim.config.stored_audit import FEATURE_INVERSION, Adversary, AttackKind
from fedsim.data.synthetic import city
from fedsim.linkage.direct import encrypted_table
from fedsim.linkage.direct.key_store import KeyStore
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES, NAMED
from fedsim_audit.audit_report import AuditReport, AuditRow, Verdict, run_attacks
from fedsim_audit.audit_run import audit_job
from fedsim_audit.cli.audit_output import findings_table
from fedsim_audit.direct_attacks import DirectLinkage, direct_attacks
from fedsim_lab.faults.local_job import CITY, RENTALS, LocalJob, create_local_job

SYLLABLES = ["bel", "gor", "mar", "tin", "sol", "vek", "dra", "pon", "lus", "fen", "rik", "tam"]
PLACE = {"columns": ["lat", "lon"], "kind": "place", "metres": 200}
NAME = {"columns": ["name"], "kind": "text", "samples": 16}
CODE = {"columns": ["name"], "kind": "code"}


def linkage(primary: pl.DataFrame, secondary: pl.DataFrame, tokens: dict, max_tokens: int = 1_000_000):
    terms = SecondaryTerms.model_validate({"k": 5, "tokens": [tokens]})
    return DirectLinkage(RENTALS, terms, primary, secondary, max_tokens, 0)


def attack(audited: DirectLinkage, kind: AttackKind) -> AuditRow:
    attacks = direct_attacks(audited, FAST, np.random.default_rng(0))
    rows, skipped = run_attacks(RENTALS, (one for one in attacks if one.kind is kind), FAST.memory)
    assert not skipped
    return rows[0]


def names(count: int, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame({"name": [" ".join("".join(rng.choice(SYLLABLES, 3)) for _ in "ab") for _ in range(count)]})


def town() -> tuple[pl.DataFrame, pl.DataFrame, dict]:
    found = city(np.random.default_rng(7), flats=300, rentals=200)
    return found.flats.select("lat", "lon"), found.rentals.select("lat", "lon"), PLACE


def road() -> tuple[pl.DataFrame, pl.DataFrame, dict]:
    """Rentals along a road, sorted, and a flat beside every eighth."""
    rentals = pl.DataFrame({"lat": np.linspace(50.0, 50.5, 200), "lon": np.full(200, 8.0)})
    return rentals[::8], rentals, PLACE | {"levels": 1, "reach": 1}


def no_limit(self, table, primary, tokens, limit, request=""):
    return tokens


def test_a_dictionary_of_names_reaches_as_many_rows_as_the_count_allows(monkeypatch):
    audited = linkage(names(20, 1), names(100, 2), NAME, max_tokens=20)
    few = attack(audited, AttackKind.DICTIONARY).found
    assert few.score.value <= 0.2
    assert few.figures["tokens evaluated"] == 20
    monkeypatch.setattr(KeyStore, "charge", no_limit)
    every = attack(audited, AttackKind.DICTIONARY).found
    assert every.score.value == 1.0
    assert every.figures[NAMED] > 0.9


def test_a_dictionary_is_compared_with_what_honest_records_open():
    codes = pl.DataFrame({"name": [f"DE{number}" for number in range(100)]})
    found = attack(linkage(codes[:60], codes, CODE, max_tokens=1), AttackKind.DICTIONARY).found
    assert found.blind == 0.6
    assert found.advantage == 0.0


def test_one_word_opens_no_row_unless_one_share_is_enough(monkeypatch):
    def row() -> AuditRow:
        return attack(linkage(names(20, 1), names(100, 2), NAME), AttackKind.ONE_WORD)

    assert (row().verdict, row().found.score.value) == (Verdict.KEPT, 0.0)
    monkeypatch.setattr(encrypted_table, "_share_place", lambda seed, share: 0)
    assert row().verdict is Verdict.BROKEN
    assert row().found.score.value > 0.8


def test_the_table_alone_shows_no_length_of_a_list_unless_lists_have_one_tag(monkeypatch):
    def row() -> AuditRow:
        return attack(linkage(*town()), AttackKind.TABLE_SIZES)

    assert row().verdict is Verdict.KEPT
    monkeypatch.setattr(encrypted_table, "_slots", lambda which, pseudonym: np.zeros(len(which), np.int64))
    assert row().verdict is Verdict.BROKEN
    assert row().leak > 0.5


def test_a_row_that_is_not_reached_shows_nothing_unless_rows_keep_their_order(monkeypatch):
    def row() -> AuditRow:
        return attack(linkage(*road()), AttackKind.UNREACHED)

    assert row().verdict is Verdict.KEPT
    monkeypatch.setattr(encrypted_table, "secret_permutation", lambda secret, purpose, n: np.arange(n))
    assert row().verdict is Verdict.BROKEN
    assert row().found.figures[MEDIAN_ERROR_METRES] < 1000


def test_a_reached_row_shows_its_place_as_its_finest_cell_does():
    found = attack(linkage(*town()), AttackKind.CELLS)
    assert found.verdict is Verdict.DISCLOSED
    assert found.found.figures[MEDIAN_ERROR_METRES] < PLACE["metres"] / 2
    assert found.found.score.value == 1.0


@pytest.mark.parametrize(
    ("tokens", "cells"),
    [
        (NAME, names(60, 2)["name"]),
        (CODE, pl.Series("name", [f"DE{at % 30}" for at in range(60)])),
        ({"columns": ["name"], "kind": "number", "width": 5}, pl.Series("name", np.arange(60.0))),
    ],
)
def test_joining_links_reads_the_identifiers_of_reached_rows(tokens, cells):
    table = pl.DataFrame({"name": cells})
    found = attack(linkage(table, table, tokens), AttackKind.JOINED_LINKS)
    assert found.verdict is Verdict.DISCLOSED
    assert found.found.score.value == 1.0


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    return create_local_job(tmp_path_factory.mktemp("direct") / "job", n_secondaries=2, direct=True)


@pytest.fixture(scope="module")
def report(job: LocalJob) -> AuditReport:
    return audit_job(job.job, [job.own(name) for name in job.names], FAST)


def test_a_job_without_a_coordinator_is_attacked_by_the_primary_alone(report):
    assert {row.found.adversary for row in report.rows} == {Adversary.PRIMARY}
    assert not report.broken
    assert FEATURE_INVERSION in {row.found.attack for row in report.rows}
    assert sum(skipped.who is Adversary.COORDINATOR for skipped in report.skipped) == 1
    assert not any("tau" in note for note in report.notes)


def test_its_findings_fit_into_80_columns_with_every_name_on_one_line(report):
    with StringIO() as printed:
        Console(width=80, file=printed).print(findings_table(report))
        lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(any(row.found.attack in line for line in lines) for row in report.rows)


@pytest.mark.parametrize("name", [CITY, RENTALS])
def test_one_party_audits_its_own_table_in_halves(job, name):
    found = audit_job(job.job, [job.own(name)], FAST)
    assert any("a random half of it" in note for note in found.notes)
    assert AttackKind.CELLS in {row.found.kind for row in found.rows}
