"""Train the studies and ladders of the paper's datasets, or write them as a plan for a faster machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.contribution.ladder import RUNGS, format_number, train_ladder, with_settings
from fedsim.contribution.rungs import (
    LinkedSecondary,
    MessageCallback,
    ResultStore,
    Rung,
    RungTrainer,
    SplitArrays,
    numbered_progress,
    train_missing,
)
from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.registry import METHODS
from fedsim.splitnn.layers import FeatureTensors, PlainEncoder
from fedsim.storage.files import ensure_folder
from fedsim.training.loop import Hook
from fedsim.types import Features, Integers
from fedsim_lab.arrays_file import save_arrays
from fedsim_lab.dataset_cases import FIXED, HAMMING, DatasetCases, LinkageOverrides
from fedsim_lab.datasets.dataset import Dataset
from fedsim_lab.datasets.dataset_registry import SOURCES, find_datasets, load_dataset
from fedsim_lab.job_training import train_study_rung
from fedsim_lab.stored_trainings import StoredTrainings
from fedsim_lab.study_config import (
    RUNG_SETTINGS,
    SPLITS,
    PaperFigure,
    PaperStudy,
    StudyPart,
    parse_section,
    read_toml,
)
from fedsim_lab.worker_pool import (
    PLAN_FILE,
    PlannedTraining,
    add_to_plan,
    collect_results,
    log_line,
    read_plan,
    run_plan,
)

# Train what a study requires and collect its scores next to the paper's


PERCENT_MEASURES = ("accuracy",)
SAMPLE_SEED = 5
TRAINING_SHARE = 0.7
PAPER_SPLIT = FIXED
HookFactory = Callable[[str], Sequence[Hook]]


@dataclass(frozen=True)
class StudyRow:
    """One method on one dataset at one value of the varied setting: our scores over the seeds, and the paper's."""

    dataset: str
    value: Any
    method: str
    measure: str
    unit: str
    values: tuple[float, ...]
    paper: PaperFigure | None
    epoch_seconds: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def deviation(self) -> float:
        return float(np.std(self.values, ddof=min(1, len(self.values) - 1))) if self.values else float("nan")


@dataclass(frozen=True)
class StudyResult:
    """The result of a study: rows, and how the data differs from the paper's."""

    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]
    lines: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


def no_hooks(_: str) -> Sequence[Hook]:
    """Return no hooks."""
    return ()


@dataclass(frozen=True)
class StudyContext:
    """The folders of datasets and results, the number of seeds, and what happens during and after each training.

    ``workers`` is the number of processes that train at the same time. ``report`` is called with a line about every
    training when it ends; ``hooks`` returns the hooks of a training by its name. With ``stored``, studies train
    nothing and show what is among these trainings.
    """

    data: Path | None
    out: Path
    seeds: int
    report: MessageCallback = print
    hooks: HookFactory = no_hooks
    workers: int = 1
    stored: StoredTrainings | None = None

    def reporter(self, place: str) -> MessageCallback:
        """Return a function that reports a training, prefixed with its place in the study."""
        return lambda words: self.report(f"{place}, {words}")

    def trainer(self, place: str) -> RungTrainer:
        """Return a function that trains with the hooks of this place in the study."""
        return lambda rung, arrays: train_study_rung(rung, arrays, self.hooks(f"{place}, {rung.name}"))


EXACT_MEAN = "exact-mean"


def rung_arrays(rung: Rung, arrays: SplitArrays) -> SplitArrays:
    """Return what a rung of a study is trained on."""
    return with_mean_partner(arrays) if rung.key == EXACT_MEAN else arrays


def with_mean_partner(arrays: SplitArrays) -> SplitArrays:
    """Return the arrays with a further row in each secondary, the mean of the exact matches of the training records.

    It is the exact match of every record that has none, as in the authors' code; codes become columns of 0 and 1, so
    that they have a mean.
    """
    return replace(arrays, secondaries=tuple(_with_mean_row(one, arrays.split.train) for one in arrays.secondaries))


def _with_mean_row(linked: LinkedSecondary, train: Integers) -> LinkedSecondary:
    table = PlainEncoder(linked.features)(FeatureTensors.of(linked.features, torch.device("cpu"))).numpy()
    matches = linked.equal[linked.list_of[train]]
    known = table[matches[matches >= 0]] if (matches >= 0).any() else table
    mean = known.mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
    equal = np.where(linked.equal < 0, len(table), linked.equal).astype(np.int32)
    return replace(linked, features=Features(np.vstack([table, mean])), equal=equal)


class NumberedTrainings:
    """Sequential trainings, each reported with its number, the total and its place in the study."""

    def __init__(self, results: ResultStore, bench: StudyContext, total: int) -> None:
        self.results, self.bench, self.total, self.done = results, bench, total, 0

    def line(self, rung: Rung, arrays: SplitArrays, place: str) -> dict[str, Any] | None:
        """Return the result of a training, running it first if it is new; None if only stored ones are shown."""
        self.done += 1
        arrays = rung_arrays(rung, arrays)
        if self.bench.stored is not None:
            return self.bench.stored.find(rung, arrays)
        here = f"[{self.done} of {self.total}] {place}"
        train_missing([arrays], [rung], self.results, self.bench.reporter(here), self.bench.trainer(here))
        return self.results.line(rung.result_key(arrays))


def run_study(study: PaperStudy, bench: StudyContext) -> StudyResult:
    """Train what is missing, part by part; a note names each dataset that is missing."""
    rows, notes, lines = list[StudyRow](), list[str](), list[Mapping[str, Any]]()
    turns = NumberedTrainings(
        ResultStore(bench.out), bench, sum(_count_study_trainings(part, bench) for part in study.parts)
    )
    for part in study.parts:
        absent = missing_data_note(part.dataset, bench.data)
        if absent:
            notes += [absent, *_own_difference(part)]
            rows += [
                _study_row(part, value, rung, []) for value in part.values or [None] for rung in part.rungs_at(value)
            ]
            continue
        dataset = part_dataset(part, bench.data)
        notes += [*data_differences(part, dataset), *training_settings_notes(part, dataset, bench.seeds)]
        for value, rungs, cases in study_points(part, bench):
            place = part.place(value)
            here: dict[str, list[Mapping[str, Any]]] = {rung.key: [] for rung in rungs}
            for arrays in cases:
                for rung in rungs:
                    line = turns.line(rung, arrays, place)
                    here[rung.key] += [] if line is None else [{**line, "value": value}]
            rows += [_study_row(part, value, rung, here[rung.key]) for rung in rungs]
            lines += [line for found in here.values() for line in found]
    return StudyResult(tuple(rows), tuple(dict.fromkeys(notes)), tuple(lines))


def _count_study_trainings(part: StudyPart, bench: StudyContext) -> int:
    """Return the number of trainings of a part, or 0 if its data is not available."""
    return (
        0 if missing_data_note(part.dataset, bench.data) else len(part.values or [None]) * len(part.rungs) * bench.seeds
    )


def study_points(part: StudyPart, bench: StudyContext) -> Iterator[tuple[Any, list[Rung], Iterator[SplitArrays]]]:
    """Yield, for every value of the varied setting, the rungs and the cases they are trained on."""
    cases: DatasetCases | None = None
    for value in part.values or [None]:
        here = part_at_value(part, value)
        if cases is None or part.vary in ("noise", "metric"):
            cases = part_cases(here, bench.data)
        elif part.vary == "tau":
            cases = cases.with_tau(value)
        yield value, part.rungs_at(value), cases.each([here.split], range(bench.seeds))


def part_at_value(part: StudyPart, value: Any) -> StudyPart:
    """Return the part at one value of the varied setting, if that is not a setting of the rungs."""
    if not part.vary or part.vary in RUNG_SETTINGS or value is None:
        return part
    return replace(part, **{part.vary: value})


def part_cases(part: StudyPart, data: Path | None) -> DatasetCases:
    """Return the cases of a part; K is the largest value that any rung needs."""
    wanted = [part.k, *(part.values if part.vary == "k" else [])]
    k = max((number for number in wanted if number), default=None)
    linkage = LinkageOverrides(k, part.metric, part.tau)
    return DatasetCases(part_dataset(part, data), linkage, part.secondaries, part.one_to_one)


def part_dataset(part: StudyPart, data: Path | None) -> Dataset:
    """Return the dataset with as many primary records as the part specifies."""
    return load_sample(part.dataset, data, part.records, part.noise)


def load_sample(name: str, data: Path | None, records: int, noise: float = 0.0) -> Dataset:
    """Return a dataset with at most ``records`` primary records (0 for all), drawn the same way every time."""
    whole = load_dataset(name, data, noise=noise)
    if not records or len(whole.primary) <= records:
        return whole
    rows = np.sort(np.random.default_rng(SAMPLE_SEED).choice(len(whole.primary), records, replace=False))
    secondaries = [each if each.match is None else replace(each, match=each.match[rows]) for each in whole.secondaries]
    primary = replace(whole.primary, frame=whole.primary.frame[rows])
    return replace(whole, primary=primary, secondaries=tuple(secondaries))


def missing_data_note(name: str, data: Path | None) -> str:
    """Return what to download for a dataset, or an empty string if it is available."""
    here = next(each for each in find_datasets(data) if each.about.name == name)
    wanted = [file for file in here.missing if file.needed]
    if not wanted:
        return ""
    return (
        f"{name}: not trained, {wanted[0].paths[0]} is not in the data folder (--data); get it from {wanted[0].source}"
    )


def data_differences(part: StudyPart, dataset: Dataset) -> Iterator[str]:
    """Yield the differences from the paper: numbers of records, and what is known about the files."""
    about, counts = dataset.about, (len(dataset.primary), len(dataset.secondaries[0].table))
    if about.scores and counts != about.records[:2]:
        ours, paper = (" and ".join(f"{count:,}" for count in each) for each in (counts, about.records[:2]))
        yield f"{part.title}: {ours} records, the paper had {paper}"
    if about.note:
        yield f"{part.dataset}: {about.note}"
    yield from _own_difference(part)


SPLIT_WORDS = {
    "fixed": "one split for all seeds",
    "random": "a random split for every seed",
    "group": "a split for every seed that keeps equal identifiers together",
}


def training_settings_notes(part: StudyPart, dataset: Dataset, seeds: int) -> Iterator[str]:
    """Yield how a part was trained: seeds, splits and K, then the steps of the methods that share them."""
    splits = part.values if part.vary == "split" else [part.split]
    linked = part.k or dataset.secondaries[0].link.k
    k = "" if part.vary == "k" else f", K = {min(linked, len(dataset.secondaries[0].table))}"
    ranks = ", filters of numbers in rank form" if HAMMING in (part.metric, *map(str, part.values)) else ""
    yield f"{part.title}: up to {seeds} seeds, {'; '.join(SPLIT_WORDS[split] for split in splits)}{k}{ranks}"
    n_train = round(TRAINING_SHARE * len(dataset.primary))
    groups: dict[str, list[str]] = {}
    for rung in part.rungs_at((part.values or [None])[0]):
        config = rung.config(seed=0, n_train=n_train)
        patience = f", ends {config.patience} epochs after the best" if config.patience else ""
        steps = f"batches of {config.batch}, learning rate {config.optimiser.rate:g}, at most {config.epochs} epochs"
        groups.setdefault(steps + patience, []).append(rung.name)
    for steps, names in groups.items():
        yield f"{part.title}: {', '.join(names)}: {steps}"


def _own_difference(part: StudyPart) -> Iterator[str]:
    if part.differs:
        yield f"{part.title}: {part.differs}"


def _study_row(part: StudyPart, value: Any, rung: Rung, lines: Sequence[Mapping[str, Any]]) -> StudyRow:
    times = 100.0 if part.measure in PERCENT_MEASURES else 1.0
    figures = tuple(times * line["test"][part.measure] for line in lines)
    seconds = [line["epoch_seconds"] for line in lines if "epoch_seconds" in line]
    unit = lines[0]["unit"] if lines and part.measure not in ("r2",) else ""
    paper = part.in_paper(rung, value) or _published_score(part, value, rung)
    return StudyRow(
        part.title,
        value,
        rung.name,
        part.measure,
        unit,
        figures,
        paper,
        float(np.median(seconds)) if seconds else None,
    )


def _published_score(part: StudyPart, value: Any, rung: Rung) -> PaperFigure | None:
    """Return the paper's score for a dataset if the study file has none: at this value, or if no value affects it."""
    known = {} if part.paper else SOURCES[part.dataset].about.scores
    as_in_paper = value is None or part.leaves(rung.key) or (part.vary, value) == ("split", PAPER_SPLIT)
    at_all_values = known.get(rung.name) if as_in_paper else None
    score = known.get(f"{rung.name}, {value}", at_all_values)
    return None if score is None else (score.mean, score.deviation)


# The ladder on datasets, as described in a file


@dataclass(frozen=True)
class FastLadder(TrainingSettings):
    """Reduced settings of a ladder for ``--fast``."""

    records: int = 0


@dataclass(frozen=True)
class LadderPart(TrainingSettings):
    """One dataset's ladder: the parties, the number of partners, and the training length."""

    dataset: str
    secondaries: list[str] = field(default_factory=list)
    records: int = 0
    k: int | None = None
    fast: FastLadder = field(default_factory=FastLadder)

    def shortened(self) -> LadderPart:
        """Return the ladder reduced for ``--fast``."""
        given: dict[str, Any] = {"records": self.fast.records or self.records, **self.fast.given}
        return replace(self, **given)

    def rungs(self) -> list[Rung]:
        """Return everything that is trained: the ladder, and methods registered by plugins."""
        known = {rung.method for rung in RUNGS}
        plugged = [name for name in METHODS.names(in_jobs=True) if name not in known]
        further = [Rung(name, f"{name} + own identifiers", name, inputs="identifiers") for name in plugged]
        return with_settings(self, [*RUNGS, *further])

    def cases(self, bench: StudyContext, splits: Sequence[str] = SPLITS) -> Iterator[SplitArrays]:
        """Yield the arrays of every split and seed."""
        dataset = load_sample(self.dataset, bench.data, self.records)
        return DatasetCases(dataset, LinkageOverrides(k=self.k), self.secondaries).each(splits, range(bench.seeds))


def read_ladders(path: Path) -> list[LadderPart]:
    """Read the ladders from a TOML file."""
    found = [
        parse_section(
            LadderPart, {**words, "fast": parse_section(FastLadder, words.get("fast", {}), "parts.fast")}, "parts"
        )
        for words in read_toml(path).get("parts", [])
    ]
    if not found:
        raise SettingError(f"{path} has no [[parts]]; name at least one dataset", code="no-parts")
    return found


@dataclass(frozen=True)
class TrainedLadders:
    """Ladders as JSON, a note for each missing dataset, and the trainings behind them."""

    ladders: list[dict[str, Any]]
    notes: list[str]
    lines: list[Mapping[str, Any]]


def train_ladders(parts: Sequence[LadderPart], bench: StudyContext) -> TrainedLadders:
    """Train a ladder for every dataset that is present."""
    results, found = ResultStore(bench.out), TrainedLadders([], [], [])
    total = sum(_count_ladder_trainings(part, bench) for part in parts)
    numbered = replace(bench, report=numbered_progress(bench.report, total))
    for part in parts:
        absent = missing_data_note(part.dataset, bench.data)
        if absent:
            found.notes.append(absent)
            continue
        at = part.dataset
        # Train no longer than a default job, which the methods are compared with.
        train = partial(train_ladder, report=numbered.reporter(at), train_rung=numbered.trainer(at), lengthen=False)
        ladder = train(part.cases(bench), part.rungs(), results)
        found.ladders.append(ladder.to_dict())
        found.lines.extend(line for lines in ladder.lines.values() for line in lines)
    return found


def _count_ladder_trainings(part: LadderPart, bench: StudyContext) -> int:
    return 0 if missing_data_note(part.dataset, bench.data) else len(SPLITS) * bench.seeds * len(part.rungs())


def contribution_line(ladder: Mapping[str, Any]) -> str:
    """Return a ladder's summary sentence, with the true contribution if the data was generated.

    >>> contribution_line({"job": "city", "worth": "The partner reduces the error by 18 x 1000 S$.", "truth": 19.71})
    'city: The partner reduces the error by 18 x 1000 S$. Known truth: 19.7.'
    """
    truth = f" Known truth: {format_number(ladder['truth'])}." if "truth" in ladder else ""
    return f"{ladder['job']}: {ladder['worth']}{truth}"


# Trainings of a study as files, for other processes on this machine or for a faster machine, and their results
#
# There, ``python -m fedsim_lab.worker_pool PLAN ARRAYS RESULTS WORKERS SECONDS`` runs the plan with torch, NumPy and,
# for boosted trees, scikit-learn; :func:`fedsim_lab.worker_pool.collect_results` collects the results.


PlannedWork = tuple[SplitArrays, Sequence[Rung]]


def study_work(study: PaperStudy, bench: StudyContext) -> Iterator[PlannedWork]:
    """Yield what a study trains, for the datasets that are available."""
    for part in study.parts:
        if not missing_data_note(part.dataset, bench.data):
            for _, rungs, cases in study_points(part, bench):
                for arrays in cases:
                    yield arrays, [rung for rung in rungs if rung.key != EXACT_MEAN]
                    further = [rung for rung in rungs if rung.key == EXACT_MEAN]
                    if further:
                        yield with_mean_partner(arrays), further


def ladder_work(parts: Iterable[LadderPart], bench: StudyContext) -> Iterator[PlannedWork]:
    """Yield what ladders train, except rungs that combine other trainings."""
    for part in parts:
        if not missing_data_note(part.dataset, bench.data):
            yield from ((arrays, trained_rungs(part.rungs())) for arrays in part.cases(bench))


def trained_rungs(rungs: Iterable[Rung]) -> list[Rung]:
    """Return the rungs that are trained themselves; the others combine some of them."""
    return [rung for rung in rungs if not rung.components]


def save_plan(work: Iterable[PlannedWork], known: ResultStore, folder: Path) -> int:
    """Write the arrays and the plan for trainings without results; return the number of trainings."""
    ensure_folder(folder)
    orders: dict[str, PlannedTraining] = {}
    for arrays, rungs in work:
        name = f"{arrays.digest[:16]}-{arrays.about['seed']}.npz"
        wanted = {
            known.name_of(rung.result_key(arrays)): rung for rung in rungs if not known.has(rung.result_key(arrays))
        }
        new = {key: PlannedTraining(name, rung, {}) for key, rung in wanted.items() if key not in orders}
        if new:
            save_arrays(arrays, folder / name)
        orders |= new
    add_to_plan(list(orders.values()), folder / PLAN_FILE)
    return len(orders)


WORKERS_FOLDER = "workers"


def train_side_by_side(
    work: Iterable[PlannedWork], results: ResultStore, workers: int, report: MessageCallback = log_line
) -> None:
    """Train what is missing in several processes, and store it; results of an interrupted run are reused."""
    folder = results.folder / WORKERS_FOLDER

    def collect() -> None:
        collect_results(sorted(folder.glob("*/worker-*")), results)
        shutil.rmtree(folder, ignore_errors=True)

    collect()
    if save_plan(work, results, folder):
        run_plan(read_plan(folder / PLAN_FILE), folder, folder / "results", workers, report=report)
    collect()
