"""Run all preflight checks of a job and of the parties whose files are available.

A check is a function that yields findings; an error in one check does not stop the others. To add a check, write the
function and list it below.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from pathlib import Path

from fedsim.config.job import Job, read_job
from fedsim.config.party_file import PartyColumns, PartyFile, read_party_file
from fedsim.config.toml_file import ConfigFileError, parse_toml, read_text_file
from fedsim.errors import FedSimError
from fedsim.preflight import machine, table, trust
from fedsim.preflight.estimate import CostEstimate, NetworkLink, build_workload, estimate_cost
from fedsim.preflight.finding import (
    CheckedParty,
    CheckedTable,
    CheckFinding,
    CheckLevel,
    CheckSection,
    PartyInJob,
    error_finding,
    failure,
    info,
    message_finding,
    ok,
    run_checks,
    unique_findings,
)
from fedsim.protocol.certificates import certificate_pem, read_certificates

MAX_FAULTS = 20  # shown per file
MACHINE_CHECKS = (("software", machine.check_software), ("processors", machine.check_processors))
JOB_CHECKS: tuple[tuple[str, Callable[[PartyInJob], Iterator[CheckFinding]]], ...] = (
    ("takes part", trust.check_membership),
    ("records", table.check_records),
    ("steps", table.check_steps),
    ("identifiers", table.check_identifiers),
    ("label", table.check_label),
    ("features", table.check_features),
    ("linkage key", trust.check_linkage_key),
    ("policy", trust.check_policy),
    ("approval", trust.check_approval),
    ("disk", machine.check_disk),
    ("running", machine.check_not_running),
    ("port", machine.check_port),
)
PARTY_CHECKS = (
    ("linkage key", trust.check_key_file),
    ("certificate", trust.check_certificate),
    ("clock", trust.check_clock),
    ("folder", machine.check_folder),
)


@dataclass(frozen=True)
class CheckReport:
    """All findings by section; ``estimate`` is None if the job or a party file could not be read."""

    sections: tuple[CheckSection, ...]
    estimate: CostEstimate | None

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return not self.count(CheckLevel.FAILS)

    def count(self, level: CheckLevel) -> int:
        """Return the number of findings of a level."""
        return sum(finding.level is level for section in self.sections for finding in section.findings)


@dataclass(frozen=True, eq=False)
class _PartyInput:
    """A party file and its table as far as they could be read, with the findings of reading them."""

    path: Path
    findings: Sequence[CheckFinding]
    own: PartyFile | None = None
    table: CheckedTable | None = None
    columns: PartyColumns | None = None


def check_job(
    job_path: Path, party_paths: Sequence[Path], *, link: NetworkLink, now: datetime, call_peers: bool
) -> CheckReport:
    """Check a job and the parties whose files are on this machine; nothing is written.

    ``link`` is the connection for which the cost is estimated. Certificates must be valid at ``now``. With
    ``call_peers``, a TLS handshake with other parties takes place.
    """
    title, job = f"job file {job_path}", None
    if _file_kind(job_path) == "party":  # reported once, instead of all settings that it does not have
        meant = next((path for path in party_paths if _file_kind(path) == "job"), None)
        others = (path for path in party_paths if path != meant)
        fix = f"run: fedsim check {' '.join(map(str, [meant or 'JOB.toml', job_path, *others]))}"
        message = f"{job_path} is a party file, but the job file must come first"
        misplaced = failure("job file", message, fix, code="argument-order")
        return CheckReport((CheckSection(title, (misplaced,)),), None)
    try:
        job = read_job(job_path)
        title = f"job {job.name} ({job.short_hash})"
        findings = [ok("job file", str(job_path)), info("parties", ", ".join(map(str, job.parties)))]
    except FedSimError as error:
        findings = _file_findings("job file", error)
    parties = [_read_party(path, job) for path in party_paths]
    n_records = {party.own.name: len(party.table.frame) for party in parties if party.own and party.table}
    columns = {party.own.name: party.columns for party in parties if party.own and party.columns}
    n_features = {name: len(own.features) for name, own in columns.items() if own.features}
    estimate = estimate_cost(job, build_workload(job, n_records, n_features), link) if job else None
    machine_findings = unique_findings(run_checks(MACHINE_CHECKS, job))
    sections = [CheckSection(title, tuple(findings)), CheckSection("this machine", machine_findings)]
    sections += [_check_party(party, job, estimate, now, call_peers) for party in parties]
    members = [party.own for party in parties if party.own and job and party.own.party in job.parties]
    if job and len(members) > 1:
        checks = (("files", _check_files), ("linkage keys", _check_same_key), ("authorities", _check_same_authority))
        sections.append(CheckSection("together", tuple(run_checks(checks, (job, members)))))
    # The size of a table that should be here but cannot be read is not worth guessing.
    return CheckReport(tuple(sections), estimate if all(party.own for party in parties) else None)


def _check_party(
    party: _PartyInput, job: Job | None, estimate: CostEstimate | None, now: datetime, call_peers: bool
) -> CheckSection:
    own = party.own
    if own is None:
        return CheckSection(f"party file {party.path}", tuple(party.findings))
    findings = list(party.findings)
    if job and estimate:
        case = PartyInJob(job, own, party.table, party.columns, estimate)
        member = own.party in job.parties
        findings += run_checks(JOB_CHECKS if member else JOB_CHECKS[:1], case)
        if member and call_peers:
            findings += run_checks([("peers", machine.PeerCheck(trust.load_credentials(own, now)))], case)
    findings += run_checks(PARTY_CHECKS, CheckedParty(own, now))
    return CheckSection(f"{own.party} ({party.path})", unique_findings(findings))


# Reading job and party files


def _read_party(path: Path, job: Job | None) -> _PartyInput:
    try:
        own = read_party_file(path)
    except FedSimError as error:
        findings = _file_findings("party file", error)
        if _file_kind(path) == "job":
            fix = "give the job file first and only once"
            findings = [failure("party file", f"{path} is a job file", fix, code="argument-order")]
        return _PartyInput(path, findings)
    records, of_table = table.check_table(own, job)
    findings, columns = [ok("party file", str(path)), *of_table], None
    if records and job and own.party in job.parties:
        columns, of_columns = table.check_columns(own, job, records)
        findings += of_columns
    return _PartyInput(path, findings, own, records, columns)


def _file_findings(check: str, error: FedSimError) -> list[CheckFinding]:
    """Report every fault of a file, in the order of its lines."""
    if not isinstance(error, ConfigFileError):
        return [error_finding(check, error)]
    return [message_finding(check, fault.message, code=fault.code) for fault in error.faults[:MAX_FAULTS]]


def _file_kind(path: Path) -> str:
    """Return "job" or "party" by the settings of a file, or nothing if it has neither or cannot be read."""
    try:
        keys = parse_toml(read_text_file(path), path).keys() & {"secondaries", "role"}
    except FedSimError:
        return ""
    return {"secondaries": "job", "role": "party"}[keys.pop()] if len(keys) == 1 else ""


# Checks that need the files of several parties of a job

Members = tuple[Job, Sequence[PartyFile]]


def _check_files(members: Members) -> Iterator[CheckFinding]:
    """Check that no party is given twice and no folder is shared."""
    by_party: dict[object, PartyFile] = {}
    by_folder: dict[Path, PartyFile] = {}
    for own in members[1]:
        same_party = by_party.setdefault(own.party, own)
        same_folder = by_folder.setdefault(own.folder.absolute(), own)
        if same_party is not own:
            message = f"{same_party.path} and {own.path} both belong to {own.party}"
            yield failure("files", message, "give one of them only", code="duplicate-party")
        elif same_folder is not own:
            message = f"{same_folder.path} and {own.path} have the same folder"
            yield failure("files", message, "give each party its own folder", code="shared-folder")
    yield ok("files", f"{len(by_party)} of {len(members[0].parties)} parties")


def _check_same_key(members: Members) -> Iterator[CheckFinding]:
    """Check that both sides of every linkage have the same key."""
    by_list: dict[str, dict[str, PartyFile]] = {}
    for own in members[1]:
        for name, fingerprint in trust.key_fingerprints(members[0], own).items():
            by_list.setdefault(name, {}).setdefault(fingerprint, own)
    different = {name: sides.values() for name, sides in by_list.items() if len(sides) > 1}
    for name, sides in different.items():
        paths = " and ".join(str(own.linkage.key) for own in sides if own.linkage)
        message = f"primary and secondary have different keys for {name}: {paths}"
        yield failure("linkage keys", message, "copy one to the other over a secure channel", code="different-keys")
    if not different:
        yield ok("linkage keys", "equal")


def _check_same_authority(members: Members) -> Iterator[CheckFinding]:
    """Check that all parties trust the same authority; unreadable certificates are reported with their party."""
    trusted: list[tuple[PartyFile, set[bytes]]] = []
    for own in members[1]:
        try:
            pems = set(map(certificate_pem, read_certificates(own.tls.authority))) if own.tls else set()
        except FedSimError:
            pems = set()
        trusted += [(own, pems)] if pems else []
    for (one, first), (other, second) in combinations(trusted, 2):
        if not first & second:
            message = f"{one.party} and {other.party} trust different authorities"
            fix = "use certificates from one run of `fedsim certs`"
            yield failure("authorities", message, fix, code="different-authorities")
            return
    yield ok("authorities", "equal")
