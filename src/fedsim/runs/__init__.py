"""What a party stores about its runs: approvals, audit log, progress, ledger and the record of a finished run."""

__all__ = ["approval", "audit_log", "progress", "record", "run_folder"]
