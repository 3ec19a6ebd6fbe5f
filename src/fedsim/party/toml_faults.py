"""What is wrong with a setting, in a sentence: its place, the value seen, what is allowed, the word probably meant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedsim.errors import nearest_word
from fedsim.protocol.words import printable

Lines = Mapping[tuple[str, ...], int]
_NAMES: dict[type, str] = {dict: "a table", list: "a list", type(None): "nothing"}


def all_faults(error: ValidationError, kind: type[BaseModel], where: str, lines: Lines) -> list[str]:
    """Every fault as a sentence with its line, in the order of the file."""
    faults = _once(error.errors(include_url=False), kind)
    placed = dict.fromkeys((_line(_location(fault), lines), _sentence(fault, kind)) for fault in faults)
    ordered = sorted(placed, key=lambda entry: entry[0])
    return [f"{where}{'' if math.isinf(line) else f', line {line:.0f}'}: {sentence}" for line, sentence in ordered]


def _once(faults: Sequence[Any], kind: type[BaseModel]) -> list[Any]:
    """The faults without the settings that are missing only because their names are misspelt."""
    misspelt = {
        (*fault["loc"][:-1], nearest_word(fault["loc"][-1], _known(kind, fault["loc"][:-1])))
        for fault in faults
        if fault["type"] == "extra_forbidden"
    }
    return [fault for fault in faults if fault["type"] != "missing" or fault["loc"] not in misspelt]


def _location(fault: Any) -> tuple[Any, ...]:
    at = getattr(fault.get("ctx", {}).get("error"), "at", ())
    return (*fault["loc"], *at)


def _line(location: tuple[Any, ...], lines: Lines) -> float:
    found = (lines[location[:end]] for end in range(len(location), 0, -1) if location[:end] in lines)
    return next(found, math.inf)


def _sentence(fault: Any, kind: type[BaseModel]) -> str:
    location = _location(fault)
    name = cut(".".join(str(part) for part in location))
    if fault["type"] == "extra_forbidden":
        return f"unknown setting '{name}'{_nearest(location[-1], _known(kind, location[:-1]))}"
    allowed, words = _meaning(kind, location)
    if fault["type"] == "missing":
        return f"the setting '{name}' is missing; " + (f"give {allowed}" if allowed else "add it")
    if fault["type"] == "value_error":
        reason = cut(str(fault["ctx"]["error"]), 400)
        return f"{name}: {reason}" if name else reason
    hint = _nearest(fault["input"], words) if words else f"; give {allowed or 'what the manual says'}"
    return f"{name} is {_shown(fault['input'])}{hint}"


def _nearest(word: Any, known: list[str]) -> str:
    near = nearest_word(cut(word), known) if isinstance(word, str) else ""
    return f"; did you mean '{near}'?" if near else f"; choose from {', '.join(known)}"


def _known(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """The settings of the section at this place."""
    section = _annotation(kind, location)[0]
    return [field.alias or name for name, field in section.model_fields.items()] if _is_section(section) else []


def _meaning(kind: type[BaseModel], location: tuple[Any, ...]) -> tuple[str, list[str]]:
    """What a setting may be: in words, and the list of words it is chosen from."""
    annotation, title = _annotation(kind, location)
    words = _words(annotation)
    section = f"a section [{'.'.join(map(str, location))}]" if _is_section(annotation) else ""
    return title or section or " or ".join(words), words


def _words(annotation: Any) -> list[str]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return [str(word) for word in annotation]
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


def _annotation(kind: type[BaseModel], location: tuple[Any, ...]) -> tuple[Any, str]:
    """Type and title of the setting at a place, or of the last one known on the way there."""
    annotation: Any = kind
    title = ""
    for part in location:
        if _is_section(annotation):
            fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
            if part not in fields:
                break
            annotation, title = _bare(fields[part].annotation), fields[part].title or ""
        elif get_origin(annotation) in (dict, tuple):
            annotation = _bare(get_args(annotation)[1 if get_origin(annotation) is dict else 0])
        else:
            break
    return annotation, title


def _bare(annotation: Any) -> Any:
    """The type inside ``Annotated`` and beside ``None``."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _shown(value: Any) -> str:
    """A value as the file writes it, cut short; tables and lists only by name."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a very large number"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return f"'{cut(value)}'"
    return next((name for kind, name in _NAMES.items() if isinstance(value, kind)), "a date or a time")


def cut(text: str, longest: int = 60) -> str:
    """Text fit for a message: on one line and not long.

    >>> cut("two\\nlines")
    'two?lines'
    """
    plain = printable(text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
