"""Docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
from itertools import groupby

ROLE = re.compile(r":\w+:`~?\.?(?:[\w.]*\.)?(\w+)(?:\(\))?`")
LITERAL = re.compile(r"``(.+?)``")


def plain(text: str) -> str:
    """Text on one line, without markup of its own but for code."""
    return " ".join(text.split()).replace("<", "&lt;")


def escaped(text: str) -> str:
    """Text for a cell of a table."""
    return plain(text).replace("|", "\\|")


def paragraphs(text: str | None) -> str:
    """The paragraphs of a command's help; one that is a command stands as code."""
    parts = [part.strip() for part in (text or "").split("\n\n")]
    return "\n".join(f"```text\n{part}\n```\n" if part.startswith("fedsim ") else f"{part}\n" for part in parts)


def markdown(docstring: str | None) -> str:
    """A docstring: examples as code, names as code, a drawing as it is."""
    lines = inspect.cleandoc(docstring or "").replace("\\b", "").split("\n")
    blocks = [list(block) for empty, block in groupby(lines, key=lambda line: not line.strip()) if not empty]
    return "\n".join(map(_block, blocks))


def _block(lines: list[str]) -> str:
    if len(lines) > 2 and lines[1] and set(lines[1]) == {"-"}:
        return f"**{lines[0]}**\n\n" + (_block(lines[2:]) if _is_example(lines[2]) else _terms(lines[2:]))
    if _is_example(lines[0]):
        return "```pycon\n" + "\n".join(lines) + "\n```\n"
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + "\n".join(lines) + "\n```\n"
    return _named("\n".join(lines).removesuffix("::").rstrip()) + "\n"


def _is_example(line: str) -> bool:
    return line.lstrip().startswith(">>>")


def _terms(lines: list[str]) -> str:
    """A section of NumPy's form: a name and its type, what it means indented below."""
    found = []
    for line in lines:
        name, colon, kind = line.partition(" : ")
        if line.startswith(" "):
            found.append(_named(f"    {line.strip()}"))
        else:
            found.append(f"\n`{name}`" + (f" ({_named(kind)})" if colon else "") + "\n:")
    return "\n".join(found).replace("\n:\n    ", "\n:   ").replace("\n:\n", "\n") + "\n"


def _named(text: str) -> str:
    """Names of code as code."""
    return LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", text))
