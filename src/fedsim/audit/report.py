"""How thorough an audit is, and the report it returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsim.audit.attack_runner import AuditRow, SkippedAttack, Verdict
from fedsim.config.policy import AUDIT_FORMAT
from fedsim.errors import SettingError
from fedsim.validation import validate_integer

# How hard an audit tries, and what counts as too much


MIN_RECORDS = 20
DEFAULT_MEMORY = 4 << 30
FULL_EPOCHS, FULL_TARGETS = 3, 500  # of an audit that others may rely on


@dataclass(frozen=True)
class AuditSettings:
    """``limit`` is the largest advantage over blind guessing that may pass, on a scale from 0 to 1 (certainty).

    A place counts as found within ``metres``. Tables beyond ``most_records`` are sampled; ``targets`` is the number of
    records the slow attacks try, ``tries`` that of settings the advice tries for one finding; no attack runs that
    needs more than ``memory`` bytes.
    """

    limit: float = 0.01
    metres: float = 500.0
    seed: int = 0
    most_records: int = 5_000
    epochs: int = FULL_EPOCHS
    targets: int = FULL_TARGETS
    tries: int = 4
    memory: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        if not 0 <= self.limit < 1:
            raise SettingError(f"limit={self.limit}; an advantage over guessing lies from 0 to below 1")
        if not (math.isfinite(self.metres) and self.metres > 0):
            raise SettingError(f"metres={self.metres}; how near a guess must be is a number above 0")
        validate_integer(self.seed, "seed", least=0)
        validate_integer(self.most_records, "most_records", least=MIN_RECORDS)
        validate_integer(self.epochs, "epochs", least=1)
        validate_integer(self.targets, "targets", least=10)
        validate_integer(self.tries, "tries", least=0)

    @property
    def quick(self) -> bool:
        """Whether attacks had less to go by than usual: a first look, which an owner should not rely on."""
        return self.targets < FULL_TARGETS or self.epochs < FULL_EPOCHS

    def as_dict(self) -> dict[str, Any]:
        """What a reader must know to judge the figures, in types that JSON has."""
        return {
            "quick": self.quick,
            "most_records": self.most_records,
            "metres": self.metres,
            "epochs": self.epochs,
            "targets": self.targets,
            "seed": self.seed,
        }


# What an audit found, worst first


MEDIAN_ERROR_METRES = "median error in metres"


@dataclass(frozen=True)
class Advice:
    """A setting that was tried against a finding: whether it brings it under the limit, and what it costs."""

    about: str
    attack: str
    setting: str
    leak: float
    reached: bool
    cost: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class AuditReport:
    """All rows, what was left out, what to change; ``notes`` say how far the figures can be trusted."""

    job: str
    hash: str
    limit: float
    rows: tuple[AuditRow, ...]
    skipped: tuple[SkippedAttack, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    tables: tuple[str, ...] = ()  # the parties whose own tables were attacked
    settings: AuditSettings | None = None  # how hard it tried; a demanded audit must say

    @property
    def broken(self) -> tuple[AuditRow, ...]:
        """Rows that contradict what the job claims."""
        return tuple(row for row in self.rows if row.verdict is Verdict.BROKEN)

    @property
    def over(self) -> tuple[AuditRow, ...]:
        """Rows above the limit, worst first."""
        found = [row for row in self.rows if row.leak > self.limit]
        return tuple(sorted(found, key=lambda row: -row.leak))

    @property
    def headline(self) -> str:
        """The worst of it in one sentence."""
        if self.broken:
            worst = max(self.broken, key=lambda row: row.leak)
            return f"BROKEN: the job claims {worst.guarantee.sentence}, but {_achievement(worst)}"
        kept = [row for row in self.rows if row.found.attack == "greedy" and row.verdict is Verdict.KEPT]
        together = [
            row for row in self.rows if _uses_all_links(row) and kept and row.leak > (kept[0].guarantee.most or 0)
        ]
        if together:
            claim = kept[0].guarantee.sentence.removesuffix(" against the greedy attack")
            return f"{claim} holds against one similarity at a time, but {_achievement(_most_telling(together))}"
        if not self.over:
            return f"no attack that was tried gains more than {self.limit:g} over blind guessing"
        return f"{_achievement(self.over[0])[0].upper()}{_achievement(self.over[0])[1:]}"

    def as_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {
            "format": AUDIT_FORMAT,
            "headline": self.headline,
            "job": self.job,
            "hash": self.hash,
            "tables": list(self.tables),
            "limit": self.limit,
            "settings": None if self.settings is None else self.settings.as_dict(),
            "exceeds": bool(self.over) or bool(self.broken),
            "findings": [row.as_dict() for row in self.rows],
            "not_attacked": [skipped.as_dict() for skipped in self.skipped],
            "advice": [advice.as_dict() for advice in self.advice],
            "notes": list(self.notes),
        }


def _uses_all_links(row: AuditRow) -> bool:
    """Whether this is a stronger attack than the one tau speaks of, on the same links; whatever the limit is."""
    return MEDIAN_ERROR_METRES in row.found.figures or row.found.attack == "likelihood"


def _most_telling(rows: Sequence[AuditRow]) -> AuditRow:
    """The worst that ends in metres, which everyone understands; else the worst."""
    placed = [row for row in rows if MEDIAN_ERROR_METRES in row.found.figures]
    return max(placed or rows, key=lambda row: row.leak)


def _achievement(row: AuditRow) -> str:
    """What the attack does, as half a sentence."""
    found, who = row.found, f"the {row.found.adversary.value}"
    share = f"{100 * found.score.value:.3g} %"
    if MEDIAN_ERROR_METRES in found.figures:
        radius = row.learns.rpartition("within ")[2]
        return (
            f"all links together locate {share} of the records of {row.about} within {radius} (median "
            f"{found.figures[MEDIAN_ERROR_METRES]:,.0f} m; by {found.attack})"
        )
    if found.measure.startswith("share of partner filters"):
        return f"{who} finds the exact filter of {share} of the records of {row.about} ({found.attack})"
    if found.measure.startswith("share of distances"):
        return f"{who} finds the exact distance of {share} of the links with {row.about} ({found.attack})"
    return f"{who} learns {row.learns}: {found.measure} {found.score.value:.3g} ({found.attack})"
