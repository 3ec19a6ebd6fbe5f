"""Find the K partners of every record: exact search, soft linkage, diagnostics."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.linkage.files import load_encoded, load_links, save_encoded, save_links
    from fedsim.linkage.metrics import Metric, WeightedField, WeightedSum, distance_matrix, get_metric
    from fedsim.linkage.soft_linkage import Diagnostics, diagnose, fit_scale, link, similarities, topk

_HOMES = {
    **dict.fromkeys(("load_encoded", "load_links", "save_encoded", "save_links"), "files"),
    **dict.fromkeys(("Metric", "WeightedField", "WeightedSum", "distance_matrix", "get_metric"), "metrics"),
    **dict.fromkeys(("Diagnostics", "diagnose", "fit_scale", "link", "similarities", "topk"), "soft_linkage"),
}

__all__ = [
    "Diagnostics",
    "Metric",
    "WeightedField",
    "WeightedSum",
    "diagnose",
    "distance_matrix",
    "fit_scale",
    "get_metric",
    "link",
    "load_encoded",
    "load_links",
    "save_encoded",
    "save_links",
    "similarities",
    "topk",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that parts which need no numba never load it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim.linkage' has no attribute '{name}'")
    return getattr(import_module(f"fedsim.linkage.{_HOMES[name]}"), name)
