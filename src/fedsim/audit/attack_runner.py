"""Run attacks one by one and judge each result by the guarantee that the job claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from fedsim.attack.finding import Adversary, AttackFinding, IntervalEstimate, timed
from fedsim.errors import FedSimError
from fedsim.protocol.cut_layer import NoiseMeter

# What an audit says: one row per attack, with what was promised against it; and what was not attacked


INTERVAL_FACTOR = (
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

    def verdict(self, found: AttackFinding) -> Verdict:
        """Broken only beyond doubt: the low end of the score at 99.9 % lies above what was promised."""
        if self.most is None:
            return Verdict.UNTESTED if self.claimed else Verdict.NONE
        return Verdict.BROKEN if _lower_bound(found) > max(self.most, self.reached) else Verdict.KEPT


def is_build_check(found: AttackFinding) -> bool:
    """Whether this asks if a mechanism is there, and attacks nobody; its interval is four deviations wide already."""
    return found.attack.startswith(BUILD_CHECKS)


def _lower_bound(found: AttackFinding) -> float:
    score = found.score
    return score.low if is_build_check(found) else score.value - INTERVAL_FACTOR * (score.value - score.low)


NO_GUARANTEE = Guarantee("none")


@dataclass(frozen=True)
class AuditRow:
    """One attack on one linkage."""

    about: str  # the secondary whose linkage it is
    learns: str
    found: AttackFinding
    guarantee: Guarantee = NO_GUARANTEE

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
        return is_build_check(self.found)

    def as_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        found = asdict(self.found)
        found["adversary"] = self.found.adversary.value
        found["figures"] = {name: _finite_or_none(value) for name, value in self.found.figures.items()}
        found["seconds"] = _finite_or_none(self.found.seconds)
        return {
            "about": self.about,
            "learns": self.learns,
            **found,
            "leak": self.leak,
            "guarantee": self.guarantee.sentence,
            "promised_at_most": self.guarantee.most,
            "verdict": self.verdict.value,
        }


def _finite_or_none(value: float) -> float | None:
    """JSON has no number for what could not be measured."""
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class SkippedAttack:
    """What was not attacked, by whom it could be, and why it was not."""

    who: Adversary
    what: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {"adversary": self.who.value, "what": self.what, "why": self.why}


NEVER_ATTACKED = (
    SkippedAttack(
        Adversary.PRIMARY,
        "gradients made to steer a secondary's network (FSHA, URVFL)",
        "every party is taken to follow the protocol",
    ),
    SkippedAttack(Adversary.PRIMARY, "many jobs or many new records asked over time", "one linkage was looked at"),
    SkippedAttack(Adversary.SECONDARY, "poisoned features and backdoors", "they change the model and read nothing"),
    SkippedAttack(
        Adversary.COORDINATOR,
        "collusion: the key of one party in the coordinator's hands opens all filters",
        "nothing in the protocol stops it; only the choice of the coordinator does",
    ),
)


# Attacks tried one by one: one that cannot run leaves a sentence and the others alone


GIB = 1 << 30


@dataclass(frozen=True)
class PlannedAttack:
    """One attack that applies, with the bytes it needs at its worst."""

    who: Adversary
    what: str
    learns: str
    run: Callable[[], AttackFinding]
    guarantee: Guarantee = NO_GUARANTEE
    memory: float = 0.0


def run_attacks(
    about: str, attempts: Iterable[PlannedAttack], memory: int
) -> tuple[list[AuditRow], list[SkippedAttack]]:
    """Run all that fit into the memory."""
    rows, skipped = [], []
    for attempt in attempts:
        if attempt.memory > memory:
            why = (
                f"it needs about {attempt.memory / GIB:.1f} GiB of memory, {memory / GIB:.1f} are free; "
                "audit fewer records (--most-records)"
            )
            skipped.append(SkippedAttack(attempt.who, attempt.what, why))
            continue
        try:
            rows.append(AuditRow(about, attempt.learns, attempt.run(), attempt.guarantee))
        except FedSimError as fault:
            skipped.append(SkippedAttack(attempt.who, attempt.what, str(fault)))
    return rows, skipped


# How much of the noise that a job promises was really laid on what crosses the cut
#
# The mechanism is the one the parties use: where it lays less than it says, that is found here, whatever the attacks
# achieve. Whether a party's process calls it is for the tests of the parties.


CHECK_DEVIATIONS = 4.0  # deviations of chance


@timed
def missing_noise(laid: NoiseMeter, promised: float, who: Adversary, what: str) -> AttackFinding:
    """How much of the promised deviation is not there: a mechanism left out, not an attack."""
    missing = 1.0 - laid.deviation / promised
    doubt = CHECK_DEVIATIONS / math.sqrt(2.0 * laid.numbers) if laid.numbers else 0.0
    measure, knew = "share of the promised noise that is missing", "what was sent, before and after the noise"
    return AttackFinding(
        f"noise left out of {what}", who, measure, clipped_estimate(missing, doubt), 0.0, laid.numbers, knew
    )


def clipped_estimate(missing: float, doubt: float) -> IntervalEstimate:
    """A share and the doubt about it, as shares can be."""
    low, value, high = (min(1.0, max(0.0, missing + step)) for step in (-doubt, 0.0, doubt))
    return IntervalEstimate(value, low, high)
