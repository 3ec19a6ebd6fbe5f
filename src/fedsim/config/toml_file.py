"""Read a TOML file into a validated model and report every fault with file, line, value and what is allowed."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fedsim.errors import FileError, SettingError, nearest_word
from fedsim.protocol.messages import replace_unprintable

# What is wrong with a setting, in a sentence: its place, the value seen, what is allowed, the word probably meant


SettingLines = Mapping[tuple[str, ...], int]
_TYPE_NAMES: dict[type, str] = {dict: "a table", list: "a list", type(None): "nothing"}


def describe_faults(error: ValidationError, kind: type[BaseModel], where: str, lines: SettingLines) -> list[str]:
    """Every fault as a sentence with its line, in the order of the file."""
    faults = _without_misspelt(error.errors(include_url=False), kind)
    placed = dict.fromkeys((_line(_location(fault), lines), _sentence(fault, kind)) for fault in faults)
    ordered = sorted(placed, key=lambda entry: entry[0])
    return [f"{where}{'' if math.isinf(line) else f', line {line:.0f}'}: {sentence}" for line, sentence in ordered]


def _without_misspelt(faults: Sequence[Any], kind: type[BaseModel]) -> list[Any]:
    """The faults without the settings that are missing only because their names are misspelt."""
    misspelt = {
        (*fault["loc"][:-1], nearest_word(fault["loc"][-1], _known_settings(kind, fault["loc"][:-1])))
        for fault in faults
        if fault["type"] == "extra_forbidden"
    }
    return [fault for fault in faults if fault["type"] != "missing" or fault["loc"] not in misspelt]


def _location(fault: Any) -> tuple[Any, ...]:
    at = getattr(fault.get("ctx", {}).get("error"), "at", ())
    return (*fault["loc"], *at)


def _line(location: tuple[Any, ...], lines: SettingLines) -> float:
    found = (lines[location[:end]] for end in range(len(location), 0, -1) if location[:end] in lines)
    return next(found, math.inf)


def _sentence(fault: Any, kind: type[BaseModel]) -> str:
    location = _location(fault)
    name = shorten(".".join(str(part) for part in location))
    if fault["type"] == "extra_forbidden":
        return f"unknown setting '{name}'{_nearest(location[-1], _known_settings(kind, location[:-1]))}"
    allowed, words = _meaning(kind, location)
    if fault["type"] == "missing":
        return f"the setting '{name}' is missing; " + (f"give {allowed}" if allowed else "add it")
    if fault["type"] == "value_error":
        reason = shorten(str(fault["ctx"]["error"]), 400)
        return f"{name}: {reason}" if name else reason
    hint = _nearest(fault["input"], words) if words else f"; give {allowed or 'what the manual says'}"
    return f"{name} is {_format_value(fault['input'])}{hint}"


def _nearest(word: Any, known: list[str]) -> str:
    near = nearest_word(shorten(word), known) if isinstance(word, str) else ""
    return f"; did you mean '{near}'?" if near else f"; choose from {', '.join(known)}"


def _known_settings(kind: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """The settings of the section at this place."""
    section = _annotation(kind, location)[0]
    return [field.alias or name for name, field in section.model_fields.items()] if _is_section(section) else []


def _meaning(kind: type[BaseModel], location: tuple[Any, ...]) -> tuple[str, list[str]]:
    """What a setting may be: in words, and the list of words it is chosen from."""
    annotation, title = _annotation(kind, location)
    words = _allowed_words(annotation)
    section = f"a section [{'.'.join(map(str, location))}]" if _is_section(annotation) else ""
    return title or section or " or ".join(words), words


def _allowed_words(annotation: Any) -> list[str]:
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
            annotation, title = _inner_type(fields[part].annotation), fields[part].title or ""
        elif get_origin(annotation) in (dict, tuple):
            annotation = _inner_type(get_args(annotation)[1 if get_origin(annotation) is dict else 0])
        else:
            break
    return annotation, title


def _inner_type(annotation: Any) -> Any:
    """The type inside ``Annotated`` and beside ``None``."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _format_value(value: Any) -> str:
    """A value as the file writes it, cut short; tables and lists only by name."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a very large number"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return f"'{shorten(value)}'"
    return next((name for kind, name in _TYPE_NAMES.items() if isinstance(value, kind)), "a date or a time")


def shorten(text: str, longest: int = 60) -> str:
    """Text fit for a message: on one line and not long.

    >>> shorten("two\\nlines")
    'two?lines'
    """
    plain = replace_unprintable(text)
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


# A TOML file as a validated value; whatever is wrong is told with file, line, setting, value and what is allowed


MAX_FILE_BYTES = 256 * 1024
MAX_KEY_DEPTH = 32
# tomllib takes minutes for a key of a hundred thousand parts.
_DEEP = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_KEY_DEPTH}}}""")
_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_PIECE = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|\n|[\[\]{}]|[^"'#\n\[\]{}]+''',
    re.DOTALL,
)
_KEY = re.compile(r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[^"'=\n])+""")


class ConfigSection(BaseModel):
    """Settings that belong together; unknown ones are refused, types are taken as they are written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ConfigFile(ConfigSection):
    """The settings of a whole file."""

    _path: Path = PrivateAttr(default=Path())

    @property
    def path(self) -> Path:
        """The file it was read from; empty for one that was never in a file."""
        return self._path


class ConfigFileError(SettingError):
    """A file with faults: the message tells the first and how many follow, ``faults`` has all of them."""

    def __init__(self, faults: list[str]) -> None:
        more = len(faults) - 1
        others = f" ({more} more {'fault' if more == 1 else 'faults'} in this file)" if more else ""
        super().__init__(f"{faults[0]}{others}")
        self.faults = faults


class RuleError(SettingError):
    """A rule between settings is broken; ``at`` is the place to mend, below the section that knows the rule."""

    def __init__(self, sentence: str, *at: str) -> None:
        super().__init__(sentence)
        self.at = at


ConfigFileT = TypeVar("ConfigFileT", bound=ConfigFile)


def whole_number(low: int, high: int) -> Any:
    """A whole number in a range, for ``Annotated``; a title says what may be given, a description what it means."""
    return Field(ge=low, le=high, title=f"a whole number from {low:,} to {high:,}")


def real_number(above: float, most: float) -> Any:
    """A number in a range, for ``Annotated``."""
    return Field(gt=above, le=most, title=f"a number above {above:g} and up to {most:g}")


def read_config_file(kind: type[ConfigFileT], path: Path) -> ConfigFileT:
    """The file at ``path`` as a value of this kind."""
    text = read_text_file(path)
    words = parse_toml(text, path)
    try:
        document = kind.model_validate(words, context={"folder": path.parent})
    except ValidationError as error:
        raise ConfigFileError(describe_faults(error, kind, str(path), find_setting_lines(text))) from None
    document._path = path
    return document


def parse_config(kind: type[ConfigFileT], words: Mapping[str, Any], where: str) -> ConfigFileT:
    """The same from settings that came another way, such as from JSON."""
    try:
        return kind.model_validate(words)
    except ValidationError as error:
        raise ConfigFileError(describe_faults(error, kind, where, {})) from None


def read_text_file(path: Path) -> str:
    """A small text file, whole."""
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is no regular file but a folder, device or pipe; name the file itself")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "the system cannot look it up"
        raise FileError(f"cannot read {path}: {reason}; check the path") from error
    if len(content) > MAX_FILE_BYTES:
        raise FileError(f"{path} is larger than {MAX_FILE_BYTES // 1024} kB; such a file holds settings, never data")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FileError(f"{path}, line {line}: the text is not UTF-8; save the file as UTF-8") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """What a text says in TOML."""
    deep = _DEEP.search(text)
    if deep:
        line = text[: deep.start()].count("\n") + 1
        raise FileError(f"{path}, line {line}: {MAX_KEY_DEPTH} words joined by dots; no setting lies that deep")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        line = text.count("\n") + 1 if position is None or position[1] is None else int(position[1])
        reason = str(error)[: position.start()] if position else str(error)
        raise FileError(f"{path}, line {line}: this is no TOML: {shorten(reason)}; correct the line") from None
    except (ValueError, RecursionError):
        raise FileError(f"{path} is no TOML: brackets too deep, a number too long or a date that is none") from None


def find_setting_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key of a text that is valid TOML; of what stands inside a value, nothing."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for line, statement in _statements(text):
        is_header = statement.startswith("[")
        key = _KEY.match(statement)
        if not is_header and key is None:
            continue
        # tomllib reads the key itself: it knows all about quotes and dots.
        place = _key_path(tomllib.loads(statement if is_header else f"{key[0] if key else ''}=0"))
        table = place if is_header else table
        full = place if is_header else table + place
        for end in range(1, len(full) + 1):
            lines.setdefault(full[:end], line)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Headers and settings with the number of their first line, comments left out."""
    line, start, depth = 1, 1, 0
    parts: list[str] = []
    for piece in _PIECE.findall(text):
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        if piece == "\n" and depth <= 0:
            yield start, "".join(parts).strip()
            start, depth, parts = line + 1, 0, []
        elif not piece.startswith("#"):
            parts.append(piece)
        line += piece.count("\n")
    yield start, "".join(parts).strip()


def _key_path(words: Any) -> tuple[str, ...]:
    path: list[str] = []
    while isinstance(words, dict | list) and words:
        if isinstance(words, dict):
            path.append(next(iter(words)))
            words = words[path[-1]]
        else:
            words = words[0]
    return tuple(path)
