"""The traffic ledger: messages and bytes by phase, kind, sender and receiver."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from fedsim.protocol.messages import Message, Phase
from fedsim.protocol.parties import Party


@dataclass(frozen=True, order=True)
class LedgerEntry:
    """One line of the ledger."""

    phase: str
    kind: str
    sender: str
    receiver: str
    messages: int
    bytes: int


class Ledger:
    """Counts at one party; bytes are those of whole frames, sent again or not."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, str], list[int]] = {}
        self._lock = threading.Lock()

    def note(self, message: Message, sender: Party, receiver: Party, size: int, phase: Phase | None = None) -> None:
        """Count one frame; a phase is given where the message's own does not say it."""
        key = (phase or message.phase).value, message.kind, str(sender), str(receiver)
        with self._lock:
            counts = self._counts.setdefault(key, [0, 0])
            counts[0] += 1
            counts[1] += size

    def entries(self) -> list[LedgerEntry]:
        """All lines, in the order of the phases."""
        with self._lock:
            found = [LedgerEntry(*key, *counts) for key, counts in self._counts.items()]
        return _by_phase(found)

    @property
    def total_bytes(self) -> int:
        """Bytes of all frames, sent and received."""
        return sum(entry.bytes for entry in self.entries())


def sum_entries(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """One line for all that have the same phase, kind, sender and receiver."""
    counts: dict[tuple[str, str, str, str], list[int]] = {}
    for entry in entries:
        found = counts.setdefault((entry.phase, entry.kind, entry.sender, entry.receiver), [0, 0])
        found[0] += entry.messages
        found[1] += entry.bytes
    return _by_phase(LedgerEntry(*key, *found) for key, found in counts.items())


def merge_ledgers(ledgers: Iterable[Ledger]) -> list[LedgerEntry]:
    """The ledgers of all parties of one process, every frame counted once (each was noted by both its ends)."""
    found = {(e.phase, e.kind, e.sender, e.receiver): e for ledger in ledgers for e in ledger.entries()}
    return _by_phase(found.values())


def _by_phase(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    order = [phase.value for phase in Phase]
    return sorted(entries, key=lambda entry: (order.index(entry.phase), entry))
