"""The reference of the library, from its docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from prose import markdown

WIDEST = 90


@dataclass(frozen=True)
class Part:
    """A page: its title, and the modules whose public names stand on it."""

    title: str
    modules: tuple[str, ...]


PARTS = {
    "fedsim": Part("Everyday names", ("fedsim",)),
    "linkage": Part("Linkage and metrics", ("fedsim.linkage", "fedsim.linkage.metric")),
    "encoding": Part("Encodings", ("fedsim.linkage.encoding",)),
    "training": Part("Training on arrays", ("fedsim.training", "fedsim.training.explain")),
    "privacy": Part("Privacy", ("fedsim.privacy.bounds", "fedsim.privacy.dp", "fedsim.privacy.mechanisms")),
    "attack": Part("Attacks", ("fedsim.attack",)),
    "data": Part("Tables and datasets", ("fedsim.data.readers", "fedsim.data.synthetic", "fedsim.data.datasets")),
    "transport": Part("Transports", ("fedsim.protocol.transport.base",)),
}


def api_pages() -> dict[str, str]:
    """The text of every page by its name."""
    return {name: "\n".join(_page(part)) for name, part in PARTS.items()}


def _page(part: Part) -> Iterator[str]:
    yield f"# {part.title}\n"
    for name in part.modules:
        module = import_module(name)
        yield f"## `{name}`\n"
        yield markdown(module.__doc__)
        for public in public_names(module):
            yield from _entry(public, getattr(module, public))


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: what it lists, or else what it defines without an underscore."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    return [name for name in listed if not name.startswith("_") and callable(getattr(module, name))]


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not _is_plain(thing):
        yield f"```python\n{signature(name, thing)}\n```\n"
    yield markdown(inspect.getdoc(thing))
    if inspect.isclass(thing):
        yield from _methods(thing)


def _is_plain(thing: Any) -> bool:
    """Whether there is nothing to call: exceptions, protocols and other names for types."""
    if not inspect.isclass(thing):
        return not inspect.isroutine(thing)
    return issubclass(thing, BaseException) or getattr(thing, "_is_protocol", False)


def signature(name: str, thing: Any) -> str:
    """How it is called, on one line or with one parameter a line."""
    found = inspect.signature(thing)
    if inspect.isclass(thing):
        found = found.replace(return_annotation=inspect.Signature.empty)
    line = f"{name}{found}".replace("'", "")
    if len(line) <= WIDEST:
        return line
    parameters = "".join(f"    {parameter},\n" for parameter in _marked(found))
    returns = "" if found.return_annotation is inspect.Signature.empty else f" -> {found.return_annotation}"
    return f"{name}(\n{parameters}){returns}".replace("'", "")


def _marked(found: inspect.Signature) -> Iterator[str]:
    keyword = False
    for parameter in found.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            yield "*"
        yield str(parameter)


def _methods(thing: type) -> Iterator[str]:
    for name, method in vars(thing).items():
        plain = inspect.unwrap(getattr(method, "__func__", method))
        if name.startswith("_") or not (inspect.isfunction(plain) or isinstance(method, property)):
            continue
        told = inspect.getdoc(getattr(thing, name))
        if not told:
            continue
        call = "" if isinstance(method, property) else _call(plain)
        yield f"#### `{name}{call}`\n"
        yield markdown(told)


def _call(method: Any) -> str:
    """How a method is called, its own object left out."""
    found = inspect.signature(method)
    others = [one for name, one in found.parameters.items() if name not in ("self", "cls")]
    return str(found.replace(parameters=others)).replace("'", "")
