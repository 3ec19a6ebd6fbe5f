"""What an audit says: one row per attack, with what was promised against it; and what was not attacked."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from fedsim.attack.finding import Adversary, Finding

BEYOND_DOUBT = (
    3.29 / 1.96
)  # from the 95 % of an interval to 99.9 %: an audit makes many tests, and one error is too many
BUILD_CHECKS = ("row order", "noise left out of")  # a finding has no other word for its kind


class Verdict(Enum):
    """What an attack says of the guarantee."""

    KEPT = "kept"
    BROKEN = "broken"
    UNTESTED = "claimed, but this attack cannot test it"
    NONE = "no guarantee claimed"


@dataclass(frozen=True)
class Guarantee:
    """What the job claims against an attack, in a sentence; the score may be ``most``, none: nothing is claimed.

    ``reached`` is what the attack achieves on an honest build, where the claim supposes what is only nearly so.
    """

    sentence: str
    most: float | None = None
    claimed: bool = False  # where no score could contradict it
    reached: float = 0.0

    def verdict(self, found: Finding) -> Verdict:
        """Broken only beyond doubt: the low end of the score at 99.9 % lies above what was promised."""
        if self.most is None:
            return Verdict.UNTESTED if self.claimed else Verdict.NONE
        return Verdict.BROKEN if _low_end(found) > max(self.most, self.reached) else Verdict.KEPT


def checks_the_build(found: Finding) -> bool:
    """Whether this asks if a mechanism is there, and attacks nobody; its interval is four deviations wide already."""
    return found.attack.startswith(BUILD_CHECKS)


def _low_end(found: Finding) -> float:
    score = found.score
    return score.low if checks_the_build(found) else score.value - BEYOND_DOUBT * (score.value - score.low)


NOTHING = Guarantee("none")


@dataclass(frozen=True)
class Row:
    """One attack on one linkage."""

    about: str  # the secondary whose linkage it is
    learns: str
    found: Finding
    guarantee: Guarantee = NOTHING

    @property
    def verdict(self) -> Verdict:
        return self.guarantee.verdict(self.found)

    @property
    def leak(self) -> float:
        """Advantage over blind guessing as it was measured, from 0 to 1 (certainty).

        Not what is left of it beyond doubt: fewer records would then pass more easily. A check of the build has a
        doubt that it cannot lose, and nothing is gained by it.
        """
        return self.found.score.low if self.is_check else self.found.advantage

    @property
    def is_check(self) -> bool:
        return checks_the_build(self.found)

    def as_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        found = asdict(self.found)
        found["adversary"] = self.found.adversary.value
        found["figures"] = {name: _finite(value) for name, value in self.found.figures.items()}
        found["seconds"] = _finite(self.found.seconds)
        return {
            "about": self.about,
            "learns": self.learns,
            **found,
            "leak": self.leak,
            "guarantee": self.guarantee.sentence,
            "promised_at_most": self.guarantee.most,
            "verdict": self.verdict.value,
        }


def _finite(value: float) -> float | None:
    """JSON has no number for what could not be measured."""
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Skipped:
    """What was not attacked, by whom it could be, and why it was not."""

    who: Adversary
    what: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"adversary": self.who.value, "what": self.what, "why": self.why}


ALWAYS_SKIPPED = (
    Skipped(
        Adversary.PRIMARY,
        "gradients made to steer a secondary's network (FSHA, URVFL)",
        "every party is taken to follow the protocol",
    ),
    Skipped(Adversary.PRIMARY, "many jobs or many new records asked over time", "one linkage was looked at"),
    Skipped(Adversary.SECONDARY, "poisoned features and backdoors", "they change the model and read nothing"),
    Skipped(
        Adversary.COORDINATOR,
        "collusion: the key of one party in the coordinator's hands opens all filters",
        "nothing in the protocol stops it; only the choice of the coordinator does",
    ),
)
