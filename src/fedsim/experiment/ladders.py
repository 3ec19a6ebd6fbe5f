"""The honest ladder on datasets, as a file says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.errors import SettingError
from fedsim.experiment.arrays import Arrays
from fedsim.experiment.cases import Cases, Linkage
from fedsim.experiment.ladder import Learning, climbed
from fedsim.experiment.outline import SPLITS, read_words, section
from fedsim.experiment.results import Results
from fedsim.experiment.run import numbered
from fedsim.experiment.rung import Rung
from fedsim.experiment.study_run import Bench, missing, sampled
from fedsim.experiment.worth import number


@dataclass(frozen=True)
class Short:
    """What is smaller when time is short."""

    records: int = 0
    epochs: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class LadderPart:
    """One dataset's ladder: who takes part, how many partners, how long networks train."""

    dataset: str
    secondaries: list[str] = field(default_factory=list)
    preset: str = "modern"
    records: int = 0
    k: int | None = None
    epochs: int | None = None
    batch: int | None = None
    fast: Short = field(default_factory=Short)

    def shortened(self) -> LadderPart:
        """The same where time is short."""
        kept = {name: value for name, value in asdict(self.fast).items() if value}
        return replace(self, **kept)

    def rungs(self) -> list[Rung]:
        """All that is trained."""
        return Learning(preset=self.preset, epochs=self.epochs, batch=self.batch).rungs()

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


@dataclass(frozen=True)
class Climbed:
    """Ladders as JSON has them, a note for each dataset that is not there, and the trainings behind them."""

    ladders: list[dict[str, Any]]
    notes: list[str]
    lines: list[Mapping[str, Any]]


def climb_all(parts: Sequence[LadderPart], bench: Bench) -> Climbed:
    """A ladder per dataset that is there."""
    results, found = Results(bench.out), Climbed([], [], [])
    told = replace(bench, tell=numbered(bench.tell, sum(_count(part, bench) for part in parts)))
    for part in parts:
        absent = missing(part.dataset, bench.data)
        if absent:
            found.notes.append(absent)
            continue
        at = part.dataset
        ladder = climbed(part.cases(bench), part.rungs(), results, told.teller(at), told.trainer(at))
        found.ladders.append(ladder.described())
        found.lines.extend(line for lines in ladder.lines.values() for line in lines)
    return found


def _count(part: LadderPart, bench: Bench) -> int:
    return 0 if missing(part.dataset, bench.data) else len(SPLITS) * bench.seeds * len(part.rungs())


def worth_line(ladder: Mapping[str, Any]) -> str:
    """A ladder's sentence, beside the truth where its data were generated.

    >>> worth_line({"job": "city", "worth": "This partner is worth 18 x 1000 S$ less error.", "truth": 19.71})
    'city: This partner is worth 18 x 1000 S$ less error. Known truth: 19.7.'
    """
    truth = f" Known truth: {number(ladder['truth'])}." if "truth" in ladder else ""
    return f"{ladder['job']}: {ladder['worth']}{truth}"
