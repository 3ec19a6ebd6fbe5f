"""Check a job against a party's policy, including the privacy audit that the policy requires."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedsim.config.job import Job, SecondaryTerms
from fedsim.config.party_file import PartyFile, Policy, columns_outside_policy
from fedsim.config.stored_audit import BROKEN_VERDICT, FEATURE_INVERSION, attacks_on, read_stored_audit
from fedsim.linkage.direct.token_kinds import PlaceTokens
from fedsim.protocol.messages import Role


@dataclass(frozen=True)
class AuditShortfall:
    """Why an audit does not meet a policy; other parties may read ``message``."""

    code: str
    message: str


@dataclass(frozen=True)
class PolicyViolation:
    """A condition of a policy that a job does not meet.

    ``rule`` is the setting of the policy. Other parties may read ``message``: it contains settings of the job and of
    the policy, never a column, a path or a number of records.
    """

    rule: str
    message: str


def policy_violations(job: Job, party_file: PartyFile, n_records: int | None = None) -> list[PolicyViolation]:
    """Return every condition of the party's policy that the job does not meet.

    Parameters
    ----------
    job, party_file
        The job, and the party whose policy is checked.
    n_records
        Number of records of the party's table. Without it, conditions on the table are skipped; check them with
        :func:`record_count_violations` once the table has been read.

    Examples
    --------
    >>> [violation.rule for violation in policy_violations(job, party_file)]  # doctest: +SKIP
    ['max_tau', 'max_k']
    """
    checks = (_check_linkage, _check_counts, _check_share, _check_cut, _check_parties, _check_own)
    found = [violation for check in checks for violation in check(job, party_file)]
    broken = [PolicyViolation(rule, f"{party_file.party} {message}") for rule, message in found]
    return broken if n_records is None else broken + record_count_violations(party_file, n_records)


def record_count_violations(party_file: PartyFile, n_records: int) -> list[PolicyViolation]:
    """Check the number of own records; the message does not contain it."""
    least = party_file.policy.min_candidates
    if least is None or n_records >= least:
        return []
    message = f"{party_file.party} requires at least {least:,} records of its own and has fewer"
    return [PolicyViolation("min_candidates", message)]


# Each rule yields the setting of the policy and what the party requires.

Violations = Iterator[tuple[str, str]]


def _check_noise(terms: SecondaryTerms, policy: Policy, where: str) -> Violations:
    sigma = "no noise" if terms.sigma is None else f"sigma {terms.sigma:g}"
    if policy.max_tau is not None and (terms.tau is None or terms.tau > policy.max_tau):
        has = f"{sigma}, which does not bound tau" if terms.tau is None else f"{terms.tau:g}"
        yield "max_tau", f"requires tau of at most {policy.max_tau:g}{where}, but the job has {has}"
    if policy.min_sigma is not None and terms.tau is None and (terms.sigma or 0.0) < policy.min_sigma:
        yield "min_sigma", f"requires sigma of at least {policy.min_sigma:g}{where}, but the job has {sigma}"


def _check_linkage(job: Job, party_file: PartyFile) -> Violations:
    policy, most = party_file.policy, party_file.policy.max_epsilon_per_km
    secondary = party_file.role is Role.SECONDARY
    for name, terms in job.secondaries.items():
        if secondary and name != party_file.name:
            continue  # a secondary is concerned by its own linkage only
        where = "" if secondary else f" for secondary '{name}'"
        yield from _check_noise(terms, policy, where)
        if policy.max_k is not None and terms.k > policy.max_k:
            yield "max_k", f"requires k of at most {policy.max_k}{where}, but the job has {terms.k}"
        if most is not None and (terms.blur is None or terms.blur.epsilon_per_km > most):
            has = "no blur" if terms.blur is None else f"{terms.blur.epsilon_per_km:g}"
            message = f"requires a blur of at most epsilon {most:g} per km{where}, but the job has {has}"
            yield "max_epsilon_per_km", message
        yield from _check_tokens(terms, policy)


def _check_counts(job: Job, party_file: PartyFile) -> Violations:
    for rule in ("max_records", "max_record_uses"):
        if not job.kind.COUNTS_ROWS and getattr(party_file.policy, rule) is not None:
            yield (
                rule,
                f"has {rule}, but without a coordinator it cannot see which rows are used; it can set max_tokens",
            )


def _check_tokens(terms: SecondaryTerms, policy: Policy) -> Violations:
    kinds = () if terms.tokens is None else (field.kind for field in terms.tokens.fields)
    cells = [kind.metres for kind in kinds if isinstance(kind, PlaceTokens)]
    least = policy.min_cell_metres
    if least is not None and cells and min(cells) < least:
        yield "min_cell_metres", f"requires cells of at least {least:g} metres, but the job has {min(cells):g}"


def _check_share(job: Job, party_file: PartyFile) -> Violations:
    terms, least = job.secondaries.get(party_file.name), party_file.policy.min_m
    if terms is not None and least is not None and (terms.m or 1) < least:
        has = "single records" if terms.m is None else f"m = {terms.m}"
        yield "min_m", f"requires m of at least {least}, but the job has {has}"


def _check_cut(job: Job, party_file: PartyFile) -> Violations:
    policy, protection = party_file.policy, job.protection
    least, noise = policy.min_feature_noise, protection.features.noise if protection.features else 0.0
    if least is not None and noise < least:
        yield "min_feature_noise", f"requires feature noise of at least {least:g}, but the job has {noise:g}"
    if policy.sealed_labels and not protection.sealed:
        yield "sealed_labels", "requires sealed labels, but the job sends gradients"
    longest, days = policy.max_retention_days, protection.retention.days
    if longest is not None and protection.sealed and days > longest:
        message = f"accepts that activations are stored for at most {longest} days, but the job has {days}"
        yield "max_retention_days", message


def _check_parties(job: Job, party_file: PartyFile) -> Violations:
    names = party_file.policy.parties
    for party in job.parties:
        if names is not None and party != party_file.party and party.name not in names:
            yield "parties", f"accepts the parties {' or '.join(names) or 'none'} only, but the job has {party}"


def _check_own(job: Job, party_file: PartyFile) -> Violations:
    """Check the party's own columns and audit."""
    n_columns = len(columns_outside_policy(job, party_file))
    if n_columns:
        message = f"would use {n_columns} columns that its own policy does not allow; its owner must change either"
        yield "columns", message
    missing, audit = audit_shortfall(job, party_file), party_file.policy.audit
    if audit is not None and missing is not None:
        required = f"requires an audit of this job in which no attack gains more than {audit.limit:g}"
        yield "audit", f"{required}, but {missing.message}; its owner must run `fedsim audit`"


def audit_shortfall(job: Job, party_file: PartyFile) -> AuditShortfall | None:
    """Return why the stored audit is not sufficient; None if it is, or if the policy requires none."""
    required = party_file.policy.audit
    if required is None:
        return None
    report = read_stored_audit(job, party_file)
    if report is None:
        return AuditShortfall("missing", "has no audit report")
    if any(finding["verdict"] == BROKEN_VERDICT for finding in report["findings"]):
        return AuditShortfall("broken-guarantee", "its audit found a broken guarantee")
    return _audit_weakness(party_file, report, attacks_on(party_file, report), required.limit)


def _audit_weakness(
    party_file: PartyFile, report: dict[str, Any], attacks: list[dict[str, Any]], limit: float
) -> AuditShortfall | None:
    if not attacks:
        return AuditShortfall("no-attack", "its audit has no attack on this party")
    settings = report.get("settings")
    if not isinstance(settings, dict) or settings.get("quick") is not False:  # unknown counts as quick
        return AuditShortfall("quick", "its audit was run with --quick, which is not thorough enough")
    if party_file.role is Role.SECONDARY and all(finding.get("attack") != FEATURE_INVERSION for finding in attacks):
        message = "its audit has no attack on features (its page gives the reason)"
        return AuditShortfall("no-feature-attack", message)
    above = sum(not finding["leak"] <= limit for finding in attacks)  # NaN counts as above
    message = f"its audit has {above} {'attack' if above == 1 else 'attacks'} above the limit"
    return AuditShortfall("above-limit", message) if above else None
