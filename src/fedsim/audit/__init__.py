"""The audit: attack one's own linkage and training before anything is shared, and compare with what the job claims."""

from typing import TYPE_CHECKING

from fedsim._lazy import lazy_exports

if TYPE_CHECKING:
    from fedsim.audit.report import AuditReport, AuditSettings
    from fedsim.audit.run import audit_job

__all__ = ["AuditReport", "AuditSettings", "audit_job"]

__getattr__ = lazy_exports(__name__, {"report": ["AuditReport", "AuditSettings"], "run": ["audit_job"]})
