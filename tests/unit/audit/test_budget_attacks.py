"""What a primary learns within what policies allow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsim.config.job import Blur, FeatureTerms, Job, Protection, read_job
from fedsim.config.party_file import Policy, read_party_file
from fedsim.config.stored_audit import AttackKind
from fedsim_audit.attacks.attack_finding import JOBS_ALLOWED, SCORE_ONCE, AttackFinding
from fedsim_audit.audit_report import AuditRow, AuditSettings, Verdict, run_attacks
from fedsim_audit.audit_run import (
    PreparedAudit,
    audit_job,
    prepare_audit,
    read_audit_tables,
)
from fedsim_audit.budget_attacks import Allowance, BudgetAudit, probe_rows, probes_per_row
from job_fixtures import lay_out

FAST = AuditSettings(targets=50, epochs=1, most_records=300)
SEALED = Protection(gradients="none", features=FeatureTerms(noise=1.0))
BLUR = Blur(latitude="lat", longitude="lon", epsilon_per_km=5.0)


def prepared(folder: Path, protection: Protection = SEALED, **terms: object) -> PreparedAudit:
    job = read_job(folder / "job.toml")
    lists = {name: own.model_copy(update=terms) for name, own in job.secondaries.items()}
    job = job.model_copy(update={"protection": protection, "secondaries": lists})
    files = [read_party_file(folder / f"{name}.toml") for name in ("city", "rentals")]
    tables = read_audit_tables(job, files, 300, np.random.default_rng(0))
    return prepare_audit(job, tables, "rentals", FAST)[0]


def budget(
    audited: PreparedAudit,
    secondary: Policy | None = None,
    coordinator: Policy | None = None,
    settings: AuditSettings = FAST,
) -> BudgetAudit:
    return replace(audited, policies=(secondary or Policy(), coordinator or Policy())).budget(settings)


def rows_of(audit: BudgetAudit, *kinds: AttackKind) -> dict[str, AuditRow]:
    attacks = audit.attacks(np.random.default_rng(0))
    rows, _ = run_attacks("rentals", [attack for attack in attacks if attack.kind in kinds], FAST.memory)
    return {row.found.attack: row for row in rows}


@pytest.fixture(scope="module")
def sealed(folder: Path) -> PreparedAudit:
    return prepared(folder)


def features_over(audited: PreparedAudit, jobs: int) -> AttackFinding:
    found = rows_of(budget(audited, Policy(max_jobs=jobs)), AttackKind.REPEATED_FEATURES)
    return found[f"features over {jobs} jobs"].found


def test_noise_on_features_lasts_over_jobs(sealed):
    few, many = (features_over(sealed, jobs) for jobs in (2, 10))
    assert many.score.value == pytest.approx(few.score.value, abs=0.05)


def test_many_jobs_find_a_blurred_place_no_better_than_who_knows_where_it_moved(folder):
    audit = budget(prepared(folder, blur=BLUR), Policy(max_jobs=8))
    row = rows_of(audit, AttackKind.REPEATED_LINKS)["places over 8 jobs"]
    assert row.found.figures[JOBS_ALLOWED] == 8
    assert row.found.score.value <= row.guarantee.most
    assert row.verdict is not Verdict.BROKEN


def test_a_secondary_that_accepts_one_job_gives_no_second_draw(sealed):
    found = rows_of(budget(sealed, Policy(max_jobs=1)), AttackKind.REPEATED_FEATURES)["features over one job"].found
    assert found.score.value == found.figures[SCORE_ONCE]


def test_made_up_records_find_filters_and_stop_where_the_coordinator_refuses(folder):
    audited = prepared(folder, tau=None, sigma=1.0, k=2)
    generous, strict = (
        budget(audited, None, Policy(max_new_links=links), AuditSettings(most_records=300)) for links in (100, 1)
    )
    row = next(row for name, row in rows_of(generous, AttackKind.PROBING).items() if name.startswith("filters"))
    assert row.found.score.value > row.found.figures[SCORE_ONCE] + 0.1
    linkage, rng = strict.linkage, np.random.default_rng(0)
    rows = np.unique(linkage.order[linkage.view.partner])[:30]
    degree = np.bincount(linkage.order[linkage.view.partner].ravel(), minlength=len(linkage.order))
    limit = np.minimum(probes_per_row(strict, len(rows)), np.maximum(1, 2 * degree[rows]))
    assert len(probe_rows(strict, rows, rng).turn) == limit.sum()
    assert limit.sum() < len(probe_rows(generous, rows, rng).turn)


def test_a_blurred_place_is_not_found_better_by_made_up_records_than_by_itself(folder):
    rows = rows_of(budget(prepared(folder, blur=BLUR)), AttackKind.PROBING)
    assert {row.verdict for row in rows.values()} == {Verdict.KEPT}


def test_the_smaller_limit_of_two_policies_counts(folder):
    job: Job = read_job(folder / "job.toml")
    secondary = Policy(max_jobs=50, max_total_epochs=10, max_new_records=500, max_record_uses=7)
    allowed = Allowance.of(job, secondary, Policy(max_new_records=400, max_new_links=3))
    assert allowed == Allowance(jobs=10 // 2, new_records=400, new_links=3, record_uses=7)


def test_an_audit_reads_the_limits_of_the_parties_whose_files_are_here(folder, tmp_path):
    lay_out(tmp_path, {"rentals": {"[policy]": "[policy]\nmax_jobs = 4"}})
    job = read_job(tmp_path / "job.toml")
    files = [read_party_file(tmp_path / f"{name}.toml") for name in ("city", "rentals")]
    report = audit_job(job, files, FAST)
    allowed = {row.found.figures[JOBS_ALLOWED] for row in report.rows if row.found.kind is AttackKind.REPEATED_LINKS}
    assert allowed == {4.0}
    assert any("notary" in note for note in report.notes)
