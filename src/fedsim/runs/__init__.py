"""What a party stores about its runs: approvals, audit log, progress, ledger and the record of a finished run.

The record (:mod:`fedsim.runs.record`) loads polars; nothing else here does.
"""

from fedsim.runs.approval import Approval, ApprovalError, approve, find_approval, require_approval
from fedsim.runs.run_folder import AuditLog, PartyProgress, publish_progress, read_audit_log, read_ledger, run_path

__all__ = [
    "Approval",
    "ApprovalError",
    "AuditLog",
    "PartyProgress",
    "approve",
    "find_approval",
    "publish_progress",
    "read_audit_log",
    "read_ledger",
    "require_approval",
    "run_path",
]
