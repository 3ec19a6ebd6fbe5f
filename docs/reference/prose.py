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
    if lines[0].lstrip().startswith(">>>"):
        return "```pycon\n" + "\n".join(lines) + "\n```\n"
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + "\n".join(lines) + "\n```\n"
    text = "\n".join(lines).removesuffix("::").rstrip()
    return LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", text)) + "\n"
