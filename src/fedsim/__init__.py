"""Vertical federated learning on fuzzily linked records."""

from typing import TYPE_CHECKING

from fedsim.registry import lazy_exports
from fedsim.version import VERSION

if TYPE_CHECKING:
    from fedsim.data.splits import group_equal_records, group_split
    from fedsim.data.synthetic import city, generate_city
    from fedsim.errors import FedSimError
    from fedsim.estimator import FedSimClassifier, FedSimRegressor
    from fedsim.linkage import diagnose, link, load_links, save_links
    from fedsim.linkage.encoding import DateFilter, Key, NumericFilter, Schema, SchemaField, StringFilter
    from fedsim.types import EncodedTable, LinkageResult, Scale

__version__ = VERSION

__all__ = [
    "DateFilter",
    "EncodedTable",
    "FedSimClassifier",
    "FedSimError",
    "FedSimRegressor",
    "Key",
    "LinkageResult",
    "NumericFilter",
    "Scale",
    "Schema",
    "SchemaField",
    "StringFilter",
    "__version__",
    "city",
    "diagnose",
    "generate_city",
    "group_equal_records",
    "group_split",
    "link",
    "load_links",
    "save_links",
]

_HOMES = {
    "data.splits": ["group_equal_records", "group_split"],
    "data.synthetic": ["city", "generate_city"],
    "errors": ["FedSimError"],
    "estimator": ["FedSimClassifier", "FedSimRegressor"],
    "linkage": ["diagnose", "link", "load_links", "save_links"],
    "linkage.encoding": ["DateFilter", "Key", "NumericFilter", "Schema", "SchemaField", "StringFilter"],
    "types": ["EncodedTable", "LinkageResult", "Scale"],
}
__getattr__ = lazy_exports(__name__, _HOMES)  # numba and torch take seconds, `fedsim --help` must not


def __dir__() -> list[str]:
    return __all__
