"""Parts of a schema as plain dictionaries and back; whatever is not understood is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, TypeVar

from fedsim.errors import SettingError, nearest_word

Part = TypeVar("Part")


def describe(part: Any) -> dict[str, Any]:
    """The part's kind and settings, in types that JSON has.

    >>> from fedsim.linkage.encoding.numbers import NumericFilter
    >>> describe(NumericFilter(0, 100, 5))
    {'kind': 'numeric', 'low': 0.0, 'high': 100.0, 'threshold': 5.0, 'bits': 1024}
    """
    settings = {field.name: _to_plain(field.type, getattr(part, field.name)) for field in dataclasses.fields(part)}
    return {"kind": part.KIND, **settings}


def build(kinds: Mapping[str, type[Part]], described: object, where: str) -> Part:
    """The part that :func:`describe` described; ``where`` tells the reader of an error which one."""
    settings = dict(mapping(described, where))
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise SettingError(f"{where}: kind {kind!r} is unknown{nearest(kind, kinds)}")
    part: Any = kinds[kind]
    fields = {field.name: field for field in dataclasses.fields(part)}
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    check_keys(settings, fields, required, f"{where} ({kind})")
    built: Part = part(**{name: _from_plain(fields[name].type, name, value) for name, value in settings.items()})
    return built


def mapping(described: object, where: str) -> Mapping[str, Any]:
    """``described``, if it is a table of settings."""
    if not isinstance(described, Mapping):
        raise SettingError(f"{where} is no table of settings; write {{...}}")
    return described


def sequence(described: object, where: str) -> list[Any]:
    """``described``, if it is a list."""
    if not isinstance(described, list | tuple):
        raise SettingError(f"{where} is no list; write [...]")
    return list(described)


def check_keys(given: Iterable[str], known: Iterable[str], required: Iterable[str], where: str) -> None:
    """Every given key is known and every required one given."""
    given, known = list(given), list(known)
    for key in given:
        if key not in known:
            raise SettingError(f"{where}: unknown setting {key!r}{nearest(key, known)}")
    for key in required:
        if key not in given:
            raise SettingError(f"{where}: the setting {key!r} is missing; add it")


def nearest(word: object, valid: Iterable[str]) -> str:
    """The end of an error message: the valid word that was probably meant, or all of them.

    >>> nearest("treshold", ["low", "high", "threshold"])
    "; did you mean 'threshold'?"
    """
    close = nearest_word(word, valid)
    return f"; did you mean {close!r}?" if close else f"; choose from {', '.join(valid) or 'nothing'}"


def _to_plain(kind: object, value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple):
        return [float(item) for item in value]
    # 5 and 5.0 are one setting, and must have one fingerprint.
    return float(value) if kind == "float" else value


def _from_plain(kind: object, name: str, value: Any) -> Any:
    if kind == "date":
        try:
            return date.fromisoformat(value)
        except (TypeError, ValueError):
            raise SettingError(f"{name}={value!r} is no date; write it like 2001-12-31") from None
    return tuple(value) if isinstance(value, list) else value
