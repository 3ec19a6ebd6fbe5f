"""The honest ladder on datasets, as a file says it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.experiment.arrays import Arrays
from fedsim.experiment.cases import Cases, Linkage
from fedsim.experiment.ladder import Learning, climbed
from fedsim.experiment.outline import SPLITS, read_words, section
from fedsim.experiment.results import Results
from fedsim.experiment.rung import Rung
from fedsim.experiment.study_run import Bench, missing, sampled


@dataclass(frozen=True)
class Short:
    """What is smaller when time is short."""

    records: int = 0
    epochs: int | None = None


@dataclass(frozen=True)
class LadderPart:
    """One dataset's ladder: who takes part, how many partners, how long networks train."""

    dataset: str
    secondaries: list[str] = field(default_factory=list)
    preset: str = "modern"
    records: int = 0
    k: int | None = None
    epochs: int | None = None
    fast: Short = field(default_factory=Short)

    def shortened(self) -> LadderPart:
        """The same where time is short."""
        return replace(self, records=self.fast.records or self.records, epochs=self.fast.epochs or self.epochs)

    def rungs(self) -> list[Rung]:
        """All that is trained."""
        return Learning(preset=self.preset, epochs=self.epochs).rungs()

    def cases(self, bench: Bench, splits: Sequence[str] = SPLITS) -> Iterator[Arrays]:
        """Every seed of every split."""
        dataset = sampled(self.dataset, bench.data, self.records)
        return Cases(dataset, Linkage(k=self.k), self.secondaries).each(splits, range(bench.seeds))


def read_ladders(path: Path) -> list[LadderPart]:
    """The ladders of a TOML file."""
    found = [
        section(LadderPart, {**words, "fast": section(Short, words.get("fast", {}), "parts.fast")}, "parts")
        for words in read_words(path).get("parts", [])
    ]
    if not found:
        raise SettingError(f"{path} has no [[parts]]; name at least one dataset")
    return found


def climb_all(parts: Sequence[LadderPart], bench: Bench) -> tuple[list[dict[str, Any]], list[str]]:
    """A ladder per dataset that is there, and a note for each that is not."""
    results, notes, ladders = Results(bench.out), [], []
    for part in parts:
        absent = missing(part.dataset, bench.data)
        if absent:
            notes.append(absent)
        else:
            ladders.append(climbed(part.cases(bench), part.rungs(), results, bench.tell).described())
    return ladders, notes
