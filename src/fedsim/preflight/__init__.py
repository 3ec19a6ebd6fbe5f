"""Checks of a job before it runs, and the estimate of its cost; `fedsim.preflight.check.check_job` runs them all."""

__all__ = ["check", "estimate"]
