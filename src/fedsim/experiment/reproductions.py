"""Every table and figure of the paper by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fedsim.errors import FileError, SettingError, nearest_word
from fedsim.experiment.delta_study import delta_sheet
from fedsim.experiment.insight_study import Insight, look
from fedsim.experiment.ladders import LadderPart, climb_all, read_ladders, worth_line
from fedsim.experiment.parameters import parameters_sheet
from fedsim.experiment.plan import Work, ladder_work, study_work
from fedsim.experiment.sheet import Chart, Series, Sheet, Shorter, Table, figure_words, hurried, run_facts, study_sheet
from fedsim.experiment.study import Fast, Study, read_study
from fedsim.experiment.study_run import Bench, run_study
from fedsim.experiment.timing import linkage_sheet, training_sheet

ALL, LADDER = "all", "ladder"
STUDIES = (
    "table-real",
    "figure-synthetic",
    "figure-privacy",
    "figure-k",
    "table-multiparty",
    "table-random-features",
    "table-similarity-metrics",
    "table-single-party",
)


@dataclass(frozen=True)
class Desk:
    """Where studies are described and trained, and whether time is short."""

    studies: Path
    bench: Bench
    fast: bool = False

    def study(self, name: str) -> Study:
        """A study, shortened where time is."""
        path = self.studies / f"{name}.toml"
        if not path.is_file():
            raise FileError(f"there is no {path} here; run this in the project's folder, or name --studies")
        found = read_study(path)
        return found.shortened() if self.fast else found

    def ladders(self) -> list[LadderPart]:
        """The ladders, shortened where time is."""
        path = self.studies / f"{LADDER}.toml"
        if not path.is_file():
            raise FileError(f"there is no {path} here; run this in the project's folder, or name --studies")
        return [part.shortened() if self.fast else part for part in read_ladders(path)]

    def work(self, name: str) -> Iterator[Work]:
        """What a study, the ladders or all of them train; the other names train nothing worth another machine."""
        if name == ALL:
            return chain.from_iterable(map(self.work, (*STUDIES, LADDER)))
        if name == LADDER:
            return ladder_work(self.ladders(), self.bench)
        if name not in STUDIES:
            raise SettingError(f"'{name}' has nothing to plan; choose from {', '.join((*STUDIES, LADDER, ALL))}")
        return study_work(self.study(name), self.bench)

    def marked(self, sheet: Sheet, shorter: Iterable[Shorter]) -> Sheet:
        """The sheet, with a mark where time was short."""
        return hurried(sheet, shorter) if self.fast else sheet


@dataclass(frozen=True, eq=False)
class Reproduced:
    """A sheet, the trainings behind it, and what only figure-insight has."""

    sheet: Sheet
    lines: tuple[Mapping[str, Any], ...] = ()
    insight: Insight | None = None


def reproduce(name: str, desk: Desk) -> Reproduced:
    """One table or figure."""
    if name not in NAMES:
        near = nearest_word(name, NAMES)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(NAMES)}"
        raise SettingError(f"'{name}' is no table or figure; {hint}")
    return NAMES[name](name, desk)


def _trained(name: str, desk: Desk) -> Reproduced:
    began, study = time.perf_counter(), desk.study(name)
    found = run_study(study, desk.bench)
    sheet = study_sheet(study, found, time.perf_counter() - began)
    return Reproduced(desk.marked(sheet, _shorter(study)), found.lines)


def _delta(name: str, desk: Desk) -> Reproduced:
    study = desk.study("table-real")
    sheet, lines = delta_sheet(study, desk.bench)
    return Reproduced(desk.marked(sheet, _shorter(study)), lines)


def _insight(name: str, desk: Desk) -> Reproduced:
    epochs = 8 if desk.fast else 60
    found = look(epochs, desk.bench)
    return Reproduced(desk.marked(found.sheet, [Fast(epochs=epochs)]), insight=found)


def _linkage(name: str, desk: Desk) -> Reproduced:
    records = 3_000 if desk.fast else 0
    return Reproduced(desk.marked(linkage_sheet(desk.bench, records), [Fast(records)]))


def _training(name: str, desk: Desk) -> Reproduced:
    records = 300 if desk.fast else 2_000
    return Reproduced(desk.marked(training_sheet(desk.bench, records), [Fast(records)]))


def _shorter(study: Study) -> list[Fast]:
    return [part.fast for part in study.parts]


def _parameters(name: str, desk: Desk) -> Reproduced:
    return Reproduced(parameters_sheet())


def _ladder(name: str, desk: Desk) -> Reproduced:
    began, parts = time.perf_counter(), desk.ladders()
    found = climb_all(parts, desk.bench)
    sheet = Sheet(
        LADDER,
        "What partners are worth",
        "not in the paper",
        "",
        tuple(_ladder_table(ladder) for ladder in found.ladders),
        tuple(_ladder_chart(ladder) for ladder in found.ladders),
        says=tuple(map(worth_line, found.ladders)),
        notes=tuple(found.notes),
        facts=run_facts(found.lines, time.perf_counter() - began),
    )
    return Reproduced(desk.marked(sheet, [part.fast for part in parts]), tuple(found.lines))


def _ladder_table(ladder: Mapping[str, Any]) -> Table:
    splits = list(dict.fromkeys(rung["split"] for rung in ladder["rungs"]))
    found = {(rung["name"], rung["split"]): rung for rung in ladder["rungs"]}
    rows = [
        (name, *(_cell(found[name, split]) for split in splits))
        for name in dict.fromkeys(rung["name"] for rung in ladder["rungs"])
    ]
    gains = {(gain["key"], gain["split"]): gain for gain in ladder["gains"]}
    for key in dict.fromkeys(gain["key"] for gain in ladder["gains"]):
        rows.append((f"gain, {key}", *(_gain(gains[key, split]) for split in splits)))
    unit = f", {ladder['unit']}" if ladder["metric"] == "rmse" else ""
    return Table(f"{ladder['job']}: {ladder['metric']}{unit}", ("rung", *(f"{s} split" for s in splits)), tuple(rows))


def _ladder_chart(ladder: Mapping[str, Any]) -> Chart:
    """The rungs of the last split, the harder one."""
    split = ladder["rungs"][-1]["split"]
    rungs = [rung for rung in ladder["rungs"] if rung["split"] == split]
    means, deviations = (tuple(rung[name] for rung in rungs) for name in ("mean", "deviation"))
    series = Series("ours", means, deviations, tuple(None for _ in rungs))
    title, measure = f"{ladder['job']}, {split} split", f"{ladder['metric']}, {ladder['job']}"
    return Chart(title, "", measure, tuple(rung["name"] for rung in rungs), (series,))


def _cell(rung: Mapping[str, Any]) -> str:
    return figure_words(rung["mean"], rung["deviation"], len(rung["values"]))


def _gain(gain: Mapping[str, Any]) -> str:
    return f"{gain['estimate']:.3g} ({gain['low']:.3g} to {gain['high']:.3g})"


NAMES: dict[str, Callable[[str, Desk], Reproduced]] = {
    **dict.fromkeys(STUDIES, _trained),
    "figure-delta": _delta,
    "table-linkage-time": _linkage,
    "table-training-time": _training,
    "table-parameters": _parameters,
    "figure-insight": _insight,
    LADDER: _ladder,
}
