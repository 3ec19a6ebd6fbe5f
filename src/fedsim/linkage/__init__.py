"""Find the K partners of every record: exact search, soft linkage, diagnostics."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.linkage.files import load_encoded, load_links, save_encoded, save_links
    from fedsim.linkage.metrics import Metric, WeightedField, WeightedSum, distance_matrix, get_metric
    from fedsim.linkage.nearest import SearchPlan, plan_search, topk
    from fedsim.linkage.soft_linkage import (
        Diagnostics,
        Improvement,
        diagnose,
        fit_scale,
        improvement,
        improvement_from_links,
        link,
        similarities,
    )

_HOMES = {
    "Diagnostics": "soft_linkage",
    "Improvement": "soft_linkage",
    "Metric": "metrics",
    "SearchPlan": "nearest",
    "WeightedField": "metrics",
    "WeightedSum": "metrics",
    "diagnose": "soft_linkage",
    "distance_matrix": "metrics",
    "fit_scale": "soft_linkage",
    "get_metric": "metrics",
    "improvement": "soft_linkage",
    "improvement_from_links": "soft_linkage",
    "link": "soft_linkage",
    "load_encoded": "files",
    "load_links": "files",
    "plan_search": "nearest",
    "save_encoded": "files",
    "save_links": "files",
    "similarities": "soft_linkage",
    "topk": "nearest",
}

__all__ = [
    "Diagnostics",
    "Improvement",
    "Metric",
    "SearchPlan",
    "WeightedField",
    "WeightedSum",
    "diagnose",
    "distance_matrix",
    "fit_scale",
    "get_metric",
    "improvement",
    "improvement_from_links",
    "link",
    "load_encoded",
    "load_links",
    "plan_search",
    "save_encoded",
    "save_links",
    "similarities",
    "topk",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that parts which need no numba never load it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.linkage' has no attribute '{name}'")
    return getattr(import_module(f"fedsim.linkage.{_HOMES[name]}"), name)
