"""Configuration: job files, party files and policies, with their JSON Schemas and documentation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.config.job import Job, read_job
    from fedsim.config.party_file import PartyFile, read_party_file
    from fedsim.config.policy import policy_violations

_HOMES = {
    "Job": "fedsim.config.job",
    "PartyFile": "fedsim.config.party_file",
    "policy_violations": "fedsim.config.policy",
    "read_job": "fedsim.config.job",
    "read_party_file": "fedsim.config.party_file",
}

__all__ = ["Job", "PartyFile", "policy_violations", "read_job", "read_party_file"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `fedsim explain` must not wait for pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.config' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
