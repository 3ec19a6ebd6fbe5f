"""Run all preflight checks of a job and of the parties whose files are available.

A check is a function that yields findings; an error in one check does not stop the others. To add a check, write the
function and list it above ``check_job``; the checks of a party's table are in `fedsim.preflight.table`.
"""

import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from fedsim.config import Job, PartyFile, party_file, policy, read_job, read_party_file, stored_audit, toml_file
from fedsim.errors import FedSimError, SettingError
from fedsim.linkage.encoding import Key
from fedsim.linkage.soft_linkage import load_engine
from fedsim.preflight import table
from fedsim.preflight.estimate import CostEstimate, NetworkLink, build_workload, estimate_cost
from fedsim.preflight.finding import CheckFinding, CheckLevel, error_finding, failure, info, ok, warning
from fedsim.protocol.addresses import RelayAddress, open_connection, split_address
from fedsim.protocol.certificates import certificate_pem, read_certificates, read_key
from fedsim.protocol.messages import Role
from fedsim.protocol.tls import RENEWAL_DAYS, Credentials, is_loopback, read_credentials
from fedsim.protocol.transport import ConnectionLost
from fedsim.registry import SERVICES
from fedsim.runs.approval import require_approval
from fedsim.runs.run_folder import LOCK_FILE, run_path
from fedsim.storage.files import SecretSource

WRITABLE_BY_OTHERS = 0o022
DISK_HEADROOM = 3  # warn if less than this multiple of the needed disk space is free
READABLE_BY_OTHERS = 0o077
FINGERPRINT_DIGITS = 12
CALL_TIMEOUT_SECONDS = 3.0
DIALLED_ROLES = {Role.PRIMARY: (Role.COORDINATOR,), Role.SECONDARY: (Role.COORDINATOR, Role.PRIMARY)}
OTHER_MACHINE_HINT = "run this check on the party's machine, or set network.listen in the party file"
_PORT_ERRORS = {
    errno.EADDRINUSE: ("is in use", "stop the program that listens there, or use another port"),
    errno.EADDRNOTAVAIL: ("is not an address of this machine", OTHER_MACHINE_HINT),
    errno.EACCES: ("requires administrator rights", "use a port above 1023"),
}
MAX_FAULTS = 20  # shown per file
CheckSubjectT = TypeVar("CheckSubjectT")


@dataclass(frozen=True)
class CheckSection:
    """The findings about one subject: the job or a party."""

    title: str
    findings: tuple[CheckFinding, ...]


@dataclass(frozen=True)
class CheckReport:
    """All findings by section; ``estimate`` is None if the job or a party file could not be read."""

    sections: tuple[CheckSection, ...]
    estimate: CostEstimate | None

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return not self.failures

    @property
    def ready_to_train(self) -> bool:
        """Whether no check failed that `fedsim train` needs, with all parties in one process."""
        return all(finding.only_for_deployment for _, finding in self.failures)

    @property
    def failures(self) -> list[tuple[CheckSection, CheckFinding]]:
        """The checks that failed, with their section."""
        return [(each, found) for each in self.sections for found in each.findings if found.level is CheckLevel.FAILS]

    def count(self, level: CheckLevel) -> int:
        """Return the number of findings of a level."""
        return sum(finding.level is level for section in self.sections for finding in section.findings)


@dataclass(frozen=True, eq=False)
class CheckedParty:
    """A party by itself, at a point in time."""

    own: PartyFile
    now: datetime


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


# The machine


def check_telemetry(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check who can read the metrics."""
    metrics = place.own.telemetry.metrics
    if metrics and not is_loopback(metrics):
        message = f"anyone who can reach {metrics} can read this party's metrics, without a password"
        fix = "use 127.0.0.1, or let only Prometheus reach the port"
        yield warning("telemetry", message, fix, code="public-metrics")


def check_engine(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that what a coordinator searches with is installed and, if it has an address, answers there."""
    if (engine := load_engine(place.own.engine)) is not None:
        engine.check()
        yield ok("engine", place.own.engine)


def check_folder(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that the party's folder is writable, and only for its owner."""
    folder = place.own.folder
    existing = _nearest_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        mode = folder.stat().st_mode if folder.exists() else 0
    except OSError as error:
        message = f"cannot write to {existing}: {error.strerror or 'unknown reason'}"
        fix = f"correct 'folder' in {place.own.path}, or its permissions"
        yield failure("folder", message, fix, code="not-writable")
        return
    if mode & WRITABLE_BY_OTHERS:
        message = f"{folder} is writable by other users of this machine"
        yield warning("folder", message, f"chmod 700 {folder}", code="writable-by-others")
    yield ok("folder", str(folder))


def check_disk(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Check disk space for checkpoints and links, and at the coordinator memory for the linkage."""
    needed = case.estimate.disk[case.own.name]
    try:
        free = shutil.disk_usage(_nearest_existing(case.own.folder)).free
    except OSError:
        return  # reported by the check of the folder
    if free < DISK_HEADROOM * needed:
        report = failure if free < needed else warning
        message = f"{_gigabytes(free)} is free, but about {_gigabytes(needed)} is needed"
        yield report("disk", message, f"free some space, or set another folder in {case.own.path}", code="disk-full")
    else:
        yield ok("disk", f"{_gigabytes(free)} free")
    if case.own.role is not Role.COORDINATOR:
        return
    memory, needed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), case.estimate.coordinator_memory
    if needed > memory:
        message = f"this machine has {_gigabytes(memory)}, but the linkage needs about {_gigabytes(needed)}"
        fix = "run the coordinator on a larger machine, or use fewer bits in the schema"
        yield warning("memory", message, fix, code="too-little-memory")
    else:
        yield ok("memory", f"{_gigabytes(memory)}")


def check_not_running(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Check that no other process of this party runs the job, without taking its lock."""
    path = run_path(case.job, case.own) / LOCK_FILE
    try:
        with path.open("rb") as lock:
            holder = lock.read(20).decode("ascii", "replace")
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        process = f"process {holder}" if holder.isdecimal() else "another process"
        yield failure("running", f"{process} is running this job", "wait for it, or stop it", code="already-running")
        return
    except (FileNotFoundError, NotADirectoryError):
        pass  # the job was never started here
    except OSError as error:
        yield warning("running", f"cannot read {path}: {error.strerror}", "check the owner of the folder")
        return
    yield ok("running", "no other process is running this job")


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    parents = (folder.absolute(), *folder.absolute().parents)
    return next((path for path in parents if os.path.lexists(path)), Path("/"))


def _gigabytes(n_bytes: int) -> str:
    """Format a size in decimal gigabytes.

    >>> _gigabytes(1_234_000_000), _gigabytes(56_000_000)
    ('1.2 GB', '0.06 GB')
    """
    return f"{n_bytes / 1e9:.{1 if n_bytes >= 1e9 else 2}f} GB"


# The network


def check_port(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Check that a party that accepts connections can listen at its address."""
    if case.own.role is Role.SECONDARY:
        return
    address = party_file.listen_address(case.job, case.own)
    if relay := RelayAddress.parse(address):
        yield ok("port", f"none is opened: other parties connect through the relay {relay.address}")
        return
    host, number = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except (socket.gaierror, UnicodeError):
        yield failure("port", f"cannot resolve the host of {address}", OTHER_MACHINE_HINT, code="unknown-host")
    except OSError as error:
        what, fix = _PORT_ERRORS.get(error.errno or 0, (f"cannot be used ({error.strerror})", OTHER_MACHINE_HINT))
        yield failure("port", f"{address} {what}", fix, code="port-unavailable")
    else:
        yield ok("port", f"{address} is free")


def check_peers(credentials: Credentials | None, case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Connect to the parties that a party calls: a TLS handshake that shows its certificate only."""
    peers = [peer for peer in case.job.parties if peer.role in DIALLED_ROLES.get(case.own.role, ())]
    if credentials is None:
        message = "no connection was tried, because there is no valid certificate"
        if peers:
            yield warning("peers", message, "fix the certificate first", code="no-certificate")
        return
    used = [*peers, case.own.party] if case.own.role is not Role.SECONDARY else peers
    relays = filter(None, (RelayAddress.parse(case.job.address_of(party)) for party in used))
    for relay in dict.fromkeys(relays):
        try:
            SERVICES["relay-check"](relay, credentials, case.own.party, CALL_TIMEOUT_SECONDS)
            yield ok("relay", f"the relay {relay.address} answers and accepts the certificate")
        except ConnectionLost as lost:
            yield error_finding("relay", str(lost), code=lost.code)
    for peer in peers:
        address = case.job.address_of(peer)
        probe = SERVICES["tls-probe"](address, credentials, peer, CALL_TIMEOUT_SECONDS)
        if probe.reason:
            if not probe.code.startswith("relay-"):  # reported above
                yield error_finding("peers", probe.reason, code="peer-unreachable")
            continue
        started = time.perf_counter()
        try:
            open_connection(address, credentials, peer, CALL_TIMEOUT_SECONDS).close()
            latency = f", latency {1000 * (time.perf_counter() - started):.1f} ms"
        except (OSError, ConnectionLost):
            latency = ""
        yield info("peers", f"{peer} answers at {address}{latency}")


# Membership, policy and approval


def check_membership(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Check that the party is in the job and that its identifiers have agreed names."""
    party_file.require_membership(case.job, case.own)
    yield ok("takes part", f"{case.own.party} is one of {len(case.job.parties)} parties")


def check_policy(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Check the job against the party's own policy."""
    violations = policy.policy_violations(case.job, case.own, None if case.table is None else len(case.table.frame))
    for violation in violations:
        change = f"agree on another job, or change [policy] in {case.own.path}"
        audit = violation.rule == "audit"
        fix = stored_audit.audit_command(case.job, case.own) if audit else change
        yield failure("policy", violation.message, fix, code=violation.rule)
    columns = party_file.columns_outside_policy(case.job, case.own)
    if columns:
        message = f"policy.columns does not list {', '.join(columns)}"
        yield failure("policy", message, "list them, or use other columns", code="columns")
    if not violations:
        rules = len(case.own.policy.model_fields_set)
        yield ok("policy", f"the job meets all {rules} conditions" if rules else "no conditions")


def check_approval(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Check that the owner approved exactly this job and these columns."""
    header = case.table.header if case.table and case.columns else None
    yield info("approval", require_approval(case.job, case.own, header))


# The linkage key


def check_linkage_key(case: table.PartyInJob) -> Iterator[CheckFinding]:
    """Show a fingerprint of key and schema, which the two parties of a linkage can compare."""
    for name, digits in key_fingerprints(case.job, case.own).items():
        grouped = " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
        yield info("linkage key", f"{grouped} for {name}: must be equal at both parties; compare by telephone")


def key_fingerprints(job: Job, own: PartyFile) -> dict[str, str]:
    """Return the first digits of the fingerprint of key and schema by linkage; empty if the key cannot be read."""
    if own.linkage is None or not job.kind.SHARES_KEY:
        return {}
    try:
        key = Key.read(own.linkage.key)
    except FedSimError:
        return {}
    linked = [name for name in job.secondaries if name == own.name or own.role is Role.PRIMARY]
    return {name: job.secondaries[name].encoding.fingerprint(key)[:FINGERPRINT_DIGITS] for name in linked}


def check_key_file(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that the linkage key is readable, and only for its owner."""
    if place.own.linkage is None:
        return
    try:
        Key.read(place.own.linkage.key)
    except FedSimError as error:
        fix = "copy it from the other party over a secure channel; `fedsim certs key` creates the first one"
        yield error_finding("linkage key", error, fix)
        return
    yield from _check_private_file("linkage key", place.own.linkage.key)


def _check_private_file(check: str, path: SecretSource) -> Iterator[CheckFinding]:
    if not isinstance(path, Path):
        return
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # reported where the file is read
    if mode & READABLE_BY_OTHERS:
        message = f"{path} is readable by other users of this machine"
        yield warning(check, message, f"chmod 600 {path}", code="readable-by-others")


# Certificates


def check_certificate(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that the certificate files belong together, name this party, and are valid for some time."""
    tls = place.own.tls
    if tls is None:
        fix = "create certificates with `fedsim certs`; without them only --insecure works, on one machine"
        yield warning("certificate", "the party file has no [tls] section", fix, code="no-certificate")
        return
    unreadable = False
    for read, path in ((read_certificates, tls.authority), (read_certificates, tls.certificate), (read_key, tls.key)):
        try:
            read(path)
        except FedSimError as error:
            unreadable = True
            yield error_finding("certificate", error)
    if not unreadable:
        credentials = read_credentials(tls.authority, tls.certificate, tls.key, place.own.party, place.now, tls.revoked)
        yield _days_left("the certificate", credentials.days_left(place.now))
        expiry = min(certificate.not_valid_after_utc for certificate in read_certificates(tls.authority))
        if (days := (expiry - place.now).days) < RENEWAL_DAYS:
            yield _days_left("the authority", days)
    yield from _check_private_file("certificate", tls.key)


def _days_left(what: str, days: int) -> CheckFinding:
    if days < RENEWAL_DAYS:
        message = f"{what} expires in {days} days"
        return warning("certificate", message, "renew it: `fedsim certs --renew`", code="expires-soon")
    return info("certificate", f"{what} is valid for {days:,} more days")


def check_proxy(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that the login of the proxy can be read, and the authority of the relay."""
    if (proxy := party_file.read_proxy(place.own.network)) is not None:
        yield ok("proxy", proxy.address)
    if place.own.network.relay_authority is not None:
        read_certificates(place.own.network.relay_authority)


def load_credentials(own: PartyFile, now: datetime) -> Credentials | None:
    """Return the party's credentials, or None if they are missing or invalid."""
    try:
        return party_file.party_credentials(own, now)
    except FedSimError:
        return None


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
    """Check that both sides of every linkage have the same key, where they need one."""
    if not members[0].kind.SHARES_KEY:
        return
    by_list: dict[str, dict[str, PartyFile]] = {}
    for own in members[1]:
        for name, fingerprint in key_fingerprints(members[0], own).items():
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


# All checks

JOB_CHECKS: tuple[tuple[str, Callable[[table.PartyInJob], Iterator[CheckFinding]]], ...] = (
    ("takes part", check_membership),
    ("records", table.check_records),
    ("steps", table.check_steps),
    ("identifiers", table.check_identifiers),
    ("tokens", table.check_tokens),
    ("label", table.check_label),
    ("features", table.check_features),
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
    ("proxy", check_proxy),
    ("folder", check_folder),
    ("telemetry", check_telemetry),
    ("engine", check_engine),
)


@dataclass(frozen=True, eq=False)
class _PartyInput:
    """A party file and its table as far as they could be read, with the findings of reading them."""

    path: Path
    findings: Sequence[CheckFinding]
    own: PartyFile | None = None
    records: table.CheckedTable | None = None
    columns: party_file.PartyColumns | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)


def check_job(
    job_path: Path, party_paths: Sequence[Path], *, link: NetworkLink, now: datetime, call_peers: bool
) -> CheckReport:
    """Check a job and the parties whose files are on this machine; nothing is written.

    The cost is estimated for a ``link``; certificates must be valid ``now``.
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
        findings = [*_check_filled_in("job file", job_path), info("parties", ", ".join(map(str, job.parties)))]
    except FedSimError as error:
        findings = _file_findings("job file", error)
    parties = [_read_party(path, job) for path in party_paths]
    n_records = {party.own.name: len(party.records.frame) for party in parties if party.own and party.records}
    columns = {party.own.name: party.columns for party in parties if party.own and party.columns}
    n_features = {name: len(own.features) for name, own in columns.items() if own.features}
    n_tokens = {party.own.name: party.tokens for party in parties if party.own}
    estimate = estimate_cost(job, build_workload(job, n_records, n_features, n_tokens), link) if job else None
    sections = [CheckSection(title, tuple(findings))]
    sections += [_check_party(party, job, estimate, now, call_peers) for party in parties]
    members = [party.own for party in parties if party.own and job and party.own.party in job.parties]
    if job and len(members) > 1:
        checks = (("files", _check_files), ("linkage keys", _check_same_key), ("authorities", _check_same_authority))
        together = list(run_checks(checks, (job, members)))
        together += _check_label_elsewhere(members, columns)
        together += _check_tables_swapped(parties)
        sections.append(CheckSection("together", tuple(together)))
    # The size of a table that should be here but cannot be read is not worth guessing.
    return CheckReport(tuple(sections), estimate if all(party.own for party in parties) else None)


def _check_tables_swapped(parties: Sequence[_PartyInput]) -> Iterator[CheckFinding]:
    """Report if the label is not in the primary's table, but in that of a secondary."""
    headers = [(each.own, each.records.header or ()) for each in parties if each.own and each.records]
    for own, header in headers:
        label = own.label.column if own.label else None
        if label is None or label in header:
            continue
        for other, names in headers:
            if label in names and own.data and other.data:
                message = f"column '{label}' is in {other.data.source}, not in {own.data.source}"
                fix = f"swap them in [data] of {own.path} and {other.path} if they were exchanged"
                yield failure("data", message, fix, code="tables-swapped")


def _check_label_elsewhere(
    files: Sequence[PartyFile], columns: Mapping[str, party_file.PartyColumns]
) -> Iterator[CheckFinding]:
    """Warn if a column of a secondary has the name of the label; only those who have both files can see it."""
    primary = next((own for own in files if own.role is Role.PRIMARY), None)
    for own in files:
        features = columns[own.name].features if own.name in columns else None
        if primary is None or own is primary:
            continue
        if twin := party_file.label_among_features(primary, own, features or ()):
            message = f"feature '{twin}' of {own.party} has the name of the label, which it may give away"
            fix = f"drop it in {own.path}: [features] drop; if it is meant, list it in features.columns"
            yield warning("label", message, fix, code="label-in-secondary")


def _check_party(
    party: _PartyInput, job: Job | None, estimate: CostEstimate | None, now: datetime, call_peers: bool
) -> CheckSection:
    own = party.own
    if own is None:
        return CheckSection(f"party file {party.path}", tuple(party.findings))
    findings = list(party.findings)
    if job and estimate:
        case = table.PartyInJob(job, own, party.records, party.columns, estimate, party.tokens)
        member = own.party in job.parties
        findings += run_checks(JOB_CHECKS if member else JOB_CHECKS[:1], case)
        if member and call_peers:
            findings += run_checks([("peers", partial(check_peers, load_credentials(own, now)))], case)
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
    findings, columns = [*_check_filled_in("party file", path), *of_table], None
    if records and job and own.party in job.parties:
        columns, of_columns = table.check_columns(own, job, records)
        findings += of_columns
    tokens = table.count_tokens(job, own, records) if job and own.party in job.parties else {}
    return _PartyInput(path, findings, own, records, columns, tokens)


def _check_filled_in(check: str, path: Path) -> Iterator[CheckFinding]:
    """Check that no line has the mark of `fedsim init` for what only its users know."""
    try:
        toml_file.require_filled_in(path)
    except SettingError as error:
        yield error_finding(check, error)
    else:
        yield ok(check, str(path))


def _file_findings(check: str, error: FedSimError) -> list[CheckFinding]:
    """Report every fault of a file, in the order of its lines."""
    if not isinstance(error, toml_file.ConfigFileError):
        return [error_finding(check, error)]
    return [error_finding(check, fault.message, code=fault.code) for fault in error.faults[:MAX_FAULTS]]


def _file_kind(path: Path) -> str:
    """Return "job" or "party" by the settings of a file, or nothing if it has neither or cannot be read."""
    try:
        keys = toml_file.parse_toml(toml_file.read_text_file(path), path).keys() & {"secondaries", "role"}
    except FedSimError:
        return ""
    return {"secondaries": "job", "role": "party"}[keys.pop()] if len(keys) == 1 else ""
