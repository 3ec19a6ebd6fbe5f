"""Attacks tried one by one: one that cannot run leaves a sentence and the others alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedsim.attack.finding import Adversary, Finding
from fedsim.audit.rows import NOTHING, Guarantee, Row, Skipped
from fedsim.errors import FedSimError

GIB = 1 << 30


@dataclass(frozen=True)
class Attempt:
    """One attack that applies, with the bytes it needs at its worst."""

    who: Adversary
    what: str
    learns: str
    run: Callable[[], Finding]
    guarantee: Guarantee = NOTHING
    memory: float = 0.0


def tried(about: str, attempts: Iterable[Attempt], memory: int) -> tuple[list[Row], list[Skipped]]:
    """Run all that fit into the memory."""
    rows, skipped = [], []
    for attempt in attempts:
        if attempt.memory > memory:
            why = (
                f"it needs about {attempt.memory / GIB:.1f} GiB of memory, {memory / GIB:.1f} are free; "
                "audit fewer records (--most-records)"
            )
            skipped.append(Skipped(attempt.who, attempt.what, why))
            continue
        try:
            rows.append(Row(about, attempt.learns, attempt.run(), attempt.guarantee))
        except FedSimError as fault:
            skipped.append(Skipped(attempt.who, attempt.what, str(fault)))
    return rows, skipped
