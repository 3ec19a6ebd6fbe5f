"""The audit that a policy demands: a report of exactly this job, on this party's own table, under its limit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from fedsim.party.job import Job
from fedsim.party.party_file import PartyFile
from fedsim.protocol.parties import Role

FORMAT = "fedsim audit 1"
BROKEN = "broken"
INVERSION = "feature inversion"
# Who could learn something about a party of this role.
AGAINST = {Role.PRIMARY: ("secondary",), Role.SECONDARY: ("primary", "coordinator"), Role.COORDINATOR: ()}


def unaudited(job: Job, party_file: PartyFile) -> str:
    """What the audit on file lacks, as half a sentence that others may hear; empty: nothing, or none is demanded."""
    demand = party_file.policy.audit
    if demand is None:
        return ""
    report = _read(audit_path(job, party_file))
    if report is None or report["hash"] != job.hash or str(party_file.party) not in report["tables"]:
        return "has run none"
    if any(finding["verdict"] == BROKEN for finding in report["findings"]):
        return "found a guarantee broken"
    tried = _against(party_file, report)
    if not tried:
        return "has run one that attacks others alone"
    return _too_weak(party_file, report, tried) or _too_much(tried, demand.limit)


def audit_path(job: Job, party_file: PartyFile) -> Path:
    """Where the audit of a job lies."""
    return party_file.folder / "audits" / f"{job.short_hash}.json"


def audit_command(job: Job, party_file: PartyFile) -> str:
    """What the owner types to audit; a secondary needs the primary's labels, or others that stand in for them."""
    job_path = job.path if job.path.name else Path("job.toml")
    primary = party_file.path.with_name(f"{job.primary.name}.toml")
    files = [primary, party_file.path] if party_file.role is Role.SECONDARY else [party_file.path]
    words = ["fedsim", "audit", str(job_path), *map(str, files), "--out", str(_out(job, party_file))]
    return " ".join(shlex.quote(word) for word in words)


def _out(job: Job, party_file: PartyFile) -> Path:
    return audit_path(job, party_file).with_suffix("")


def _too_weak(party_file: PartyFile, report: dict[str, Any], tried: list[dict[str, Any]]) -> str:
    if _was_quick(report):
        return "has run a quick one alone, which tries too little to rely on (leave out --quick)"
    if party_file.role is Role.SECONDARY and not any(finding.get("attack") == INVERSION for finding in tried):
        return (
            "has run one without any attack on its features, for want of labels to train with (name the primary's file "
            "too, or one of that name with a table of your own and any label)"
        )
    return ""


def _too_much(tried: list[dict[str, Any]], limit: float) -> str:
    above = [finding for finding in tried if not finding["leak"] <= limit]
    return f"found {len(above)} {'attack' if len(above) == 1 else 'attacks'} above it" if above else ""


def _was_quick(report: dict[str, Any]) -> bool:
    """A report that does not say how hard it tried counts as one that did not."""
    settings = report.get("settings")
    return not isinstance(settings, dict) or settings.get("quick") is not False


def _against(party_file: PartyFile, report: dict[str, Any]) -> list[dict[str, Any]]:
    """What others could learn about this party; a secondary minds its own linkage alone."""
    found = [finding for finding in report["findings"] if finding["adversary"] in AGAINST[party_file.role]]
    if party_file.role is Role.SECONDARY:
        return [finding for finding in found if finding["about"] == party_file.name]
    return found


def _read(path: Path) -> dict[str, Any] | None:
    """A report on file; one that cannot be read counts as none, since it can be written again."""
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return report if _is_report(report) else None


def _is_report(report: Any) -> bool:
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        return False
    tables, findings = report.get("tables"), report.get("findings")
    if not isinstance(report.get("hash"), str) or not isinstance(tables, list) or not isinstance(findings, list):
        return False
    return bool(findings) and all(_is_finding(finding) for finding in findings)


def _is_finding(finding: Any) -> bool:
    return (
        isinstance(finding, dict)
        and all(isinstance(finding.get(name), str) for name in ("about", "adversary", "verdict"))
        and isinstance(finding.get("leak"), int | float)
    )
