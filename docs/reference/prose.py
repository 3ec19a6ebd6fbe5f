"""Convert docstrings to Markdown."""

from __future__ import annotations

import inspect
import re
from itertools import groupby

ROLE = re.compile(r":\w+:`~?\.?(?:[\w.]*\.)?(\w+)(?:\(\))?`")
LITERAL = re.compile(r"``(.+?)``")


def plain(text: str) -> str:
    """Return text on one line with HTML escaped."""
    return " ".join(text.split()).replace("<", "&lt;")


def escaped(text: str) -> str:
    """Return text for a table cell."""
    return plain(text).replace("|", "\\|")


def paragraphs(text: str | None) -> str:
    """Return the paragraphs of a help text; example commands become code."""
    parts = [part.strip() for part in (text or "").split("\n\n")]
    return "\n".join(f"```text\n{part}\n```\n" if part.startswith("fedsim ") else f"{part}\n" for part in parts)


def markdown(docstring: str | None) -> str:
    """Convert a docstring: examples, names and drawings become code."""
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
    """Convert a NumPy-style section: name and type, with the description indented below."""
    found = []
    for line in lines:
        name, colon, kind = line.partition(" : ")
        if line.startswith(" "):
            found.append(_named(f"    {line.strip()}"))
        else:
            found.append(f"\n`{name}`" + (f" ({_named(kind)})" if colon else "") + "\n:")
    return "\n".join(found).replace("\n:\n    ", "\n:   ").replace("\n:\n", "\n") + "\n"


def _named(text: str) -> str:
    """Mark names and literals as code."""
    return LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", text))
