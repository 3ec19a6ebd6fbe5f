"""Who takes part in a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from fedsim.errors import SettingError

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


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
        if not NAME.fullmatch(self.name):
            raise SettingError(
                f"party name '{self.name[:60]}'; use up to 40 small letters, digits and '-', as in a host name"
            )

    def __str__(self) -> str:
        return f"{self.role} '{self.name}'"
