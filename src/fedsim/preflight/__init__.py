"""Checks of a job before it runs, and the estimate of its cost."""

from fedsim.preflight.check import CheckReport, check_job
from fedsim.preflight.estimate import CostEstimate, NetworkLink, estimate_cost

__all__ = ["CheckReport", "CostEstimate", "NetworkLink", "check_job", "estimate_cost"]
