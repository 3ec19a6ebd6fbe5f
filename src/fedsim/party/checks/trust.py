"""Whether a party may take part: its place in the job, its policy, its owner's word, and the key it shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedsim.errors import FedSimError
from fedsim.linkage.encoding.key import Key
from fedsim.party.approval import approved
from fedsim.party.audit_demand import audit_command
from fedsim.party.checks.finding import Finding, failed, fails, ok, telling, warning
from fedsim.party.checks.subject import Case, Place
from fedsim.party.job import Job
from fedsim.party.own_columns import beyond_policy, check_in_job
from fedsim.party.party_file import PartyFile
from fedsim.party.policy import audit_refusals, refusals

OTHERS = 0o077  # rights of anybody but the owner
SHOWN = 12


def takes_part(case: Case) -> Iterator[Finding]:
    """The party is one of the job's, and its identifiers are names that were agreed on."""
    check_in_job(case.job, case.own)
    yield ok("takes part", f"{case.own.party} is one of the {len(case.job.parties)} parties")


def linkage_key(case: Case) -> Iterator[Finding]:
    """What both sides must have alike, to be compared by telephone."""
    for name, found in fingerprints(case.job, case.own).items():
        yield telling(
            "linkage key", f"{_spaced(found)} for {name}: the same digits at both sides, compare by telephone"
        )


def fingerprints(job: Job, own: PartyFile) -> dict[str, str]:
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
    return {name: job.secondaries[name].encoding.fingerprint(key)[:SHOWN] for name in linked}


def key_file(place: Place) -> Iterator[Finding]:
    """The linkage key can be read, by its owner alone."""
    if place.own.linkage is None:
        return
    try:
        Key.read(place.own.linkage.key)
    except FedSimError as error:
        yield failed(
            "linkage key", str(error), "get it from the other party over a safe way; `fedsim key` makes the first"
        )
        return
    yield from readable_by_others("linkage key", place.own.linkage.key)


def policy(case: Case) -> Iterator[Finding]:
    """Every rule of the party's own policy."""
    broken = refusals(case.job, case.own, None if case.table is None else len(case.table.frame))
    unaudited = audit_refusals(case.job, case.own)
    for sentence in broken:
        change = f"change the job with the others, or [policy] in {case.own.path}"
        yield fails("policy", sentence, audit_command(case.job, case.own) if sentence in unaudited else change)
    beyond = beyond_policy(case.job, case.own)
    if beyond:
        yield fails("policy", f"policy.columns does not list {', '.join(beyond)}", "list them, or use other columns")
    if not broken:
        rules = len(case.own.policy.model_fields_set)
        yield ok("policy", f"the job keeps all {rules} rules" if rules else "none given, every job will do")


def approval(case: Case) -> Iterator[Finding]:
    """The owner has said yes to exactly this."""
    header = case.table.header if case.table and case.columns else None
    yield ok("approval", approved(case.job, case.own, header))


def readable_by_others(check: str, path: Path) -> Iterator[Finding]:
    """A secret that other users of the machine can read."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads the file says why
    if mode & OTHERS:
        yield warning(check, f"{path} can be read by other users of this machine", f"chmod 600 {path}")


def _spaced(digits: str) -> str:
    """In fours, as people read aloud.

    >>> _spaced("01e511251bb6")
    '01e5 1125 1bb6'
    """
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
