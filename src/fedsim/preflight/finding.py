"""Findings of preflight checks, and the objects that checks look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

import polars as pl

from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile
from fedsim.errors import FedSimError
from fedsim.preflight.estimate import CostEstimate

# What a check found: how it went, in words without data, and the way out


CheckSubjectT = TypeVar("CheckSubjectT")


class CheckLevel(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILS = "fails"


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check; ``telling`` marks one that is worth reading although all is well."""

    check: str
    level: CheckLevel
    result: str
    fix: str = ""
    telling: bool = False


@dataclass(frozen=True)
class CheckSection:
    """The findings about one thing: the job, the machine, a party."""

    title: str
    findings: tuple[CheckFinding, ...]


def ok(check: str, result: str) -> CheckFinding:
    """All is well, and nobody need read it."""
    return CheckFinding(check, CheckLevel.OK, result)


def info(check: str, result: str) -> CheckFinding:
    """All is well, and here is something to know."""
    return CheckFinding(check, CheckLevel.OK, result, telling=True)


def warning(check: str, result: str, fix: str) -> CheckFinding:
    """The job would run, perhaps not as meant."""
    return CheckFinding(check, CheckLevel.WARNING, result, fix)


def failure(check: str, result: str, fix: str) -> CheckFinding:
    """The job would not run."""
    return CheckFinding(check, CheckLevel.FAILS, result, fix)


def failure_from_message(check: str, sentence: str, otherwise: str = "") -> CheckFinding:
    """A failure from an error's sentence, which ends in the way out; ``otherwise`` is for those that name none.

    >>> failure_from_message("data", "flats.csv does not exist; check the path")
    CheckFinding(check='data', level=<CheckLevel.FAILS: 'fails'>, result='flats.csv does not exist', fix='check the path', \
telling=False)
    """
    result, _, fix = sentence.rpartition("; ")
    return failure(check, result or sentence, fix if result else otherwise)


def run_checks(
    checks: Iterable[tuple[str, Callable[[CheckSubjectT], Iterator[CheckFinding]]]], subject: CheckSubjectT
) -> Iterator[CheckFinding]:
    """What all checks find; one that cannot go on says why and leaves the others alone."""
    for name, check in checks:
        try:
            yield from check(subject)
        except FedSimError as error:
            yield failure_from_message(name, str(error))


def unique_findings(findings: Iterable[CheckFinding]) -> tuple[CheckFinding, ...]:
    """Without repetitions: one fault may be met by several checks, and is told by the first."""
    first: dict[object, CheckFinding] = {}
    for finding in findings:
        first.setdefault(finding if finding.level is CheckLevel.OK else (finding.result, finding.fix), finding)
    return tuple(first.values())


# What the checks of a party look at


@dataclass(frozen=True, eq=False)
class CheckedParty:
    """A party by itself, here and now."""

    own: PartyFile
    now: datetime


@dataclass(frozen=True, eq=False, repr=False)
class CheckedTable:
    """A party's records; ``header`` is None where the file could be read only in part."""

    frame: pl.DataFrame
    header: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class PartyInJob:
    """A party in a job; what could not be read is None, and so are columns that are not all there."""

    job: Job
    own: PartyFile
    table: CheckedTable | None
    columns: PartyColumns | None
    estimate: CostEstimate
