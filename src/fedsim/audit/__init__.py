"""The audit: attack one's own linkage and training before anything is shared, and compare with what the job claims."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.audit.report import AuditReport, AuditSettings
    from fedsim.audit.run import audit_job

_HOMES = {"AuditReport": "report", "AuditSettings": "report", "audit_job": "run"}

__all__ = ["AuditReport", "AuditSettings", "audit_job"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because torch takes seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.audit' has no attribute '{name}'")
    return getattr(import_module(f"fedsim.audit.{_HOMES[name]}"), name)
