"""Attacks on one's own linkage and training before anything is shared, compared with what the job claims.

Importing this package registers the command ``fedsim audit``, the table of noise and
the document of ``fedsim privacy``, and what ``fedsim approve`` measures.
"""

from typing import TYPE_CHECKING

from fedsim.registry import COMMANDS, SERVICES, lazy_exports

if TYPE_CHECKING:
    from fedsim_audit.audit_report import AuditReport, AuditSettings
    from fedsim_audit.audit_run import audit_job

__all__ = ["AuditReport", "AuditSettings", "audit_job"]

__getattr__ = lazy_exports(__name__, {"audit_report": ["AuditReport", "AuditSettings"], "audit_run": ["audit_job"]})

COMMANDS.register("audit", "fedsim_audit.cli.audit_commands:audit")
for _name in ("governance", "table"):
    COMMANDS.register(f"privacy {_name}", f"fedsim_audit.cli.audit_commands:{_name}")
SERVICES.register("embedding-leaks", "fedsim_audit.split_attacks:describe_embeddings")
