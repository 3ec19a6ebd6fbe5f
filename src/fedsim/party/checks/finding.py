"""What a check found: how it went, in words without data, and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from fedsim.errors import FedSimError

Subject = TypeVar("Subject")


class Level(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    FAILS = "fails"


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``telling`` marks one that is worth reading although all is well."""

    check: str
    level: Level
    result: str
    fix: str = ""
    telling: bool = False


@dataclass(frozen=True)
class Section:
    """The findings about one thing: the job, the machine, a party."""

    title: str
    findings: tuple[Finding, ...]


def ok(check: str, result: str) -> Finding:
    """All is well, and nobody need read it."""
    return Finding(check, Level.OK, result)


def telling(check: str, result: str) -> Finding:
    """All is well, and here is something to know."""
    return Finding(check, Level.OK, result, telling=True)


def warning(check: str, result: str, fix: str) -> Finding:
    """The job would run, perhaps not as meant."""
    return Finding(check, Level.WARNING, result, fix)


def fails(check: str, result: str, fix: str) -> Finding:
    """The job would not run."""
    return Finding(check, Level.FAILS, result, fix)


def failed(check: str, sentence: str, otherwise: str = "") -> Finding:
    """A failure from an error's sentence, which ends in the way out; ``otherwise`` is for those that name none.

    >>> failed("data", "flats.csv does not exist; check the path")
    Finding(check='data', level=<Level.FAILS: 'fails'>, result='flats.csv does not exist', fix='check the path', \
telling=False)
    """
    result, _, fix = sentence.rpartition("; ")
    return fails(check, result or sentence, fix if result else otherwise)


def findings_of(
    checks: Iterable[tuple[str, Callable[[Subject], Iterator[Finding]]]], subject: Subject
) -> Iterator[Finding]:
    """What all checks find; one that cannot go on says why and leaves the others alone."""
    for name, check in checks:
        try:
            yield from check(subject)
        except FedSimError as error:
            yield failed(name, str(error))


def each_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Without repetitions: one fault may be met by several checks, and is told by the first."""
    first: dict[object, Finding] = {}
    for finding in findings:
        first.setdefault(finding if finding.level is Level.OK else (finding.result, finding.fix), finding)
    return tuple(first.values())
