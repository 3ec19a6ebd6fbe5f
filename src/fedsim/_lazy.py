"""Modules, and public names of a package, that are imported when they are first used."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose public names are defined in modules that take long to import.

    Parameters
    ----------
    package
        The name of the package, which is ``__name__`` in its ``__init__``.
    homes
        The public names by the module that defines them, relative to the package.

    Examples
    --------
    >>> lazy_exports("fedsim", {"errors": ["FedSimError"]})("FedSimError").__module__
    'fedsim.errors'
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(modules[name]), name)

    return get


class LazyModule:
    """A module that takes long to import, which the first use of one of its names does.

    Beside it, ``TYPE_CHECKING`` imports the module itself. (``importlib.util.LazyLoader`` is not safe with threads.)

    Parameters
    ----------
    module
        The full name of the module.

    Examples
    --------
    >>> LazyModule("fedsim.errors").FedSimError.__module__
    'fedsim.errors'
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)
