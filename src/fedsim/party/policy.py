"""Whether a party takes part in a job: its own rules, held against the job before any data is touched.

Every broken rule is a sentence that may be told to the other parties: it names settings of the job and demands of the
policy, never a column, a path or a number of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedsim.party.audit_demand import unaudited
from fedsim.party.demands import CutDemand
from fedsim.party.job import Job, SecondaryTerms
from fedsim.party.own_columns import beyond_policy
from fedsim.party.party_file import PartyFile
from fedsim.party.protection import CutTerms
from fedsim.protocol.parties import Role

Rule = Callable[[Job, PartyFile], Iterator[str]]


def refusals(job: Job, party_file: PartyFile, n_records: int | None = None) -> list[str]:
    """Every rule of the party's policy that the job breaks; empty: it takes part.

    Without ``n_records`` the rules on the table are left out: ask :func:`record_refusals` once it is read.
    """
    broken = [f"{party_file.party} {sentence}" for rule in _RULES for sentence in rule(job, party_file)]
    return broken if n_records is None else broken + record_refusals(party_file, n_records)


def record_refusals(party_file: PartyFile, n_records: int) -> list[str]:
    """Broken rules on the number of own records, which is itself not told."""
    least = party_file.policy.min_candidates
    if least is None or n_records >= least:
        return []
    return [f"{party_file.party} takes part with at least {least:,} records of its own, and has fewer"]


def hardening_of(terms: SecondaryTerms) -> list[str]:
    """The kinds of hardening the filters of one linkage go through, in order."""
    return [step.KIND for step in terms.encoding.hardening]


def _noise(job: Job, party_file: PartyFile) -> Iterator[str]:
    most = party_file.policy.max_tau
    for of_list, terms in _lists(job, party_file):
        if most is not None and (terms.tau is None or terms.tau > most):
            yield f"demands tau of at most {most:g}{of_list}, the job has {_noise_words(terms)}"


def _noise_words(terms: SecondaryTerms) -> str:
    if terms.tau is not None:
        return f"{terms.tau:g}"
    return "no noise" if terms.sigma is None else f"sigma {terms.sigma:g} and promises no tau"


def _partners(job: Job, party_file: PartyFile) -> Iterator[str]:
    least, most = party_file.policy.min_k, party_file.policy.max_k
    for of_list, terms in _lists(job, party_file):
        if least is not None and terms.k < least:
            yield f"demands k of at least {least}{of_list}, the job has {terms.k}"
        if most is not None and terms.k > most:
            yield f"demands k of at most {most}{of_list}, the job has {terms.k}"


def _hardening(job: Job, party_file: PartyFile) -> Iterator[str]:
    for of_list, terms in _lists(job, party_file):
        present = hardening_of(terms)
        for kind in party_file.policy.hardening:
            if kind not in present:
                yield f"demands filters hardened by {kind}{of_list}, the job has {' and '.join(present) or 'none'}"


def _blur(job: Job, party_file: PartyFile) -> Iterator[str]:
    most = party_file.policy.max_epsilon_per_km
    for of_list, terms in _lists(job, party_file):
        if most is not None and (terms.blur is None or terms.blur.epsilon_per_km > most):
            has = "none" if terms.blur is None else f"epsilon {terms.blur.epsilon_per_km:g} per km"
            yield f"demands places blurred with epsilon of at most {most:g} per km{of_list}, the job has {has}"


def _links(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy = party_file.policy
    for of_list, terms in _lists(job, party_file):
        if policy.min_degree is not None and terms.min_degree < policy.min_degree:
            yield f"demands min_degree of at least {policy.min_degree}{of_list}, the job has {terms.min_degree}"
        if policy.min_dummies is not None and terms.dummies < policy.min_dummies:
            yield f"demands dummies of at least {policy.min_dummies:g}{of_list}, the job has {terms.dummies:g}"
        if policy.hide_rows and not terms.hide_rows:
            yield f"demands hidden rows{of_list}, the job shows the primary which rows repeat"


def _cut(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy, protection = party_file.policy, job.protection
    least, noise = policy.min_feature_noise, protection.features.noise if protection.features else 0.0
    if least is not None and noise < least:
        yield f"demands noise of at least {least:g} deviations on features, the job has {noise:g}"
    yield from _cut_faults("activations", policy.activations, protection.activations)
    yield from _cut_faults("gradients", policy.gradients, protection.gradients)


def _cut_faults(what: str, demand: CutDemand | None, terms: CutTerms | None) -> Iterator[str]:
    if demand is None:
        return
    if terms is None:
        yield f"demands noise of at least {demand.min_noise:g} on {what}, the job has none"
        return
    if terms.noise < demand.min_noise:
        yield f"demands noise of at least {demand.min_noise:g} on {what}, the job has {terms.noise:g}"
    if demand.max_clip is not None and terms.clip > demand.max_clip:
        yield f"demands {what} clipped at {demand.max_clip:g} or less, the job has {terms.clip:g}"


def audit_refusals(job: Job, party_file: PartyFile) -> list[str]:
    """That the audit it demands is missing, if it is."""
    return [f"{party_file.party} {sentence}" for sentence in _audit(job, party_file)]


def _audit(job: Job, party_file: PartyFile) -> Iterator[str]:
    lacking, demand = unaudited(job, party_file), party_file.policy.audit
    if demand is not None and lacking:
        most = f"in which no attack on it gains more than {demand.limit:g}"
        yield f"demands an audit of this very job {most}, and {lacking}; its owner runs `fedsim audit`"


def _training(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy, training = party_file.policy, job.training
    if policy.methods is not None and training.method not in policy.methods:
        yield f"allows the methods {_all(policy.methods)}, the job has {training.method}"
    if policy.wire is not None and training.wire not in policy.wire:
        yield f"allows {_all(policy.wire)} on the wire, the job has {training.wire}"
    if policy.max_epochs is not None and training.epochs is None:
        yield f"allows at most {policy.max_epochs:,} epochs, the job leaves their number to the preset; state it"
    elif policy.max_epochs is not None and training.epochs is not None and training.epochs > policy.max_epochs:
        yield f"allows at most {policy.max_epochs:,} epochs, the job has {training.epochs:,}"


def _company(job: Job, party_file: PartyFile) -> Iterator[str]:
    policy = party_file.policy
    welcome = {Role.PRIMARY: policy.primary, Role.COORDINATOR: policy.coordinator, Role.SECONDARY: policy.secondaries}
    for party in job.parties:
        names = welcome[party.role]
        if names is not None and party != party_file.party and party.name not in names:
            yield f"works with the {party.role} {_all(names)} only, the job has {party.name}"


def _columns(job: Job, party_file: PartyFile) -> Iterator[str]:
    beyond = len(beyond_policy(job, party_file))
    if beyond:
        yield f"would use {beyond} of its columns against its own policy; its owner must change one of the two"


def _lists(job: Job, party_file: PartyFile) -> Iterator[tuple[str, SecondaryTerms]]:
    """The lists of partners a policy speaks about, each with words that tell it apart: a secondary minds its own."""
    for name, terms in job.secondaries.items():
        if party_file.role is not Role.SECONDARY:
            yield f" for secondary '{name}'", terms
        elif name == party_file.name:
            yield "", terms


def _all(words: tuple[str, ...]) -> str:
    return " or ".join(words) or "none"


_RULES: tuple[Rule, ...] = (
    _noise,
    _partners,
    _hardening,
    _blur,
    _links,
    _cut,
    _training,
    _company,
    _columns,
    _audit,
)
