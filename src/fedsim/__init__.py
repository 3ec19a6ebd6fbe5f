"""Vertical federated learning on fuzzily linked records."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim.version import VERSION

if TYPE_CHECKING:
    from fedsim.errors import FedSimError
    from fedsim.estimator import FedSimClassifier, FedSimRegressor
    from fedsim.linkage import diagnose, link, load_links, save_links
    from fedsim.types import EncodedTable, Links, Scale

__version__ = VERSION

_HOMES = {
    "EncodedTable": "fedsim.types",
    "FedSimClassifier": "fedsim.estimator",
    "FedSimError": "fedsim.errors",
    "FedSimRegressor": "fedsim.estimator",
    "Links": "fedsim.types",
    "Scale": "fedsim.types",
    "diagnose": "fedsim.linkage",
    "link": "fedsim.linkage",
    "load_links": "fedsim.linkage",
    "save_links": "fedsim.linkage",
}

__all__ = [
    "EncodedTable",
    "FedSimClassifier",
    "FedSimError",
    "FedSimRegressor",
    "Links",
    "Scale",
    "__version__",
    "diagnose",
    "link",
    "load_links",
    "save_links",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: numba and torch take seconds, ``fedsim --help`` must not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
