"""Check a job against a party's policy, including the privacy audit that the policy requires."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.config.job import Job, SecondaryTerms
from fedsim.config.party_file import PartyFile, Policy, columns_outside_policy
from fedsim.protocol.messages import Role

AUDIT_FORMAT, AUDITS_FOLDER = "fedsim audit 2", "audits"
BROKEN_VERDICT = "broken"
FEATURE_INVERSION = "feature inversion"


@dataclass(frozen=True)
class PolicyViolation:
    """A condition of a policy that a job does not meet.

    ``rule`` is the setting of the policy. Other parties may read ``message``: it contains settings of the job and of
    the policy, never a column, a path or a number of records.
    """

    rule: str
    message: str


@dataclass(frozen=True)
class AuditShortfall:
    """Why an audit does not meet a policy; other parties may read ``message``."""

    code: str
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
    checks = (_check_linkage, _check_cut, _check_training_and_peers, _check_own)
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


def hardening_steps(terms: SecondaryTerms) -> list[str]:
    """Return the kinds of the hardening steps of one linkage, in order."""
    return [step.KIND for step in terms.encoding.hardening]


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
    for name, terms in (job.secondaries if secondary else job.lists).items():
        if secondary and name != party_file.name:
            continue  # a secondary is concerned by its own linkage only, or by that of the one it is aligned with
        where = "" if secondary else f" for secondary '{name}'"
        yield from _check_noise(terms, policy, where)
        if policy.max_k is not None and terms.k > policy.max_k:
            yield "max_k", f"requires k of at most {policy.max_k}{where}, but the job has {terms.k}"
        for rule, setting in (("min_k", "k"), ("min_degree", "min_degree")):
            least, value = getattr(policy, rule), getattr(terms, setting)
            if least is not None and value < least:
                yield rule, f"requires {setting} of at least {least}{where}, but the job has {value}"
        steps = hardening_steps(terms)
        for step in (step for step in policy.hardening if step not in steps):
            has = " and ".join(steps) or "none"
            yield "hardening", f"requires the hardening step {step}{where}, but the job has {has}"
        if most is not None and (terms.blur is None or terms.blur.epsilon_per_km > most):
            has = "no blur" if terms.blur is None else f"{terms.blur.epsilon_per_km:g}"
            message = f"requires a blur of at most epsilon {most:g} per km{where}, but the job has {has}"
            yield "max_epsilon_per_km", message
        if not policy.explanations and terms.explanations:
            yield "explanations", "requires explanations = false, but explanations of the job show its records"


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


def _check_training_and_peers(job: Job, party_file: PartyFile) -> Violations:
    policy, training = party_file.policy, job.training
    if policy.methods is not None and training.method not in policy.methods:
        yield "methods", f"accepts the methods {_join(policy.methods)}, but the job has {training.method}"
    if policy.wire is not None and training.wire not in policy.wire:
        yield "wire", f"accepts the wire formats {_join(policy.wire)}, but the job has {training.wire}"
    if policy.max_epochs is not None and (training.epochs is None or training.epochs > policy.max_epochs):
        unknown = "does not state the number; set training.epochs"
        has = unknown if training.epochs is None else f"has {training.epochs:,}"
        yield "max_epochs", f"accepts at most {policy.max_epochs:,} epochs, but the job {has}"
    rules = {Role.PRIMARY: "primary", Role.COORDINATOR: "coordinator", Role.SECONDARY: "secondaries"}
    for party in job.parties:
        names = getattr(policy, rules[party.role])
        if names is not None and party != party_file.party and party.name not in names:
            yield rules[party.role], f"accepts the {party.role} {_join(names)} only, but the job has {party.name}"


def _check_own(job: Job, party_file: PartyFile) -> Violations:
    """Check the party's own columns and audit."""
    n_columns = len(columns_outside_policy(job, party_file))
    if n_columns:
        message = f"would use {n_columns} columns that its own policy does not allow; its owner must change either"
        yield "columns", message
    missing, audit = audit_shortfall(job, party_file), party_file.policy.audit
    if audit is not None and missing is not None:
        required = f"requires an audit of this job in which no attack gains more than {audit.limit:g}"
        linked = "remove audit from its policy, or agree on a job in which it is linked"
        way_out = linked if is_aligned(job, party_file) else "its owner must run `fedsim audit`"
        yield "audit", f"{required}, but {missing.message}; {way_out}"


def _join(names: tuple[str, ...]) -> str:
    return " or ".join(names) or "none"


# The audit that a policy requires: a report about exactly this job, on this party's own table, within the limit


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


def is_aligned(job: Job, party_file: PartyFile) -> bool:
    """Whether a party is a secondary that is aligned with another, so that it has no linkage to audit."""
    secondary = party_file.role is Role.SECONDARY and party_file.name in job.secondaries
    return secondary and party_file.name not in job.lists


def audit_advice(job: Job, party_file: PartyFile) -> str:
    """Say how to audit a job for a party, or that nothing can."""
    if is_aligned(job, party_file):
        return "an audit cannot attack a secondary that is aligned with another"
    return f"run {audit_command(job, party_file)}"


def stored_audit(job: Job, party_file: PartyFile) -> dict[str, Any] | None:
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


def audit_shortfall(job: Job, party_file: PartyFile) -> AuditShortfall | None:
    """Return why the stored audit is not sufficient; None if it is, or if the policy requires none."""
    required = party_file.policy.audit
    if required is None:
        return None
    if is_aligned(job, party_file):
        return AuditShortfall("aligned", "an audit cannot attack a secondary that is aligned with another")
    report = stored_audit(job, party_file)
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
