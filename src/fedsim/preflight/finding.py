"""Findings of preflight checks, the objects that checks examine, and helpers that locate settings and files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import polars as pl

from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile
from fedsim.config.toml_file import find_setting_lines, read_text_file
from fedsim.errors import FedSimError, nearest_word
from fedsim.preflight.estimate import CostEstimate

SettingPath = tuple[str, ...]  # such as ("label", "column")
CheckSubjectT = TypeVar("CheckSubjectT")


class CheckLevel(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILS = "fails"


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check and how to fix it, without any data.

    ``telling`` marks results that are worth reading although the check passed; ``code`` names the kind of problem.
    """

    check: str
    level: CheckLevel
    result: str
    fix: str = ""
    telling: bool = False
    code: str = ""


@dataclass(frozen=True)
class CheckSection:
    """The findings about one subject: the job, the machine or a party."""

    title: str
    findings: tuple[CheckFinding, ...]


def ok(check: str, result: str) -> CheckFinding:
    """Report a check that passed; shown in verbose mode only."""
    return CheckFinding(check, CheckLevel.OK, result)


def info(check: str, result: str) -> CheckFinding:
    """Report a check that passed with a result that is worth reading."""
    return CheckFinding(check, CheckLevel.OK, result, telling=True)


def warning(check: str, result: str, fix: str, *, code: str = "") -> CheckFinding:
    """Report that the job can run, but perhaps not as intended."""
    return CheckFinding(check, CheckLevel.WARNING, result, fix, code=code)


def failure(check: str, result: str, fix: str, *, code: str = "") -> CheckFinding:
    """Report that the job cannot run."""
    return CheckFinding(check, CheckLevel.FAILS, result, fix, code=code)


def message_finding(check: str, message: str, default_fix: str = "", *, code: str = "") -> CheckFinding:
    """Report a failure by an error message, whose part after the last semicolon is the fix.

    >>> finding = message_finding("data", "flats.csv does not exist; check the path")
    >>> finding.result, finding.fix
    ('flats.csv does not exist', 'check the path')
    """
    result, _, fix = message.rpartition("; ")
    return failure(check, result or message, fix if result else default_fix, code=code)


def error_finding(check: str, error: FedSimError, default_fix: str = "") -> CheckFinding:
    """Report a failure by the error that a check raised."""
    return message_finding(check, str(error), default_fix, code=error.code)


def run_checks(
    checks: Iterable[tuple[str, Callable[[CheckSubjectT], Iterator[CheckFinding]]]], subject: CheckSubjectT
) -> Iterator[CheckFinding]:
    """Run all checks; an error ends one check and is reported as its failure."""
    for name, check in checks:
        try:
            yield from check(subject)
        except FedSimError as error:
            yield error_finding(name, error)


def unique_findings(findings: Iterable[CheckFinding]) -> tuple[CheckFinding, ...]:
    """Drop repetitions: a problem that several checks find is reported by the first."""
    first: dict[object, CheckFinding] = {}
    for finding in findings:
        first.setdefault(finding if finding.level is CheckLevel.OK else (finding.result, finding.fix), finding)
    return tuple(first.values())


# What checks examine


@dataclass(frozen=True, eq=False)
class CheckedParty:
    """A party by itself, at a point in time."""

    own: PartyFile
    now: datetime


@dataclass(frozen=True, eq=False, repr=False)
class CheckedTable:
    """A party's records; ``header`` is None if only some columns could be read."""

    frame: pl.DataFrame
    header: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class PartyInJob:
    """A party in a job; ``table`` is None if it could not be read, ``columns`` if some are missing."""

    job: Job
    own: PartyFile
    table: CheckedTable | None
    columns: PartyColumns | None
    estimate: CostEstimate


# Locating settings and files


def setting_location(own: PartyFile, setting: SettingPath) -> str:
    """Return file, line and setting as the start of a message; empty if the file does not contain the setting."""
    try:
        line = find_setting_lines(read_text_file(own.path)).get(setting)
    except FedSimError:  # the file was removed in the meantime
        return ""
    return f"{own.path}, line {line}: {'.'.join(setting)}: " if line else ""


def nearest_file(path: Path) -> str:
    """Return the file in the same folder whose name is nearest to a missing one's, with the same extension."""
    try:
        names = [other.name for other in path.parent.iterdir() if other.suffixes == path.suffixes]
    except OSError:
        return ""
    stems = {name.partition(".")[0]: name for name in sorted(names)}
    return stems.get(nearest_word(path.name.partition(".")[0], stems), "")
