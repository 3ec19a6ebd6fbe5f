"""Checks of membership, policy, approval, linkage key, certificates and clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile, TlsSettings, columns_outside_policy, require_membership
from fedsim.config.policy import audit_command, policy_violations
from fedsim.errors import FedSimError
from fedsim.linkage.encoding.key import Key
from fedsim.preflight.finding import (
    CheckedParty,
    CheckFinding,
    PartyInJob,
    failure,
    failure_from_message,
    info,
    ok,
    warning,
)
from fedsim.protocol.certificates import read_certificates, read_key
from fedsim.protocol.tls import RENEWAL_DAYS, Credentials, read_credentials
from fedsim.runs.approval import require_approval

# Whether a party may take part: its place in the job, its policy, its owner's word, and the key it shares


OTHER_USERS_MODE = 0o077  # rights of anybody but the owner
FINGERPRINT_DIGITS = 12


def check_membership(case: PartyInJob) -> Iterator[CheckFinding]:
    """The party is one of the job's, and its identifiers are names that were agreed on."""
    require_membership(case.job, case.own)
    yield ok("takes part", f"{case.own.party} is one of the {len(case.job.parties)} parties")


def check_linkage_key(case: PartyInJob) -> Iterator[CheckFinding]:
    """What both sides must have alike, to be compared by telephone."""
    for name, found in key_fingerprints(case.job, case.own).items():
        yield info(
            "linkage key", f"{_group_digits(found)} for {name}: the same digits at both sides, compare by telephone"
        )


def key_fingerprints(job: Job, own: PartyFile) -> dict[str, str]:
    """The first digits of the fingerprint of key and schema, for every list this party has a side of.

    None where the key cannot be read, which :func:`key_file` tells.
    """
    try:
        key = Key.read(own.linkage.key) if own.linkage else None
    except FedSimError:
        key = None
    if key is None:
        return {}
    linked = [name for name in job.secondaries if name == own.name or own.role == "primary"]
    return {name: job.secondaries[name].encoding.fingerprint(key)[:FINGERPRINT_DIGITS] for name in linked}


def check_key_file(place: CheckedParty) -> Iterator[CheckFinding]:
    """The linkage key can be read, by its owner alone."""
    if place.own.linkage is None:
        return
    try:
        Key.read(place.own.linkage.key)
    except FedSimError as error:
        yield failure_from_message(
            "linkage key", str(error), "get it from the other party over a safe way; `fedsim key` makes the first"
        )
        return
    yield from check_private_file("linkage key", place.own.linkage.key)


def check_policy(case: PartyInJob) -> Iterator[CheckFinding]:
    """Every rule of the party's own policy."""
    broken = policy_violations(case.job, case.own, None if case.table is None else len(case.table.frame))
    for violation in broken:
        change = f"agree on another job, or change [policy] in {case.own.path}"
        fix = audit_command(case.job, case.own) if violation.rule == "audit" else change
        yield failure("policy", violation.message, fix)
    beyond = columns_outside_policy(case.job, case.own)
    if beyond:
        yield failure("policy", f"policy.columns does not list {', '.join(beyond)}", "list them, or use other columns")
    if not broken:
        rules = len(case.own.policy.model_fields_set)
        yield ok("policy", f"the job keeps all {rules} rules" if rules else "none given, every job will do")


def check_approval(case: PartyInJob) -> Iterator[CheckFinding]:
    """The owner has said yes to exactly this."""
    header = case.table.header if case.table and case.columns else None
    yield ok("approval", require_approval(case.job, case.own, header))


def check_private_file(check: str, path: Path) -> Iterator[CheckFinding]:
    """A secret that other users of the machine can read."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads the file says why
    if mode & OTHER_USERS_MODE:
        yield warning(check, f"{path} can be read by other users of this machine", f"chmod 600 {path}")


def _group_digits(digits: str) -> str:
    """In fours, as people read aloud.

    >>> _group_digits("01e511251bb6")
    '01e5 1125 1bb6'
    """
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


# Certificates and the clock by which they are valid


MAX_CLOCK_SKEW = timedelta(minutes=5)  # between the clocks of machines that share a disk
NO_TLS_HINT = "make certificates with `fedsim certs`; without them only --insecure works, on one machine"


def check_certificate(place: CheckedParty) -> Iterator[CheckFinding]:
    """All three files, the same authority, this role and name, valid today and for some time."""
    tls = place.own.tls
    if tls is None:
        yield warning("certificate", "the party file has no [tls]", NO_TLS_HINT)
        return
    unread = list(_unreadable_files(tls))
    yield from unread
    if not unread:
        credentials = read_credentials(tls.authority, tls.certificate, tls.key, place.own.party, place.now)
        yield _days_left("the certificate", credentials.days_left(place.now))
        authority = min(each.not_valid_after_utc for each in read_certificates(tls.authority))
        if (days := (authority - place.now).days) < RENEWAL_DAYS:
            yield _days_left("the authority", days)
    yield from check_private_file("certificate", tls.key)


def load_credentials(own: PartyFile, now: datetime) -> Credentials | None:
    """What the party can show to a peer, if anything."""
    try:
        tls = own.tls
        return read_credentials(tls.authority, tls.certificate, tls.key, own.party, now) if tls else None
    except FedSimError:
        return None


def check_clock(place: CheckedParty) -> Iterator[CheckFinding]:
    """No file of the party was written in the future."""
    for path in _party_files(place.own):
        try:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except (OSError, OverflowError, ValueError):
            continue  # whoever reads the file says why
        if written - place.now > MAX_CLOCK_SKEW:
            yield warning(
                "clock",
                f"{path} was written at {written:%Y-%m-%d %H:%M} UTC, later than the clock here says",
                "set the clock; certificates depend on it",
            )
            return
    yield ok("clock", f"{place.now:%Y-%m-%d %H:%M} UTC")


def _unreadable_files(tls: TlsSettings) -> Iterator[CheckFinding]:
    for read, path in ((read_certificates, tls.authority), (read_certificates, tls.certificate), (read_key, tls.key)):
        try:
            read(path)
        except FedSimError as error:
            yield failure_from_message("certificate", str(error))


def _days_left(what: str, days: int) -> CheckFinding:
    if days < RENEWAL_DAYS:
        return warning("certificate", f"{what} ends in {days} days", "renew it: `fedsim certs --renew`")
    return info("certificate", f"{what} is good for {days:,} more days")


def _party_files(own: PartyFile) -> Iterator[Path]:
    yield own.path
    if own.data and own.data.file:
        yield own.data.file
    if own.linkage:
        yield own.linkage.key
    if own.tls:
        yield from (own.tls.authority, own.tls.certificate, own.tls.key)
