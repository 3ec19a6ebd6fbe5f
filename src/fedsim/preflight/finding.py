"""Findings of preflight checks."""

from dataclasses import dataclass
from enum import StrEnum

from fedsim.errors import FedSimError


class CheckLevel(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILS = "fails"


# Checks that do not matter while all parties run in one process.
DEPLOYMENT_CHECKS = frozenset({"certificate", "peers", "port", "authorities"})


@dataclass(frozen=True)
class CheckFinding:
    """The result of one check and how to fix it, without any data.

    ``informative`` marks results that are worth reading although the check passed; ``code`` names the kind of problem.
    """

    check: str
    level: CheckLevel
    result: str
    fix: str = ""
    informative: bool = False
    code: str = ""

    @property
    def only_for_deployment(self) -> bool:
        """Whether `fedsim train` runs without it."""
        return self.check in DEPLOYMENT_CHECKS


def ok(check: str, result: str) -> CheckFinding:
    """Report a check that passed; shown in verbose mode only."""
    return CheckFinding(check, CheckLevel.OK, result)


def info(check: str, result: str) -> CheckFinding:
    """Report a check that passed with a result that is worth reading."""
    return CheckFinding(check, CheckLevel.OK, result, informative=True)


def warning(check: str, result: str, fix: str, *, code: str = "") -> CheckFinding:
    """Report that the job can run, but perhaps not as intended."""
    return CheckFinding(check, CheckLevel.WARNING, result, fix, code=code)


def failure(check: str, result: str, fix: str, *, code: str = "") -> CheckFinding:
    """Report that the job cannot run."""
    return CheckFinding(check, CheckLevel.FAILS, result, fix, code=code)


def error_finding(check: str, error: FedSimError | str, default_fix: str = "", *, code: str = "") -> CheckFinding:
    """Report a failure by an error or its message, whose part after the last semicolon is the fix.

    >>> finding = error_finding("data", "flats.csv does not exist; check the path")
    >>> finding.result, finding.fix
    ('flats.csv does not exist', 'check the path')
    """
    result, _, fix = str(error).rpartition("; ")
    code = error.code if isinstance(error, FedSimError) else code
    return failure(check, result or str(error), fix if result else default_fix, code=code)
