"""Settings of earlier versions that did not protect (docs/adr/0019 has the attacks), or that nobody needed.

A file that names one is refused, with the reason and what to use instead. What earlier versions wrote for a setting
that was not used still counts for the hash of a job, so that approvals, run folders and models remain valid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_BLUR = "blur places, or add noise to similarities with sigma"
_BLIND = "a coordinator without encodings could still locate records by shuffled distances"
_ACTIVATIONS = "a primary could subtract noise on activations by asking again"
_GRADIENTS = "noise on gradients averages out over the steps"
_EXCHANGE = "exchanged rows stay whole, so that one known value singles a record out"
_AVERAGES = "groups of two sizes together show single records"
_ROWS = "equal rows have equal activations, whose noise could be subtracted"
_PROMISE = "the primary can compute explanations anyway, so this was a promise that nobody could check"
_APPROVED = "the owner sees it before approving a job"
_DUMMIES = "random links stand out by their distance"

# By place in the file; * stands for the name of a secondary.
REMOVED_SETTINGS: Mapping[str, str] = {
    "protection.coordinator": f"{_BLIND}; remove it, and {_BLUR}",
    "protection.activations": f"{_ACTIVATIONS}; remove it, and add noise to features, or seal labels",
    "protection.gradients": f"{_GRADIENTS}; seal labels with gradients = 'none'",
    "protection.features.exchange_of": f"{_EXCHANGE}; use features = {{ noise = N }}",
    "protection.features.average_of": f"{_AVERAGES}; use features = {{ noise = N }}",
    "secondaries.*.hide_rows": f"{_ROWS}; remove it, and blur places",
    "secondaries.*.dummies": f"{_DUMMIES}; remove it, and blur places",
    "secondaries.*.aligned_with": "parties that share a key can join their tables; remove it, or link the secondary",
    "secondaries.*.explanations": f"{_PROMISE}; remove it",
    "training.start_from": "remove it; train the job from new weights",
    "training.joining": "remove it; train the job from new weights",
    "policy.min_k": f"{_APPROVED}; remove it",
    "policy.hardening": f"{_APPROVED}; remove it, and limit what an attack gains with audit",
    "policy.methods": f"{_APPROVED}; remove it",
    "policy.wire": f"{_APPROVED}; remove it",
    "policy.max_epochs": f"{_APPROVED}; remove it, and limit the epochs of a primary with max_total_epochs",
    "policy.max_repeated_epochs": "3 epochs may be repeated; remove it",
    "policy.max_links": "the audit log states the largest number; remove it, and limit new records with max_new_links",
    "policy.primary": "one list names all other parties; use parties",
    "policy.coordinator": "one list names all other parties; use parties",
    "policy.secondaries": "one list names all other parties; use parties",
    "telemetry.otlp": "a collector can scrape Prometheus metrics and read the log; remove it, and use metrics and logs",
    "data.password_file": "PostgreSQL has its own; remove it, and use PGPASSWORD or ~/.pgpass",
    "policy.explanations": f"{_PROMISE}; remove it",
    "policy.blind_coordinator": f"{_BLIND}; remove it, and require max_epsilon_per_km or min_sigma",
    "policy.activations": f"{_ACTIVATIONS}; remove it, and require min_feature_noise or sealed_labels",
    "policy.gradients": f"{_GRADIENTS}; remove it, and require sealed_labels",
    "policy.min_exchange_of": f"{_EXCHANGE}; remove it, and require min_feature_noise",
    "policy.min_average_of": f"{_AVERAGES}; remove it, and require min_feature_noise",
    "policy.hide_rows": f"{_ROWS}; remove it, and require max_epsilon_per_km",
    "policy.min_dummies": f"{_DUMMIES}; remove it, and require max_epsilon_per_km",
}
# What earlier versions wrote for a setting that was not used, in the section of protection and of a linked secondary.
_UNUSED_PROTECTION: Mapping[str, Any] = {"activations": None}
_UNUSED_TERMS: Mapping[str, Any] = {"dummies": 0.0, "hide_rows": False}


def removal_reason(location: Sequence[Any]) -> str:
    """Return why a setting was removed and what to use instead; empty for any other name.

    >>> removal_reason(("policy", "blind_coordinator")).rpartition("; ")[2]
    'remove it, and require max_epsilon_per_km or min_sigma'
    """
    names = [str(part) for part in location]
    if names[:1] == ["secondaries"] and len(names) > 1:
        names[1] = "*"
    return REMOVED_SETTINGS.get(".".join(names), "")


def with_unused(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job as earlier versions wrote them, which hashed them so."""
    return _map_sections(job, lambda section, unused: {**unused, **section})


def without_unused(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job of an earlier version without the removed ones that it did not use."""
    return _map_sections(job, lambda section, unused: dict(_used(section, unused)))


def _used(section: Mapping[str, Any], unused: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in section.items() if name not in unused or value != unused[name])


def _map_sections(
    job: Mapping[str, Any], change: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Change the sections that had removed settings; anything that is not a section stays as it is."""
    found, secondaries = dict(job), job.get("secondaries")
    if isinstance(found.get("protection"), Mapping):
        found["protection"] = change(found["protection"], _UNUSED_PROTECTION)
    if isinstance(secondaries, Mapping):
        found["secondaries"] = {
            name: change(terms, _UNUSED_TERMS) if isinstance(terms, Mapping) else terms
            for name, terms in secondaries.items()
        }
    return found
