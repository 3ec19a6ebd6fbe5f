"""A TOML file as a validated value; whatever is wrong is told with file, line, setting, value and what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from fedsim.errors import FileError, SettingError
from fedsim.party.toml_faults import all_faults, cut

LARGEST = 256 * 1024
DEEPEST = 32
# tomllib takes minutes for a key of a hundred thousand parts.
_DEEP = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEPEST}}}""")
_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_PIECE = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|\n|[\[\]{}]|[^"'#\n\[\]{}]+''',
    re.DOTALL,
)
_KEY = re.compile(r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[^"'=\n])+""")


class Section(BaseModel):
    """Settings that belong together; unknown ones are refused, types are taken as they are written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Document(Section):
    """The settings of a whole file."""

    _path: Path = PrivateAttr(default=Path())

    @property
    def path(self) -> Path:
        """The file it was read from; empty for one that was never in a file."""
        return self._path


class DocumentError(SettingError):
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


Read = TypeVar("Read", bound=Document)


def whole(low: int, high: int) -> Any:
    """A whole number in a range, for ``Annotated``; a title says what may be given, a description what it means."""
    return Field(ge=low, le=high, title=f"a whole number from {low:,} to {high:,}")


def real(above: float, most: float) -> Any:
    """A number in a range, for ``Annotated``."""
    return Field(gt=above, le=most, title=f"a number above {above:g} and up to {most:g}")


def read_document(kind: type[Read], path: Path) -> Read:
    """The file at ``path`` as a value of this kind."""
    text = file_text(path)
    words = toml_words(text, path)
    try:
        document = kind.model_validate(words, context={"folder": path.parent})
    except ValidationError as error:
        raise DocumentError(all_faults(error, kind, str(path), setting_lines(text))) from None
    document._path = path
    return document


def document_from(kind: type[Read], words: Mapping[str, Any], where: str) -> Read:
    """The same from settings that came another way, such as from JSON."""
    try:
        return kind.model_validate(words)
    except ValidationError as error:
        raise DocumentError(all_faults(error, kind, where, {})) from None


def file_text(path: Path) -> str:
    """A small text file, whole."""
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is no regular file but a folder, device or pipe; name the file itself")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "the system cannot look it up"
        raise FileError(f"cannot read {path}: {reason}; check the path") from error
    if len(content) > LARGEST:
        raise FileError(f"{path} is larger than {LARGEST // 1024} kB; such a file holds settings, never data")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise FileError(f"{path}, line {line}: the text is not UTF-8; save the file as UTF-8") from None


def toml_words(text: str, path: Path) -> dict[str, Any]:
    """What a text says in TOML."""
    deep = _DEEP.search(text)
    if deep:
        line = text[: deep.start()].count("\n") + 1
        raise FileError(f"{path}, line {line}: {DEEPEST} words joined by dots; no setting lies that deep")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        line = text.count("\n") + 1 if position is None or position[1] is None else int(position[1])
        reason = str(error)[: position.start()] if position else str(error)
        raise FileError(f"{path}, line {line}: this is no TOML: {cut(reason)}; correct the line") from None
    except (ValueError, RecursionError):
        raise FileError(f"{path} is no TOML: brackets too deep, a number too long or a date that is none") from None


def setting_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key of a text that is valid TOML; of what stands inside a value, nothing."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for line, statement in _statements(text):
        is_header = statement.startswith("[")
        key = _KEY.match(statement)
        if not is_header and key is None:
            continue
        # tomllib reads the key itself: it knows all about quotes and dots.
        place = _path(tomllib.loads(statement if is_header else f"{key[0] if key else ''}=0"))
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


def _path(words: Any) -> tuple[str, ...]:
    path: list[str] = []
    while isinstance(words, dict | list) and words:
        if isinstance(words, dict):
            path.append(next(iter(words)))
            words = words[path[-1]]
        else:
            words = words[0]
    return tuple(path)
