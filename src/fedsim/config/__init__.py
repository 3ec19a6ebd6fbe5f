"""Configuration: job files, party files and policies, with their JSON Schemas and documentation."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim.config.disclosure import Paragraph, describe_disclosure, privacy_guarantees, summarise_settings
    from fedsim.config.job import Job, read_job
    from fedsim.config.party_file import PartyFile, read_party_file
    from fedsim.config.policy import policy_violations

__all__ = [
    "Job",
    "Paragraph",
    "PartyFile",
    "describe_disclosure",
    "policy_violations",
    "privacy_guarantees",
    "read_job",
    "read_party_file",
    "summarise_settings",
]

# `fedsim explain` must not wait for pydantic, nor `fedsim check` for scipy.
_HOMES = {
    "disclosure": ["Paragraph", "describe_disclosure", "privacy_guarantees", "summarise_settings"],
    "job": ["Job", "read_job"],
    "party_file": ["PartyFile", "read_party_file"],
    "policy": ["policy_violations"],
}
__getattr__ = lazy_exports(__name__, _HOMES)
