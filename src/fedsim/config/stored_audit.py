"""The audit report that a party stores: the words of its findings, and where it lies.

The attacks themselves are in the package ``fedsim_audit``.
"""

import json
import shlex
from enum import Enum
from pathlib import Path
from typing import Any

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.protocol.messages import Role

AUDIT_FORMAT, AUDITS_FOLDER = "fedsim audit 3", "audits"
BROKEN_VERDICT = "broken"
FEATURE_INVERSION = "feature inversion"


class Adversary(Enum):
    """The party that attacks."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    COORDINATOR = "coordinator"


class Victim(Enum):
    """The party whose data an attack reveals."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class AttackKind(Enum):
    """The kind of an attack; programs must use it instead of the wording of a finding."""

    DISTANCES = "distances"
    LIKELIHOOD = "likelihood"
    LOCATION = "location"
    INVERSION = "feature-inversion"
    GRADIENTS = "gradients"
    COMPLETION = "model-completion"
    ROW_COUNTS = "row-counts"
    DICTIONARY = "dictionary"  # the attacks from here on are those of direct linking
    ONE_WORD = "one-word"
    CELLS = "cells"
    UNREACHED = "unreached-rows"
    JOINED_LINKS = "joined-links"
    TABLE_SIZES = "table-sizes"
    ATTRIBUTE = "attribute"  # the attacks from here on are those on averages
    MEMBERSHIP = "membership"
    DIFFERENCES = "differences"


def audit_path(job: Job, party_file: PartyFile) -> Path:
    """Return where `fedsim audit` stores the report of a job for a party whose table it attacked."""
    return party_file.folder / AUDITS_FOLDER / f"{job.hash}.json"


def audit_command(job: Job, party_file: PartyFile) -> str:
    """Return the command that runs the audit with the party's own file, and the primary's if that lies beside it."""
    job_path = job.path if job.path.name else Path("job.toml")
    primary = party_file.path.with_name(f"{job.primary.name}.toml")
    both = party_file.role is Role.SECONDARY and primary.is_file()
    files = [primary, party_file.path] if both else [party_file.path]
    return shlex.join(["fedsim", "audit", str(job_path), *map(str, files)])


def read_stored_audit(job: Job, party_file: PartyFile) -> dict[str, Any] | None:
    """Return the audit report of exactly this job on this party's own table, as JSON; None if there is none."""
    report = _read_audit(audit_path(job, party_file))
    if report is None or report["hash"] != job.hash or str(party_file.party) not in report["tables"]:
        return None
    return report


def attacks_on(party_file: PartyFile, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the attacks of a report that reveal something about this party."""
    attacks = [finding for finding in report["findings"] if finding["victim"] == party_file.role]
    if party_file.role is Role.SECONDARY:  # only attacks on its own linkage concern a secondary
        attacks = [finding for finding in attacks if finding["about"] == party_file.name]
    return attacks


def _read_audit(path: Path) -> dict[str, Any] | None:
    """Read a report; an invalid one counts as missing, because the audit can be run again."""
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or report.get("format") != AUDIT_FORMAT or not isinstance(report.get("hash"), str):
        return None
    tables, findings = report.get("tables"), report.get("findings")
    if not isinstance(tables, list) or not isinstance(findings, list) or not findings:
        return None
    valid = all(
        isinstance(finding, dict)
        and all(isinstance(finding.get(name), str) for name in ("about", "adversary", "victim", "verdict"))
        and isinstance(finding.get("leak"), int | float)
        for finding in findings
    )
    return report if valid else None
