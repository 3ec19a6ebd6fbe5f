"""Run all preflight checks of a job and the parties at hand; the lists of checks are here.

Each check is a small function that yields findings; one that fails leaves the others alone. To add one, write it and
name it in a list below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyColumns, PartyFile
from fedsim.preflight.estimate import CostEstimate, NetworkLink, build_workload, estimate_cost
from fedsim.preflight.files import (
    PartyFiles,
    check_argument_order,
    check_distinct_files,
    check_job_file,
    check_party_file,
    check_same_authority,
    check_same_key,
)
from fedsim.preflight.finding import (
    CheckedParty,
    CheckedTable,
    CheckFinding,
    CheckLevel,
    CheckSection,
    PartyInJob,
    run_checks,
    unique_findings,
)
from fedsim.preflight.machine import (
    PeerCheck,
    check_disk,
    check_folder,
    check_not_running,
    check_port,
    check_processors,
    check_software,
)
from fedsim.preflight.table import (
    check_columns,
    check_features,
    check_identifiers,
    check_label,
    check_records,
    check_steps,
    check_table,
)
from fedsim.preflight.trust import (
    check_approval,
    check_certificate,
    check_clock,
    check_key_file,
    check_linkage_key,
    check_membership,
    check_policy,
    load_credentials,
)

MACHINE_CHECKS = (("software", check_software), ("processors", check_processors))
JOB_CHECKS: tuple[tuple[str, Callable[[PartyInJob], Iterator[CheckFinding]]], ...] = (
    ("takes part", check_membership),
    ("records", check_records),
    ("steps", check_steps),
    ("identifiers", check_identifiers),
    ("label", check_label),
    ("features", check_features),
    ("linkage key", check_linkage_key),
    ("policy", check_policy),
    ("approval", check_approval),
    ("disk", check_disk),
    ("running", check_not_running),
    ("port", check_port),
)
PARTY_CHECKS = (
    ("linkage key", check_key_file),
    ("certificate", check_certificate),
    ("clock", check_clock),
    ("folder", check_folder),
)
CROSS_PARTY_CHECKS = (
    ("files", check_distinct_files),
    ("linkage keys", check_same_key),
    ("authorities", check_same_authority),
)


@dataclass(frozen=True)
class CheckReport:
    """All findings, section by section, and the estimate where the job and all files could be read."""

    sections: tuple[CheckSection, ...]
    estimate: CostEstimate | None

    @property
    def passed(self) -> bool:
        """Whether nothing fails; warnings are allowed."""
        return not self.count(CheckLevel.FAILS)

    def count(self, level: CheckLevel) -> int:
        """How many findings are of this level."""
        return sum(finding.level is level for section in self.sections for finding in section.findings)


@dataclass(frozen=True, eq=False)
class _PartyInput:
    """A party file with what could be read of its table; ``findings`` are those of reading."""

    path: Path
    own: PartyFile | None
    table: CheckedTable | None
    columns: PartyColumns | None
    findings: tuple[CheckFinding, ...]


def check_job(
    job_path: Path, party_paths: Sequence[Path], *, link: NetworkLink, now: datetime, call_peers: bool
) -> CheckReport:
    """Check a job, and the parties whose files are at hand; nothing is written, and nothing but a handshake sent."""
    misplaced = check_argument_order(job_path, party_paths)
    if misplaced:
        return CheckReport((CheckSection(f"job file {job_path}", (misplaced,)),), None)
    job, found = check_job_file(job_path)
    title = f"job {job.name} ({job.short_hash})" if job else f"job file {job_path}"
    parties = [_read_party(path, job) for path in party_paths]
    estimate = estimate_cost(job, build_workload(job, *_table_sizes(parties)), link) if job else None
    sections = [
        CheckSection(title, tuple(found)),
        CheckSection("this machine", unique_findings(run_checks(MACHINE_CHECKS, job))),
    ]
    sections += [_check_party(read, job, estimate, now, call_peers) for read in parties]
    company = [read.own for read in parties if read.own and job and read.own.party in job.parties]
    if job and len(company) > 1:
        sections.append(CheckSection("together", tuple(run_checks(CROSS_PARTY_CHECKS, PartyFiles(job, company)))))
    all_read = all(read.own for read in parties)
    return CheckReport(
        tuple(sections), estimate if all_read else None
    )  # a guess at a table that is at hand tells nothing


def _read_party(path: Path, job: Job | None) -> _PartyInput:
    own, findings = check_party_file(path)
    if own is None:
        return _PartyInput(path, None, None, None, tuple(findings))
    table, of_table = check_table(own, job)
    columns, of_columns = None, list[CheckFinding]()
    if table and job and own.party in job.parties:
        columns, of_columns = check_columns(own, job, table)
    return _PartyInput(path, own, table, columns, (*findings, *of_table, *of_columns))


def _table_sizes(parties: Sequence[_PartyInput]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Records and features of the parties whose tables are at hand, by name."""
    records_of = {read.own.name: len(read.table.frame) for read in parties if read.own and read.table}
    features_of = {
        read.own.name: len(read.columns.features)
        for read in parties
        if read.own and read.columns and read.columns.features
    }
    return records_of, features_of


def _check_party(
    read: _PartyInput, job: Job | None, estimate: CostEstimate | None, now: datetime, call_peers: bool
) -> CheckSection:
    own = read.own
    if own is None:
        return CheckSection(f"party file {read.path}", read.findings)
    found = list(read.findings)
    if job and estimate:
        found += _check_in_job(PartyInJob(job, own, read.table, read.columns, estimate), now, call_peers)
    found += run_checks(PARTY_CHECKS, CheckedParty(own, now))
    return CheckSection(f"{own.party} ({read.path})", unique_findings(found))


def _check_in_job(case: PartyInJob, now: datetime, call_peers: bool) -> Iterator[CheckFinding]:
    if case.own.party not in case.job.parties:
        yield from run_checks(JOB_CHECKS[:1], case)  # nothing else makes sense for a stranger
        return
    yield from run_checks(JOB_CHECKS, case)
    if call_peers:
        yield from run_checks([("peers", PeerCheck(load_credentials(case.own, now)))], case)
