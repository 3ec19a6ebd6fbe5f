"""What happened in training, as plain records and as lines of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import FileError
from fedsim.training.metrics import Metrics, goodness


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean training loss, validation loss and metrics, how long it took, whether it is the best so far."""

    number: int  # counts from 1
    loss: float
    validation_loss: float
    validation: Metrics
    seconds: float
    best: bool


History = tuple[Epoch, ...]


def best_of(history: History) -> Epoch | None:
    """The last epoch that was better than all before it."""
    return next((epoch for epoch in reversed(history) if epoch.best), None)


def is_better(metrics: Metrics, history: History) -> bool:
    """Whether an epoch with these validation metrics would be the best so far."""
    best = best_of(history)
    return best is None or goodness(metrics) > goodness(best.validation)


def has_ended(history: History, epochs: int, patience: int | None) -> bool:
    """All epochs done, or too many without a better one."""
    best = best_of(history)
    waited = len(history) - best.number if best else 0
    return len(history) >= epochs or (patience is not None and waited >= patience)


@dataclass(frozen=True)
class Journal:
    """A file with one JSON object per line: the start, every epoch, the end."""

    path: Path

    def begin(self, start: Mapping[str, Any], history: Sequence[Epoch]) -> None:
        """Write the file anew up to where a resumed run stands: a line lost to a kill comes back, none comes twice."""
        lines = [_line("start", start), *(_line("epoch", asdict(epoch)) for epoch in history)]
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text("".join(lines))
            part.replace(self.path)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one line and flush it to the disk."""
        try:
            with self.path.open("a") as file:
                file.write(_line(event, facts))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(self.path, error) from error


def _line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, **facts}) + "\n"


def _cannot_write(path: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {path}: {error.strerror}; check folder and space")
