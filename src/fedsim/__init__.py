"""Vertical federated learning on fuzzily linked records."""

from typing import TYPE_CHECKING

from fedsim._lazy import lazy_exports
from fedsim.version import VERSION

if TYPE_CHECKING:
    from fedsim.errors import FedSimError
    from fedsim.estimator import FedSimClassifier, FedSimRegressor
    from fedsim.linkage import diagnose, link, load_links, save_links
    from fedsim.types import EncodedTable, Links, Scale

__version__ = VERSION

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

_HOMES = {
    "errors": ["FedSimError"],
    "estimator": ["FedSimClassifier", "FedSimRegressor"],
    "linkage": ["diagnose", "link", "load_links", "save_links"],
    "types": ["EncodedTable", "Links", "Scale"],
}
__getattr__ = lazy_exports(__name__, _HOMES)  # numba and torch take seconds, `fedsim --help` must not
