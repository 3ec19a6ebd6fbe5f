"""Configuration: job files, party files and policies, with their JSON Schemas and documentation."""

from typing import TYPE_CHECKING

from fedsim._lazy import lazy_exports

if TYPE_CHECKING:
    from fedsim.config.job import Job, read_job
    from fedsim.config.party_file import PartyFile, read_party_file
    from fedsim.config.policy import policy_violations

__all__ = ["Job", "PartyFile", "policy_violations", "read_job", "read_party_file"]

# `fedsim explain` must not wait for pydantic.
_HOMES = {"job": ["Job", "read_job"], "party_file": ["PartyFile", "read_party_file"], "policy": ["policy_violations"]}
__getattr__ = lazy_exports(__name__, _HOMES)
