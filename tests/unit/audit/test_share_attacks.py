"""The attacks on averages fail against every guard, and succeed without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from audit_fixtures import FAST
from fedsim.config.stored_audit import FEATURE_INVERSION, AttackKind
from fedsim.linkage.direct.groups import RecordedGroups
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.pipeline.party_table import PartyData
from fedsim.pipeline.release import release_table
from fedsim_audit.attacks.attack_finding import MEDIAN_ERROR_METRES
from fedsim_audit.audit_report import AuditRow, Verdict, run_attacks
from fedsim_audit.audit_run import audit_job
from fedsim_audit.share_attacks import MAX_BEYOND, SharedTable, attribute_attack, membership_attack, share_attacks
from fedsim_lab.faults.local_job import RENTALS, LocalJob, create_local_job, small_tables

LEVELS = {"averages": {"share": "averages", "m": 5}, "rows": {"share": "rows", "m": 5}}


@pytest.fixture(scope="module", params=LEVELS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalJob:
    folder = tmp_path_factory.mktemp(request.param) / "job"
    tables = small_tables(flats=150, rentals=600)
    return create_local_job(folder, direct=True, tables=tables, secondaries={RENTALS: LEVELS[request.param]})


@pytest.fixture(scope="module")
def table(place: LocalJob) -> PartyData:
    return PartyData.read(place.job, place.own(RENTALS))


def single(table: PartyData) -> PartyData:
    """The same table in a job that shows every row by itself."""
    terms = table.job.secondaries[RENTALS].model_copy(update={"m": 1, "share": "rows"})
    return replace(table, job=table.job.model_copy(update={"secondaries": {RENTALS: terms}}))


def attack(table: PartyData, kind: AttackKind) -> AuditRow:
    rng = np.random.default_rng(0)
    rows, skipped = run_attacks(
        RENTALS, (one for one in share_attacks(table, RENTALS, rng) if one.kind is kind), FAST.memory
    )
    assert not skipped
    return rows[0]


def test_averages_show_nothing_of_a_row_beyond_its_group_unless_rows_leave_by_themselves(table):
    row = attack(table, AttackKind.ATTRIBUTE)
    assert row.verdict is Verdict.KEPT
    assert row.found.score.value <= MAX_BEYOND
    shared = SharedTable(table, RENTALS)
    shared.__dict__["released"] = release_table(single(table), RENTALS, shared.preparation)
    assert attribute_attack(shared, np.random.default_rng(0)).score.value > 0.95


def test_an_average_of_few_present_values_would_show_them(table, monkeypatch):
    sparse = table.frame.with_columns(rent=pl.when(pl.int_range(pl.len()) % 10 == 0).then("rent"))
    shared = SharedTable(replace(table, frame=sparse), RENTALS)
    rent = shared.preparation.names.index("rent")
    alone = np.flatnonzero((shared.rows[:, rent + 1] == 0) & (shared.released.place >= 0))
    shown = shared.released.features.numbers[shared.released.place[alone], rent]

    def exact(shown: np.ndarray) -> float:
        return float(np.isclose(shown, shared.rows[alone, rent], atol=1e-4).mean())

    assert exact(shown) < 0.1
    monkeypatch.setattr("fedsim.pipeline.release.average_features", means_without_a_limit)
    unguarded = release_table(shared.table, RENTALS, shared.preparation)
    assert exact(unguarded.features.numbers[unguarded.place[alone], rent]) > 0.1


def means_without_a_limit(features, gaps, group, m):
    from fedsim.linkage.direct.groups import average_features  # noqa: PLC0415

    return average_features(features, gaps, group, 1)


def test_membership_is_disclosed_and_weaker_than_with_rows_by_themselves(table):
    row = attack(table, AttackKind.MEMBERSHIP)
    assert row.verdict is Verdict.DISCLOSED
    assert row.found.score.value < (0.75 if table.job.secondaries[RENTALS].share == "averages" else 0.98)
    assert membership_attack(SharedTable(single(table), RENTALS), np.random.default_rng(0)).score.value > 0.99


def test_rows_that_come_and_go_are_found_only_if_groups_are_drawn_anew(table, monkeypatch):
    assert attack(table, AttackKind.DIFFERENCES).verdict is Verdict.KEPT
    monkeypatch.setattr(KeyStore, "update_groups", lambda self, table, terms, update: update(RecordedGroups.empty())[0])
    found = attack(table, AttackKind.DIFFERENCES)
    assert found.verdict is Verdict.BROKEN
    assert found.found.score.value > 0.3


def test_the_audit_of_a_job_attacks_its_averages(place):
    report = audit_job(place.job, [place.own(name) for name in place.names], FAST)
    kinds = {row.found.kind for row in report.rows}
    assert {AttackKind.ATTRIBUTE, AttackKind.MEMBERSHIP, AttackKind.DIFFERENCES, AttackKind.TABLE_SIZES} <= kinds
    assert not report.broken
    assert FEATURE_INVERSION in {row.found.attack for row in report.rows}
    (located,) = (row.found for row in report.rows if row.found.kind is AttackKind.CELLS)
    lists_rows = place.job.secondaries[RENTALS].share == "rows"
    assert (located.figures[MEDIAN_ERROR_METRES] < 100) is lists_rows
