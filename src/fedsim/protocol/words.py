"""Words that come from a peer, made harmless for logs, terminals and the next peer."""

from __future__ import annotations

MOST = 2000


def plain(words: str) -> str:
    """One line of what can be printed.

    >>> plain("disk full\\x1b[2J\\n")
    'disk full?[2J?'
    """
    return printable(words[:MOST])


def printable(words: str) -> str:
    """All of it, without what steers a terminal."""
    return "".join(each if each.isprintable() else "?" for each in words)
