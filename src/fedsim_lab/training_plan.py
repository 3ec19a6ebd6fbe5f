"""A plan of the trainings behind the paper's tables, the most valuable first.

A plan names studies, datasets, methods and seeds. It can be stopped at any time and continued anywhere, because every
training is stored when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.contribution.rungs import MessageCallback, Rung, SplitArrays, format_metrics
from fedsim.errors import SettingError
from fedsim_lab.stored_trainings import StoredTrainings, train_line
from fedsim_lab.study_config import PaperStudy, StudyPart, parse_section, read_study, read_toml
from fedsim_lab.study_runner import StudyContext, missing_data_note, rung_arrays, study_points


@dataclass(frozen=True)
class PlanStep:
    """Some trainings of one study.

    ``part`` is the title of a part of the study; ``values`` and ``rungs`` choose among those of the part, all by
    default.
    """

    study: str
    part: str
    seeds: int
    values: list[Any] = field(default_factory=list)
    rungs: list[str] = field(default_factory=list)

    def chosen_part(self, study: PaperStudy) -> StudyPart:
        """Return the part of the study with the values and rungs of this step."""
        found = next((part for part in study.parts if part.title == self.part), None)
        if found is None:
            known = ", ".join(part.title for part in study.parts)
            raise SettingError(f"study '{self.study}' has no part '{self.part}'; choose {known}", code="unknown-part")
        return replace(found, values=self.values or found.values, rungs=self.rungs or found.rungs)

    @property
    def title(self) -> str:
        """A line for people."""
        words = [self.study, self.part, *map(str, self.values), ", ".join(self.rungs) or "all methods"]
        return f"{'; '.join(words)}; {self.seeds} seeds"


def read_plan_steps(path: Path) -> list[PlanStep]:
    """Read a plan from a TOML file; the studies are beside it."""
    found = [parse_section(PlanStep, words, "steps") for words in read_toml(path).get("steps", [])]
    if not found:
        raise SettingError(f"{path} has no [[steps]]; name at least one study", code="no-steps")
    return found


@dataclass(frozen=True)
class StepProgress:
    """How many of the trainings of a step are stored, and the processor hours behind those."""

    step: PlanStep
    stored: int
    total: int
    hours: float


@dataclass(frozen=True)
class TrainingPlan:
    """The steps of a plan file, carried out with the data of a folder and stored in a file."""

    path: Path
    data: Path | None
    stored: StoredTrainings

    def steps(self) -> list[PlanStep]:
        """Return the steps, the most valuable first."""
        return read_plan_steps(self.path)

    def trainings(self, step: PlanStep) -> Iterator[tuple[Rung, SplitArrays]]:
        """Yield the trainings of a step, seed by seed; none if its data is missing."""
        part = step.chosen_part(read_study(self.path.parent / f"{step.study}.toml"))
        if missing_data_note(part.dataset, self.data):
            return
        points = study_points(part, StudyContext(self.data, self.stored.path.parent, step.seeds))
        at_values = [(rungs, list(cases)) for _, rungs, cases in points]
        for seed in range(step.seeds):
            for rungs, cases in at_values:
                yield from ((rung, rung_arrays(rung, cases[seed])) for rung in rungs)

    def progress(self) -> Iterator[StepProgress]:
        """Yield how far each step is."""
        for step in self.steps():
            found = [(self.stored.is_current(*one), self.stored.find(*one)) for one in self.trainings(step)]
            hours = sum(line.get("cpu_seconds", line["seconds"]) for current, line in found if current and line) / 3600
            yield StepProgress(step, sum(current for current, _ in found), len(found), hours)

    def run(self, seconds: float, report: MessageCallback, clock: Callable[[], float] = time.monotonic) -> int:
        """Train what is missing, in order, and start no training after ``seconds``; return how many were run."""
        began, done = clock(), 0
        for step in self.steps():
            for rung, arrays in self.trainings(step):
                if self.stored.is_current(rung, arrays):
                    continue
                if clock() - began >= seconds:
                    return done
                line = train_line(rung, arrays)
                self.stored.add(line)
                done += 1
                where = f"{step.study}, {step.part}, {line['split']} split, seed {line['seed']}"
                spent = f"{line['epochs']} epochs, " if "epochs" in line else ""
                report(f"{where}: {rung.name}: {format_metrics(line['test'])} ({spent}{line['cpu_seconds']:.0f} s)")
        return done
