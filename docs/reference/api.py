"""Generate the API reference from docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any

from prose import markdown

WIDEST = 90
STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class Part:
    """A page: its title and the modules it documents."""

    title: str
    modules: tuple[str, ...]


PARTS = {
    "fedsim": Part("Main functions and estimators", ("fedsim",)),
    "linkage": Part("Linkage and metrics", ("fedsim.linkage", "fedsim.linkage.metrics")),
    "encoding": Part(
        "Encodings", ("fedsim.linkage.encoding", "fedsim.linkage.encoding.quality", "fedsim.linkage.words")
    ),
    "training": Part("Training on arrays", ("fedsim.training", "fedsim.training.explain")),
    "privacy": Part(
        "Privacy", ("fedsim.privacy.bounds", "fedsim_lab.differential_privacy", "fedsim.privacy.mechanisms")
    ),
    "attack": Part(
        "Attacks",
        tuple(f"fedsim_audit.attacks.{name}_attacks" for name in ("similarity", "location", "cut_layer")),
    ),
    "data": Part("Tables and datasets", ("fedsim.data.table_reader", "fedsim.data.synthetic", "fedsim_lab.datasets")),
    "transport": Part("Transports", ("fedsim.protocol.transport",)),
}


def api_pages() -> dict[str, str]:
    """Return an overview and the text of every page by name."""
    rows = [f"| [{part.title}](api/{name}.md) | `{'`, `'.join(part.modules)}` |" for name, part in PARTS.items()]
    overview = ["# Python API\n", "| page | modules |\n|---|---|", *rows]
    return {"api": "\n".join(overview)} | {f"api/{name}": "\n".join(_page(part)) for name, part in PARTS.items()}


def _page(part: Part) -> Iterator[str]:
    yield f"# {part.title}\n"
    for name in part.modules:
        module = import_module(name)
        yield f"## `{name}`\n"
        yield markdown(module.__doc__)
        for public in public_names(module):
            yield from _entry(public, getattr(module, public))


def public_names(module: ModuleType) -> list[str]:
    """Return the names in ``__all__``, or else the public names a module defines."""
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
    """Return whether there is no signature to show: exceptions, protocols and type aliases."""
    if not inspect.isclass(thing):
        return not inspect.isroutine(thing)
    return issubclass(thing, BaseException) or getattr(thing, "_is_protocol", False)


def signature(name: str, thing: Any) -> str:
    """Return the signature without ``self``, on one line or with one parameter per line."""
    found = inspect.signature(thing)
    parameters, returns = list(_parameters(found)), "" if inspect.isclass(thing) else _returned(found)
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= WIDEST:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){returns}"


def _parameters(found: inspect.Signature) -> Iterator[str]:
    keyword = False
    for name, parameter in found.parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            yield "*"
        if name not in ("self", "cls"):
            yield STARS.get(parameter.kind, "") + name + _kind(parameter) + _default(parameter.default)


def _kind(parameter: inspect.Parameter) -> str:
    return "" if parameter.annotation is inspect.Parameter.empty else f": {_word(parameter.annotation)}"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, Enum):
        return f" = {value}"
    shown = repr(value)
    return " = ..." if "<" in shown or len(shown) > WIDEST // 2 else f" = {shown}"


def _returned(found: inspect.Signature) -> str:
    return "" if found.return_annotation is inspect.Signature.empty else f" -> {_word(found.return_annotation)}"


def _word(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _methods(thing: type) -> Iterator[str]:
    for name, method in vars(thing).items():
        plain = inspect.unwrap(getattr(method, "__func__", method))
        if name.startswith("_") or not (inspect.isfunction(plain) or isinstance(method, property)):
            continue
        doc = inspect.getdoc(getattr(thing, name))
        if not doc:
            continue
        call = name if isinstance(method, property) else " ".join(signature(name, plain).split())
        yield f"#### `{call}`\n"
        yield markdown(doc)
