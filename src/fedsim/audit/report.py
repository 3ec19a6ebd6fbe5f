"""What an audit found, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsim.audit.rows import Row, Skipped, Verdict
from fedsim.audit.settings import Settings
from fedsim.party.audit_demand import FORMAT

METRES = "median error in metres"


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
class Report:
    """All rows, what was left out, what to change; ``notes`` say how far the figures can be trusted."""

    job: str
    hash: str
    limit: float
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    tables: tuple[str, ...] = ()  # the parties whose own tables were attacked
    settings: Settings | None = None  # how hard it tried; a demanded audit must say

    @property
    def broken(self) -> tuple[Row, ...]:
        """Rows that contradict what the job claims."""
        return tuple(row for row in self.rows if row.verdict is Verdict.BROKEN)

    @property
    def over(self) -> tuple[Row, ...]:
        """Rows above the limit, worst first."""
        found = [row for row in self.rows if row.leak > self.limit]
        return tuple(sorted(found, key=lambda row: -row.leak))

    @property
    def headline(self) -> str:
        """The worst of it in one sentence."""
        if self.broken:
            worst = max(self.broken, key=lambda row: row.leak)
            return f"BROKEN: the job claims {worst.guarantee.sentence}, but {_achieved(worst)}"
        kept = [row for row in self.rows if row.found.attack == "greedy" and row.verdict is Verdict.KEPT]
        together = [
            row for row in self.rows if _weighs_all_links(row) and kept and row.leak > (kept[0].guarantee.most or 0)
        ]
        if together:
            claim = kept[0].guarantee.sentence.removesuffix(" against the greedy attack")
            return f"{claim} holds against one similarity at a time, but {_achieved(_plainest(together))}"
        if not self.over:
            return f"no attack that was tried gains more than {self.limit:g} over blind guessing"
        return f"{_achieved(self.over[0])[0].upper()}{_achieved(self.over[0])[1:]}"

    def as_dict(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {
            "format": FORMAT,
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


def _weighs_all_links(row: Row) -> bool:
    """Whether this is a stronger attack than the one tau speaks of, on the same links; whatever the limit is."""
    return METRES in row.found.figures or row.found.attack == "likelihood"


def _plainest(rows: Sequence[Row]) -> Row:
    """The worst that ends in metres, which everyone understands; else the worst."""
    placed = [row for row in rows if METRES in row.found.figures]
    return max(placed or rows, key=lambda row: row.leak)


def _achieved(row: Row) -> str:
    """What the attack does, as half a sentence."""
    found, who = row.found, f"the {row.found.adversary.value}"
    share = f"{100 * found.score.value:.3g} %"
    if METRES in found.figures:
        radius = row.learns.rpartition("within ")[2]
        return (
            f"all links together locate {share} of the records of {row.about} within {radius} (median "
            f"{found.figures[METRES]:,.0f} m; by {found.attack})"
        )
    if found.measure.startswith("share of partner filters"):
        return f"{who} finds the exact filter of {share} of the records of {row.about} ({found.attack})"
    if found.measure.startswith("share of distances"):
        return f"{who} finds the exact distance of {share} of the links with {row.about} ({found.attack})"
    return f"{who} learns {row.learns}: {found.measure} {found.score.value:.3g} ({found.attack})"
