"""Find the K partners of every record: exact search, soft linkage, diagnostics."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.linkage.choices import metric_named
    from fedsim.linkage.delta import Improvement, improvement, improvement_of
    from fedsim.linkage.diagnostics import Diagnostics, diagnose
    from fedsim.linkage.encoded_file import load_encoded, save_encoded
    from fedsim.linkage.links_file import load_links, save_links
    from fedsim.linkage.metric import Metric, distances
    from fedsim.linkage.metrics.weighted import Field, WeightedSum
    from fedsim.linkage.nearest import Plan, plan, topk
    from fedsim.linkage.soft import fit_scale, link, similarities

_HOMES = {
    "Diagnostics": "diagnostics",
    "Field": "metrics.weighted",
    "Improvement": "delta",
    "Metric": "metric",
    "Plan": "nearest",
    "WeightedSum": "metrics.weighted",
    "diagnose": "diagnostics",
    "distances": "metric",
    "fit_scale": "soft",
    "improvement": "delta",
    "improvement_of": "delta",
    "link": "soft",
    "load_encoded": "encoded_file",
    "load_links": "links_file",
    "metric_named": "choices",
    "plan": "nearest",
    "save_encoded": "encoded_file",
    "save_links": "links_file",
    "similarities": "soft",
    "topk": "nearest",
}

__all__ = [
    "Diagnostics",
    "Field",
    "Improvement",
    "Metric",
    "Plan",
    "WeightedSum",
    "diagnose",
    "distances",
    "fit_scale",
    "improvement",
    "improvement_of",
    "link",
    "load_encoded",
    "load_links",
    "metric_named",
    "plan",
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
