"""Check a job against a party's policy, including the audit that the policy requires."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedsim.config.job import CutTerms, Job, SecondaryTerms
from fedsim.config.party_columns import columns_outside_policy
from fedsim.config.party_file import CutRequirement, PartyFile
from fedsim.protocol.messages import Role

# The audit that a policy demands: a report of exactly this job, on this party's own table, under its limit


AUDIT_FORMAT = "fedsim audit 1"
BROKEN_VERDICT = "broken"
FEATURE_INVERSION = "feature inversion"
# Who could learn something about a party of this role.
ADVERSARIES = {Role.PRIMARY: ("secondary",), Role.SECONDARY: ("primary", "coordinator"), Role.COORDINATOR: ()}


def audit_shortfall(job: Job, party_file: PartyFile) -> str:
    """What the audit on file lacks, as half a sentence that others may hear; empty: nothing, or none is demanded."""
    demand = party_file.policy.audit
    if demand is None:
        return ""
    report = _read_audit(audit_path(job, party_file))
    if report is None or report["hash"] != job.hash or str(party_file.party) not in report["tables"]:
        return "has run none"
    if any(finding["verdict"] == BROKEN_VERDICT for finding in report["findings"]):
        return "found a guarantee broken"
    tried = _attacks_on(party_file, report)
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
    words = ["fedsim", "audit", str(job_path), *map(str, files), "--out", str(_report_folder(job, party_file))]
    return " ".join(shlex.quote(word) for word in words)


def _report_folder(job: Job, party_file: PartyFile) -> Path:
    return audit_path(job, party_file).with_suffix("")


def _too_weak(party_file: PartyFile, report: dict[str, Any], tried: list[dict[str, Any]]) -> str:
    if _was_quick(report):
        return "has run a quick one alone, which tries too little to rely on (leave out --quick)"
    if party_file.role is Role.SECONDARY and not any(finding.get("attack") == FEATURE_INVERSION for finding in tried):
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


def _attacks_on(party_file: PartyFile, report: dict[str, Any]) -> list[dict[str, Any]]:
    """What others could learn about this party; a secondary minds its own linkage alone."""
    found = [finding for finding in report["findings"] if finding["adversary"] in ADVERSARIES[party_file.role]]
    if party_file.role is Role.SECONDARY:
        return [finding for finding in found if finding["about"] == party_file.name]
    return found


def _read_audit(path: Path) -> dict[str, Any] | None:
    """A report on file; one that cannot be read counts as none, since it can be written again."""
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return report if _is_report(report) else None


def _is_report(report: Any) -> bool:
    if not isinstance(report, dict) or report.get("format") != AUDIT_FORMAT:
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


# Whether a party takes part in a job: its own rules, held against the job before any data is touched
#
# Every broken rule is a sentence that may be told to the other parties: it names settings of the job and demands of the
# policy, never a column, a path or a number of records.


PolicyRule = Callable[[Job, PartyFile], Iterator[str]]


def policy_violations(job: Job, party_file: PartyFile, n_records: int | None = None) -> list[str]:
    """Every rule of the party's policy that the job breaks; empty: it takes part.

    Without ``n_records`` the rules on the table are left out: ask :func:`record_refusals` once it is read.
    """
    broken = [f"{party_file.party} {sentence}" for rule in _RULES for sentence in rule(job, party_file)]
    return broken if n_records is None else broken + record_count_violations(party_file, n_records)


def record_count_violations(party_file: PartyFile, n_records: int) -> list[str]:
    """Broken rules on the number of own records, which is itself not told."""
    least = party_file.policy.min_candidates
    if least is None or n_records >= least:
        return []
    return [f"{party_file.party} takes part with at least {least:,} records of its own, and has fewer"]


def hardening_steps(terms: SecondaryTerms) -> list[str]:
    """The kinds of hardening the filters of one linkage go through, in order."""
    return [step.KIND for step in terms.encoding.hardening]


def _check_noise(job: Job, party_file: PartyFile) -> Iterator[str]:
    most = party_file.policy.max_tau
    for of_list, terms in _relevant_lists(job, party_file):
        if most is not None and (terms.tau is None or terms.tau > most):
            yield f"demands tau of at most {most:g}{of_list}, the job has {_describe_tau(terms)}"


def _describe_tau(terms: SecondaryTerms) -> str:
    if terms.tau is not None:
        return f"{terms.tau:g}"
    return "no noise" if terms.sigma is None else f"sigma {terms.sigma:g} and promises no tau"


def _check_k(job: Job, party_file: PartyFile) -> Iterator[str]:
    least, most = party_file.policy.min_k, party_file.policy.max_k
    for of_list, terms in _relevant_lists(job, party_file):
        if least is not None and terms.k < least:
            yield f"demands k of at least {least}{of_list}, the job has {terms.k}"
        if most is not None and terms.k > most:
            yield f"demands k of at most {most}{of_list}, the job has {terms.k}"


def _check_hardening(job: Job, party_file: PartyFile) -> Iterator[str]:
    for of_list, terms in _relevant_lists(job, party_file):
        present = hardening_steps(terms)
        for kind in party_file.policy.hardening:
            if kind not in present:
                yield f"demands filters hardened by {kind}{of_list}, the job has {' and '.join(present) or 'none'}"


def _check_blur(job: Job, party_file: PartyFile) -> Iterator[str]:
    most = party_file.policy.max_epsilon_per_km
    for of_list, terms in _relevant_lists(job, party_file):
        if most is not None and (terms.blur is None or terms.blur.epsilon_per_km > most):
            has = "none" if terms.blur is None else f"epsilon {terms.blur.epsilon_per_km:g} per km"
            yield f"demands places blurred with epsilon of at most {most:g} per km{of_list}, the job has {has}"


def _check_links(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy = party_file.policy
    for of_list, terms in _relevant_lists(job, party_file):
        if policy.min_degree is not None and terms.min_degree < policy.min_degree:
            yield f"demands min_degree of at least {policy.min_degree}{of_list}, the job has {terms.min_degree}"
        if policy.min_dummies is not None and terms.dummies < policy.min_dummies:
            yield f"demands dummies of at least {policy.min_dummies:g}{of_list}, the job has {terms.dummies:g}"
        if policy.hide_rows and not terms.hide_rows:
            yield f"demands hidden rows{of_list}, the job shows the primary which rows repeat"


def _check_cut(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy, protection = party_file.policy, job.protection
    least, noise = policy.min_feature_noise, protection.features.noise if protection.features else 0.0
    if least is not None and noise < least:
        yield f"demands noise of at least {least:g} deviations on features, the job has {noise:g}"
    yield from _cut_violations("activations", policy.activations, protection.activations)
    yield from _cut_violations("gradients", policy.gradients, protection.gradients)


def _cut_violations(what: str, demand: CutRequirement | None, terms: CutTerms | None) -> Iterator[str]:
    if demand is None:
        return
    if terms is None:
        yield f"demands noise of at least {demand.min_noise:g} on {what}, the job has none"
        return
    if terms.noise < demand.min_noise:
        yield f"demands noise of at least {demand.min_noise:g} on {what}, the job has {terms.noise:g}"
    if demand.max_clip is not None and terms.clip > demand.max_clip:
        yield f"demands {what} clipped at {demand.max_clip:g} or less, the job has {terms.clip:g}"


def audit_violations(job: Job, party_file: PartyFile) -> list[str]:
    """That the audit it demands is missing, if it is."""
    return [f"{party_file.party} {sentence}" for sentence in _check_audit(job, party_file)]


def _check_audit(job: Job, party_file: PartyFile) -> Iterator[str]:
    lacking, demand = audit_shortfall(job, party_file), party_file.policy.audit
    if demand is not None and lacking:
        most = f"in which no attack on it gains more than {demand.limit:g}"
        yield f"demands an audit of this very job {most}, and {lacking}; its owner runs `fedsim audit`"


def _check_training(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy, training = party_file.policy, job.training
    if policy.methods is not None and training.method not in policy.methods:
        yield f"allows the methods {_join_words(policy.methods)}, the job has {training.method}"
    if policy.wire is not None and training.wire not in policy.wire:
        yield f"allows {_join_words(policy.wire)} on the wire, the job has {training.wire}"
    if policy.max_epochs is not None and training.epochs is None:
        yield f"allows at most {policy.max_epochs:,} epochs, the job leaves their number to the preset; state it"
    elif policy.max_epochs is not None and training.epochs is not None and training.epochs > policy.max_epochs:
        yield f"allows at most {policy.max_epochs:,} epochs, the job has {training.epochs:,}"


def _check_peers(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy = party_file.policy
    welcome = {Role.PRIMARY: policy.primary, Role.COORDINATOR: policy.coordinator, Role.SECONDARY: policy.secondaries}
    for party in job.parties:
        names = welcome[party.role]
        if names is not None and party != party_file.party and party.name not in names:
            yield f"works with the {party.role} {_join_words(names)} only, the job has {party.name}"


def _check_columns(job: Job, party_file: PartyFile) -> Iterator[str]:
    beyond = len(columns_outside_policy(job, party_file))
    if beyond:
        yield f"would use {beyond} of its columns against its own policy; its owner must change one of the two"


def _relevant_lists(job: Job, party_file: PartyFile) -> Iterator[tuple[str, SecondaryTerms]]:
    """The lists of partners a policy speaks about, each with words that tell it apart: a secondary minds its own."""
    for name, terms in job.secondaries.items():
        if party_file.role is not Role.SECONDARY:
            yield f" for secondary '{name}'", terms
        elif name == party_file.name:
            yield "", terms


def _join_words(words: tuple[str, ...]) -> str:
    return " or ".join(words) or "none"


_RULES: tuple[PolicyRule, ...] = (
    _check_noise,
    _check_k,
    _check_hardening,
    _check_blur,
    _check_links,
    _check_cut,
    _check_training,
    _check_peers,
    _check_columns,
    _check_audit,
)
