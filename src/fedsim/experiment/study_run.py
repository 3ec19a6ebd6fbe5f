"""Train what a study asks for and gather its figures beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.datasets import SOURCES, Dataset, found, load
from fedsim.experiment.arrays import Arrays
from fedsim.experiment.cases import Cases, Linkage
from fedsim.experiment.results import Results
from fedsim.experiment.run import Tell, TrainRung, climb, key_of, trained
from fedsim.experiment.rung import Rung
from fedsim.experiment.study import FIGURE, OF_RUNGS, Part, Study
from fedsim.training.hooks import Hook

PERCENT = ("accuracy",)
SAMPLE_SEED = 5
Watch = Callable[[str], Sequence[Hook]]


@dataclass(frozen=True)
class Row:
    """One method on one dataset at one value of what is varied: our figures over the seeds, and the paper's."""

    dataset: str
    value: Any
    method: str
    measure: str
    unit: str
    values: tuple[float, ...]
    paper: FIGURE | None
    epoch_seconds: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def deviation(self) -> float:
        return float(np.std(self.values, ddof=min(1, len(self.values) - 1))) if self.values else float("nan")


@dataclass(frozen=True)
class Found:
    """What came of a study: rows, and what differs from the paper in data."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    lines: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


def unwatched(_: str) -> Sequence[Hook]:
    """Nobody looks at a training while it runs."""
    return ()


@dataclass(frozen=True)
class Bench:
    """Where datasets and results lie, how often everything is trained, who is told and who watches.

    ``tell`` hears of every training when it ends; ``watch`` gives the hooks of one that is called so.
    """

    data: Path
    out: Path
    seeds: int
    tell: Tell = print
    watch: Watch = unwatched

    def teller(self, place: str) -> Tell:
        """Tells of trainings at a place."""
        return lambda words: self.tell(f"{place}, {words}")

    def trainer(self, place: str) -> TrainRung:
        """Trains at a place, watched."""
        return lambda rung, arrays: trained(rung, arrays, self.watch(f"{place}, {rung.name}"))


class Turns:
    """Trainings one after the other, each told with its number, its place, and how many there are."""

    def __init__(self, results: Results, bench: Bench, total: int) -> None:
        self.results, self.bench, self.total, self.done = results, bench, total, 0

    def line(self, rung: Rung, arrays: Arrays, place: str) -> dict[str, Any]:
        """What is known of a training, after it where it is new."""
        self.done += 1
        here = f"[{self.done} of {self.total}] {place}"
        climb([arrays], [rung], self.results, self.bench.teller(here), self.bench.trainer(here))
        return self.results.line(key_of(rung, arrays))


def run_study(study: Study, bench: Bench) -> Found:
    """Train what is missing, part by part; a dataset that is not there is said to be missing."""
    rows, notes, lines = list[Row](), list[str](), list[Mapping[str, Any]]()
    turns = Turns(Results(bench.out), bench, sum(_count(part, bench) for part in study.parts))
    for part in study.parts:
        absent = missing(part.dataset, bench.data)
        if absent:
            notes += [absent, *_own_difference(part)]
            rows += [_row(part, value, rung, []) for value in part.values or [None] for rung in part.rungs_at(value)]
            continue
        notes += differences(part, dataset_of(part, bench.data))
        for value, rungs, cases in points(part, bench):
            place = part.place(value)
            here = [{**turns.line(rung, arrays, place), "value": value} for arrays in cases for rung in rungs]
            rows += [_row(part, value, rung, here[place :: len(rungs)]) for place, rung in enumerate(rungs)]
            lines += here
    return Found(tuple(rows), tuple(dict.fromkeys(notes)), tuple(lines))


def _count(part: Part, bench: Bench) -> int:
    """How many trainings a part has, where its data is there."""
    return 0 if missing(part.dataset, bench.data) else len(part.values or [None]) * len(part.rungs) * bench.seeds


def points(part: Part, bench: Bench) -> Iterator[tuple[Any, list[Rung], Iterator[Arrays]]]:
    """For every value of what is varied: the rungs, and the cases they are trained on."""
    whole = None if part.vary == "noise" else cases_of(part, bench.data)
    for value in part.values or [None]:
        here = at_value(part, value)
        cases = whole if whole and part.vary in (*OF_RUNGS, "", "split") else cases_of(here, bench.data)
        yield value, part.rungs_at(value), cases.each([here.split], range(bench.seeds))


def at_value(part: Part, value: Any) -> Part:
    """The part with what is varied at one value, where that is not a setting of the rungs."""
    if not part.vary or part.vary in OF_RUNGS or value is None:
        return part
    return replace(part, **{part.vary: value})


def cases_of(part: Part, data: Path) -> Cases:
    """The cases of a part; K is the largest that any rung asks for."""
    wanted = [part.k, *(part.values if part.vary == "k" else [])]
    k = max((number for number in wanted if number), default=None)
    return Cases(dataset_of(part, data), Linkage(k, part.metric, part.tau), part.secondaries)


def dataset_of(part: Part, data: Path) -> Dataset:
    """The dataset with as many primary records as the part asks for."""
    return sampled(part.dataset, data, part.records, part.noise)


def sampled(name: str, data: Path, records: int, noise: float = 0.0) -> Dataset:
    """A dataset with at most so many primary records (0: all), drawn the same way every time."""
    whole = load(name, data, noise=noise)
    if not records or len(whole.primary) <= records:
        return whole
    rows = np.random.default_rng(SAMPLE_SEED).choice(len(whole.primary), records, replace=False)
    return replace(whole, primary=replace(whole.primary, frame=whole.primary.frame[np.sort(rows)]))


def missing(name: str, data: Path) -> str:
    """What to get where a dataset is not there; nothing where it is."""
    here = next(each for each in found(data) if each.about.name == name)
    wanted = [file for file in here.missing if file.needed]
    if not wanted:
        return ""
    return f"{name}: not trained, {wanted[0].paths[0]} is not in the data folder; get it from {wanted[0].source}"


def differences(part: Part, dataset: Dataset) -> Iterator[str]:
    """What is not as in the paper: numbers of records, and what is known about the files."""
    about, counts = dataset.about, (len(dataset.primary), len(dataset.secondaries[0].table))
    if about.scores and counts != about.records[:2]:
        ours, papers = (" and ".join(f"{count:,}" for count in each) for each in (counts, about.records[:2]))
        yield f"{part.title}: {ours} records, the paper had {papers}"
    if about.note:
        yield f"{part.dataset}: {about.note}"
    yield from _own_difference(part)


def _own_difference(part: Part) -> Iterator[str]:
    if part.differs:
        yield f"{part.title}: {part.differs}"


def _row(part: Part, value: Any, rung: Rung, lines: Sequence[Mapping[str, Any]]) -> Row:
    times = 100.0 if part.measure in PERCENT else 1.0
    figures = tuple(times * line["test"][part.measure] for line in lines)
    seconds = [line["epoch_seconds"] for line in lines if "epoch_seconds" in line]
    unit = lines[0]["unit"] if lines and part.measure not in ("r2",) else ""
    paper = part.in_paper(rung, value) or _published(part, value, rung)
    return Row(
        part.title,
        value,
        rung.name,
        part.measure,
        unit,
        figures,
        paper,
        float(np.median(seconds)) if seconds else None,
    )


def _published(part: Part, value: Any, rung: Rung) -> FIGURE | None:
    """What the paper has for a dataset where the study names nothing: at this value, or where none changes the rung."""
    known = {} if part.paper else SOURCES[part.dataset].about.scores
    at_all_values = known.get(rung.name) if value is None or part.leaves(rung.key) else None
    score = known.get(f"{rung.name}, {value}", at_all_values)
    return None if score is None else (score.mean, score.deviation)
