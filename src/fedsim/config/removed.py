"""Settings of earlier versions that did not protect; docs/adr/0019 has the attacks.

A file that names one is refused, with the reason and what to use instead. What earlier versions wrote for a setting
that was not used still counts for the hash of a job, so that approvals, run folders and models remain valid.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_BLUR = "blur places, or add noise to similarities with sigma"
_BLIND = "a coordinator without encodings could still locate records by shuffled distances"

# By place in the file; * stands for the name of a secondary.
REMOVED_SETTINGS: Mapping[str, str] = {
    "protection.coordinator": f"{_BLIND}; remove it, and {_BLUR}",
    "policy.blind_coordinator": f"{_BLIND}; remove it, and require max_epsilon_per_km or min_sigma",
}


def removal_reason(location: Sequence[Any]) -> str:
    """Return why a setting was removed and what to use instead; empty for any other name.

    >>> removal_reason(("policy", "blind_coordinator")).rpartition("; ")[2]
    'remove it, and require max_epsilon_per_km or min_sigma'
    """
    names = [str(part) for part in location]
    if names[:1] == ["secondaries"] and len(names) > 1:
        names[1] = "*"
    return REMOVED_SETTINGS.get(".".join(names), "")
