"""What a party's command prints when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedsim.protocol.ledger import Entry
from fedsim.report.words import duration, size

if TYPE_CHECKING:
    from fedsim.party.primary import Outcome


def outcome_lines(outcome: Outcome) -> list[str]:
    """How good the model is."""
    lines = [f"best epoch {outcome.best_epoch} of {outcome.epochs}"]
    for part, metrics in outcome.metrics.items():
        lines.append(f"{part:<10} " + "  ".join(f"{name} {value:.5g}" for name, value in metrics.items()))
    return lines


def ledger_lines(entries: Sequence[Entry], seconds: float) -> list[str]:
    """What crossed the border, one line per kind of message."""
    total = sum(entry.bytes for entry in entries)
    lines = [f"what crossed the border in {duration(seconds)}: {size(total)}"]
    for entry in entries:
        way = f"{entry.sender} -> {entry.receiver}"
        lines.append(f"  {entry.phase:<8}{entry.kind:<14}{way:<50}{entry.messages:>7,} x {size(entry.bytes):>9}")
    return lines
