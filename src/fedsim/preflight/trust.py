"""Checks of membership, policy, approval, linkage key, certificates and clock."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile, columns_outside_policy, require_membership
from fedsim.config.policy import audit_command, policy_violations
from fedsim.errors import FedSimError
from fedsim.linkage.encoding import Key
from fedsim.preflight.finding import CheckedParty, CheckFinding, PartyInJob, error_finding, failure, info, ok, warning
from fedsim.protocol.certificates import read_certificates, read_key
from fedsim.protocol.tls import RENEWAL_DAYS, Credentials, read_credentials
from fedsim.runs.approval import require_approval

READABLE_BY_OTHERS = 0o077
FINGERPRINT_DIGITS = 12
MAX_CLOCK_SKEW = timedelta(minutes=5)  # between machines that share a disk


def check_membership(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that the party is in the job and that its identifiers have agreed names."""
    require_membership(case.job, case.own)
    yield ok("takes part", f"{case.own.party} is one of {len(case.job.parties)} parties")


def check_policy(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check the job against the party's own policy."""
    violations = policy_violations(case.job, case.own, None if case.table is None else len(case.table.frame))
    for violation in violations:
        change = f"agree on another job, or change [policy] in {case.own.path}"
        fix = audit_command(case.job, case.own) if violation.rule == "audit" else change
        yield failure("policy", violation.message, fix, code=violation.rule)
    columns = columns_outside_policy(case.job, case.own)
    if columns:
        message = f"policy.columns does not list {', '.join(columns)}"
        yield failure("policy", message, "list them, or use other columns", code="columns")
    if not violations:
        rules = len(case.own.policy.model_fields_set)
        yield ok("policy", f"the job meets all {rules} conditions" if rules else "no conditions")


def check_approval(case: PartyInJob) -> Iterator[CheckFinding]:
    """Check that the owner approved exactly this job and these columns."""
    header = case.table.header if case.table and case.columns else None
    yield ok("approval", require_approval(case.job, case.own, header))


# The linkage key


def check_linkage_key(case: PartyInJob) -> Iterator[CheckFinding]:
    """Show a fingerprint of key and schema, which the two parties of a linkage can compare."""
    for name, digits in key_fingerprints(case.job, case.own).items():
        grouped = " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
        yield info("linkage key", f"{grouped} for {name}: must be equal at both parties; compare by telephone")


def key_fingerprints(job: Job, own: PartyFile) -> dict[str, str]:
    """Return the first digits of the fingerprint of key and schema for every linkage of this party.

    Empty if the key cannot be read, which :func:`check_key_file` reports.
    """
    if own.linkage is None:
        return {}
    try:
        key = Key.read(own.linkage.key)
    except FedSimError:
        return {}
    linked = [name for name in job.secondaries if name == own.name or own.role == "primary"]
    return {name: job.secondaries[name].encoding.fingerprint(key)[:FINGERPRINT_DIGITS] for name in linked}


def check_key_file(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that the linkage key is readable, and only for its owner."""
    if place.own.linkage is None:
        return
    try:
        Key.read(place.own.linkage.key)
    except FedSimError as error:
        fix = "copy it from the other party over a secure channel; `fedsim key` creates the first one"
        yield error_finding("linkage key", error, fix)
        return
    yield from _check_private_file("linkage key", place.own.linkage.key)


def _check_private_file(check: str, path: Path) -> Iterator[CheckFinding]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # reported where the file is read
    if mode & READABLE_BY_OTHERS:
        message = f"{path} is readable for other users of this machine"
        yield warning(check, message, f"chmod 600 {path}", code="readable-by-others")


# Certificates, and the clock by which they are valid


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
        credentials = read_credentials(tls.authority, tls.certificate, tls.key, place.own.party, place.now)
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


def load_credentials(own: PartyFile, now: datetime) -> Credentials | None:
    """Return the party's credentials, or None if they are missing or invalid."""
    try:
        tls = own.tls
        return read_credentials(tls.authority, tls.certificate, tls.key, own.party, now) if tls else None
    except FedSimError:
        return None


def check_clock(place: CheckedParty) -> Iterator[CheckFinding]:
    """Check that no file of the party has a modification time in the future."""
    own = place.own
    files = [own.path, own.data.file if own.data else None, own.linkage.key if own.linkage else None]
    files += [own.tls.authority, own.tls.certificate, own.tls.key] if own.tls else []
    for path in filter(None, files):
        try:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except (OSError, OverflowError, ValueError):
            continue  # reported where the file is read
        if written - place.now > MAX_CLOCK_SKEW:
            message = f"{path} was modified at {written:%Y-%m-%d %H:%M} UTC, which is in the future"
            yield warning("clock", message, "set the clock; certificates depend on it", code="clock-behind")
            return
    yield ok("clock", f"{place.now:%Y-%m-%d %H:%M} UTC")
