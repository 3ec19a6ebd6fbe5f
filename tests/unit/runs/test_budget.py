"""What one primary may ask over all jobs: counted once, kept on disk, refused beyond the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from error_fixtures import raises
from fedsim.config.party_file import Policy
from fedsim.errors import FileError, PolicyError
from fedsim.protocol.messages import Party, Role
from fedsim.runs.budget import PrimaryBudget, Spending

RENTALS = Party(Role.SECONDARY, "rentals")


@pytest.fixture
def budget(tmp_path):
    limits = {"max_jobs": 2, "max_studies": 3, "max_total_epochs": 100, "max_records": 4}
    return PrimaryBudget(tmp_path / "city", RENTALS, "city", Policy.model_validate(limits))


def digest(row):
    return bytes([row]) * 16


def test_a_job_is_charged_once_however_often_it_resumes(budget):
    for _ in range(60):
        spent = budget.charge_job("a" * 64, 10)
    assert spent == budget.read() == Spending(jobs={"a" * 64: 10})


def test_jobs_beyond_the_limit_are_refused_through_restarts(budget):
    budget.charge_job("a" * 64, 1), budget.charge_job("b" * 64, 1)
    with raises(PolicyError, "over-budget", rule="max_jobs", limit=2):
        replace(budget).charge_job("c" * 64, 1)
    assert budget.charge_job("a" * 64, 1).epochs == 2


def test_epochs_of_jobs_and_studies_add_up(budget):
    budget.charge_job("a" * 64, 60)
    budget.charge_study(30)
    with raises(PolicyError, "over-budget", rule="max_total_epochs", limit=100):
        budget.charge_study(30)
    assert budget.read().studies == 1


def test_every_study_counts(budget):
    for _ in range(3):
        budget.charge_study(1)
    with raises(PolicyError, "over-budget", rule="max_studies", limit=3):
        budget.charge_study(1)


def test_a_record_counts_once_over_all_jobs(budget):
    budget.charge_records(map(digest, [1, 2, 3]))
    assert budget.charge_records(map(digest, [2, 3, 4])).records == 4
    with raises(PolicyError, "over-budget", rule="max_records", limit=4):
        budget.charge_records([digest(5)])
    assert budget.read().records == 4


def test_a_record_is_used_by_so_many_new_records_over_all_jobs_and_each_counts_once(budget):
    limited = replace(budget, policy=Policy.model_validate({"max_record_uses": 2}))
    for _ in range(3):
        spent = limited.charge_uses([(digest(1), digest(7)), (digest(2), digest(7)), (digest(1), digest(8))])
    assert spent.most_uses == limited.read().most_uses == 2
    assert limited.charge_uses([(digest(2), digest(9))]).most_uses == 2
    with raises(PolicyError, "over-budget", rule="max_record_uses", limit=2):
        limited.charge_uses([(digest(3), digest(9)), (digest(1), digest(9))])
    assert limited.charge_uses([(digest(3), digest(9))]).most_uses == 2  # nothing was charged by what was refused


def test_primaries_have_budgets_of_their_own_that_only_the_owner_reads(budget):
    budget.charge_study(1)
    assert replace(budget, folder=budget.folder.with_name("village")).read() == Spending()
    assert (budget.folder / "spent.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["", "{}", '{"format": "fedsim budget 1", "studies": -4}', '{"format": 2}', "[]"])
def test_a_damaged_budget_is_an_error_and_not_a_new_budget(budget, content):
    budget.charge_study(1)
    (budget.folder / "spent.json").write_text(content)
    with raises(FileError, "bad-budget"):
        budget.charge_study(1)
