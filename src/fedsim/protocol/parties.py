"""Roles and parties of a job, and text from peers made safe to print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from fedsim.errors import SettingError

# Who takes part in a job


PARTY_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class Role(StrEnum):
    """What a party does; a certificate is good for one role only."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Party:
    """A role and a name, as a certificate proves them.

    >>> str(Party(Role.SECONDARY, "rentals"))
    "secondary 'rentals'"
    """

    role: Role
    name: str

    def __post_init__(self) -> None:
        if not PARTY_NAME.fullmatch(self.name):
            raise SettingError(
                f"party name '{self.name[:60]}'; use up to 40 small letters, digits and '-', as in a host name"
            )

    def __str__(self) -> str:
        return f"{self.role} '{self.name}'"


# Words that come from a peer, made harmless for logs, terminals and the next peer


MAX_PEER_TEXT = 2000


def safe_peer_text(words: str) -> str:
    """One line of what can be printed.

    >>> safe_peer_text("disk full\\x1b[2J\\n")
    'disk full?[2J?'
    """
    return replace_unprintable(words[:MAX_PEER_TEXT])


def replace_unprintable(words: str) -> str:
    """All of it, without what steers a terminal."""
    return "".join(each if each.isprintable() else "?" for each in words)
