"""The preflight of a job: everything that can be known to fail, and what the job will cost, before anything is sent.

Each check is a small function that yields findings; one that fails leaves the others alone. To add one, write it and
name it in a list below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from fedsim.party.checks.cells import identifiers, label
from fedsim.party.checks.features import features
from fedsim.party.checks.files import read_checked_job, read_checked_party, wrong_order
from fedsim.party.checks.finding import Finding, Level, Section, each_once, findings_of
from fedsim.party.checks.machine import folder, processors, room, running, software
from fedsim.party.checks.network import Peers, port
from fedsim.party.checks.subject import Case, Place, Table
from fedsim.party.checks.table import checked_columns, read_checked_table, records, steps
from fedsim.party.checks.tls import certificate, clock, usable_credentials
from fedsim.party.checks.together import Company, one_file_each, same_authority, same_key
from fedsim.party.checks.trust import approval, key_file, linkage_key, policy, takes_part
from fedsim.party.estimate import Estimate, Link, estimated, work_of
from fedsim.party.job import Job
from fedsim.party.own_columns import OwnColumns
from fedsim.party.party_file import PartyFile

OF_MACHINE = (("software", software), ("processors", processors))
OF_PARTY_IN_JOB: tuple[tuple[str, Callable[[Case], Iterator[Finding]]], ...] = (
    ("takes part", takes_part),
    ("records", records),
    ("steps", steps),
    ("identifiers", identifiers),
    ("label", label),
    ("features", features),
    ("linkage key", linkage_key),
    ("policy", policy),
    ("approval", approval),
    ("disk", room),
    ("running", running),
    ("port", port),
)
OF_PARTY_ALONE = (("linkage key", key_file), ("certificate", certificate), ("clock", clock), ("folder", folder))
OF_COMPANY = (("files", one_file_each), ("linkage keys", same_key), ("authorities", same_authority))


@dataclass(frozen=True)
class Report:
    """All findings, section by section, and the estimate where the job and all files could be read."""

    sections: tuple[Section, ...]
    estimate: Estimate | None

    @property
    def passed(self) -> bool:
        """Whether nothing fails; warnings are allowed."""
        return not self.count(Level.FAILS)

    def count(self, level: Level) -> int:
        """How many findings are of this level."""
        return sum(finding.level is level for section in self.sections for finding in section.findings)


@dataclass(frozen=True, eq=False)
class _Read:
    """A party file with what could be read of its table; ``findings`` are those of reading."""

    path: Path
    own: PartyFile | None
    table: Table | None
    columns: OwnColumns | None
    findings: tuple[Finding, ...]


def check_job(job_path: Path, party_paths: Sequence[Path], *, link: Link, now: datetime, call_peers: bool) -> Report:
    """Check a job, and the parties whose files are at hand; nothing is written, and nothing but a handshake sent."""
    misplaced = wrong_order(job_path, party_paths)
    if misplaced:
        return Report((Section(f"job file {job_path}", (misplaced,)),), None)
    job, found = read_checked_job(job_path)
    title = f"job {job.name} ({job.short_hash})" if job else f"job file {job_path}"
    parties = [_read(path, job) for path in party_paths]
    estimate = estimated(job, work_of(job, *_sizes(parties)), link) if job else None
    sections = [Section(title, tuple(found)), Section("this machine", each_once(findings_of(OF_MACHINE, job)))]
    sections += [_section(read, job, estimate, now, call_peers) for read in parties]
    company = [read.own for read in parties if read.own and job and read.own.party in job.parties]
    if job and len(company) > 1:
        sections.append(Section("together", tuple(findings_of(OF_COMPANY, Company(job, company)))))
    all_read = all(read.own for read in parties)
    return Report(tuple(sections), estimate if all_read else None)  # a guess at a table that is at hand tells nothing


def _read(path: Path, job: Job | None) -> _Read:
    own, findings = read_checked_party(path)
    if own is None:
        return _Read(path, None, None, None, tuple(findings))
    table, of_table = read_checked_table(own, job)
    columns, of_columns = None, list[Finding]()
    if table and job and own.party in job.parties:
        columns, of_columns = checked_columns(own, job, table)
    return _Read(path, own, table, columns, (*findings, *of_table, *of_columns))


def _sizes(parties: Sequence[_Read]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Records and features of the parties whose tables are at hand, by name."""
    records_of = {read.own.name: len(read.table.frame) for read in parties if read.own and read.table}
    features_of = {
        read.own.name: len(read.columns.features)
        for read in parties
        if read.own and read.columns and read.columns.features
    }
    return records_of, features_of


def _section(read: _Read, job: Job | None, estimate: Estimate | None, now: datetime, call_peers: bool) -> Section:
    own = read.own
    if own is None:
        return Section(f"party file {read.path}", read.findings)
    found = list(read.findings)
    if job and estimate:
        found += _in_job(Case(job, own, read.table, read.columns, estimate), now, call_peers)
    found += findings_of(OF_PARTY_ALONE, Place(own, now))
    return Section(f"{own.party} ({read.path})", each_once(found))


def _in_job(case: Case, now: datetime, call_peers: bool) -> Iterator[Finding]:
    if case.own.party not in case.job.parties:
        yield from findings_of(OF_PARTY_IN_JOB[:1], case)  # nothing else makes sense for a stranger
        return
    yield from findings_of(OF_PARTY_IN_JOB, case)
    if call_peers:
        yield from findings_of([("peers", Peers(usable_credentials(case.own, now)))], case)
