"""Find the K partners of every record: exact search, soft linkage and diagnostics."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports

if TYPE_CHECKING:
    from fedsim.linkage.link_files import load_encoded, load_links, save_encoded, save_links
    from fedsim.linkage.metrics import Metric, WeightedField, WeightedSum, distance_matrix, get_metric
    from fedsim.linkage.soft_linkage import Diagnostics, diagnose, fit_scale, link, similarities, topk

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

_HOMES = {
    "link_files": ["load_encoded", "load_links", "save_encoded", "save_links"],
    "metrics": ["Metric", "WeightedField", "WeightedSum", "distance_matrix", "get_metric"],
    "soft_linkage": ["Diagnostics", "diagnose", "fit_scale", "link", "similarities", "topk"],
}
__getattr__ = lazy_exports(__name__, _HOMES)  # parts that need no numba never load it
