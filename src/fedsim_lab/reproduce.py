"""Reproduce every table and figure of the paper by name."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedsim.errors import FileError, SettingError, nearest_word
from fedsim_lab import result_table, study_runner
from fedsim_lab.analysis_figures import GateInsight, attacker_table, delta_sheet, train_and_explain
from fedsim_lab.cost_tables import linkage_sheet, parameters_sheet, parties_sheet, training_sheet
from fedsim_lab.illustrations import neighbours_sheet, similarity_curves_sheet, tau_epsilon_sheet
from fedsim_lab.result_table import FastSettings, ResultChart, ResultSheet, ResultTable
from fedsim_lab.study_config import FastStudy, PaperStudy, read_study
from fedsim_lab.study_runner import LadderPart, PlannedWork, StudyContext

ALL, LEADERBOARD = "all", "leaderboard"
STUDIES = (
    "table-real",
    "figure-synthetic",
    "figure-privacy",
    "figure-privacy-sample",
    "figure-privacy-firms",
    "figure-k",
    "figure-k-sample",
    "table-multiparty",
    "table-several-secondaries",
    "table-random-features",
    "table-modern-random",
    "table-similarity-metrics",
    "table-similarity-metrics-sample",
    "table-single-party",
)
PLANNED = (*STUDIES, LEADERBOARD, ALL)  # the others train too little to distribute


@dataclass(frozen=True)
class ReproductionContext:
    """Where studies are described and trained, and whether to use reduced settings (``--fast``)."""

    studies: Path
    bench: StudyContext
    fast: bool = False

    def study(self, name: str) -> PaperStudy:
        """Return a study, reduced with ``--fast``."""
        path = self.studies / f"{name}.toml"
        if not path.is_file():
            raise FileError(f"there is no {path} here; run this in the project's folder, or name --studies")
        found = read_study(path)
        return found.shortened() if self.fast else found

    def ladders(self) -> list[LadderPart]:
        """Return the ladders, reduced with ``--fast``."""
        path = self.studies / f"{LEADERBOARD}.toml"
        if not path.is_file():
            raise FileError(f"there is no {path} here; run this in the project's folder, or name --studies")
        return [part.shortened() if self.fast else part for part in study_runner.read_ladders(path)]

    def work(self, name: str) -> Iterator[PlannedWork]:
        """Return the trainings of a study, of the ladders or of all."""
        if name == ALL:
            return chain.from_iterable(map(self.work, (*STUDIES, LEADERBOARD)))
        if name == LEADERBOARD:
            return study_runner.ladder_work(self.ladders(), self.bench)
        if name not in STUDIES:
            message = f"'{name}' has nothing to plan; choose from {', '.join(PLANNED)}"
            raise SettingError(message, code="nothing-to-plan")
        return study_runner.study_work(self.study(name), self.bench)

    def marked(self, sheet: ResultSheet, shorter: Iterable[FastSettings]) -> ResultSheet:
        """Return the sheet, marked if it was made with ``--fast``."""
        return result_table.mark_fast(sheet, shorter) if self.fast else sheet


@dataclass(frozen=True, eq=False)
class Reproduction:
    """A result sheet, its trainings and, for figure-insight only, the trained gate."""

    sheet: ResultSheet
    lines: tuple[Mapping[str, Any], ...] = ()
    insight: GateInsight | None = None


def reproduce(name: str, desk: ReproductionContext) -> Reproduction:
    """Reproduce one table or figure of the paper."""
    if name not in REPRODUCTIONS:
        near = nearest_word(name, REPRODUCTIONS)
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(REPRODUCTIONS)}"
        raise SettingError(f"unknown table or figure '{name}'; {hint}", code="unknown-reproduction", nearest=near)
    return REPRODUCTIONS[name](name, desk)


def _reproduce_study(name: str, desk: ReproductionContext) -> Reproduction:
    began, study = time.perf_counter(), desk.study(name)
    found = study_runner.run_study(study, desk.bench)
    sheet = result_table.study_result_sheet(study, found, time.perf_counter() - began)
    return Reproduction(desk.marked(sheet, _fast_settings(study)), found.lines)


def _reproduce_privacy(name: str, desk: ReproductionContext) -> Reproduction:
    done = _reproduce_study(name, desk)
    sheet = replace(done.sheet, tables=(*done.sheet.tables, attacker_table(desk.study(name), desk.bench)))
    return replace(done, sheet=sheet)


def _reproduce_delta(name: str, desk: ReproductionContext) -> Reproduction:
    study = desk.study("table-real")
    sheet, lines = delta_sheet(study, desk.bench)
    return Reproduction(desk.marked(sheet, _fast_settings(study)), lines)


def _reproduce_similarities(name: str, desk: ReproductionContext) -> Reproduction:
    study = desk.study("table-real")
    sheet = similarity_curves_sheet(study, desk.bench)
    return Reproduction(desk.marked(sheet, _fast_settings(study)))


def _reproduce_tau_epsilon(name: str, desk: ReproductionContext) -> Reproduction:
    return Reproduction(tau_epsilon_sheet())


def _reproduce_neighbours(name: str, desk: ReproductionContext) -> Reproduction:
    return Reproduction(neighbours_sheet(desk.bench))


def _reproduce_insight(name: str, desk: ReproductionContext) -> Reproduction:
    epochs = 8 if desk.fast else 60
    found = train_and_explain(epochs, desk.bench)
    return Reproduction(desk.marked(found.sheet, [FastStudy(epochs=epochs)]), insight=found)


def _reproduce_linkage_time(name: str, desk: ReproductionContext) -> Reproduction:
    records = 3_000 if desk.fast else 0
    return Reproduction(desk.marked(linkage_sheet(desk.bench, records), [FastStudy(records)]))


def _reproduce_training_time(name: str, desk: ReproductionContext) -> Reproduction:
    records = 300 if desk.fast else 2_000
    return Reproduction(desk.marked(training_sheet(desk.bench, records), [FastStudy(records)]))


def _reproduce_parties_time(name: str, desk: ReproductionContext) -> Reproduction:
    records = 200 if desk.fast else 1_200
    return Reproduction(desk.marked(parties_sheet(desk.bench, records), [FastStudy(records)]))


def _fast_settings(study: PaperStudy) -> list[FastStudy]:
    return [part.fast for part in study.parts]


def _reproduce_parameters(name: str, desk: ReproductionContext) -> Reproduction:
    return Reproduction(parameters_sheet())


def _reproduce_leaderboard(name: str, desk: ReproductionContext) -> Reproduction:
    began, parts = time.perf_counter(), desk.ladders()
    found = study_runner.train_ladders(parts, desk.bench)
    sheet = ResultSheet(
        LEADERBOARD,
        "Leaderboard",
        "not in the paper",
        "",
        (*overview_tables(found.ladders), *(_ladder_table(ladder) for ladder in found.ladders)),
        tuple(_ladder_chart(ladder) for ladder in found.ladders),
        says=tuple(map(study_runner.contribution_line, found.ladders)),
        notes=tuple(found.notes),
        facts=result_table.run_facts(found.lines, time.perf_counter() - began),
    )
    return Reproduction(desk.marked(sheet, [part.fast for part in parts]), tuple(found.lines))


def overview_tables(ladders: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """Return every method on every dataset, a table per split, and what the partners contribute."""
    scores = {
        (rung["split"], rung["name"], ladder["job"]): f"{rung['mean']:.4g}"
        for ladder in ladders
        for rung in ladder["rungs"]
    }
    splits, names = (list(dict.fromkeys(key[place] for key in scores)) for place in (0, 1))
    jobs = {ladder["job"]: f"{ladder['job']}, {ladder['metric']}" for ladder in ladders}
    for split in splits:
        rows = tuple((name, *(scores.get((split, name, job), "-") for job in jobs)) for name in names)
        yield ResultTable(f"all datasets, {split} split", ("method", *jobs.values()), rows)
    for split in splits:
        rows = tuple(_contribution_cells(ladder, split) for ladder in ladders)
        yield ResultTable(f"contribution of the partner, {split} split", CONTRIBUTION_HEAD, rows)


CONTRIBUTION_HEAD = ("dataset", "own identifiers", "links", "features", "contribution", "known truth", "found")


def _contribution_cells(ladder: Mapping[str, Any], split: str) -> tuple[str, ...]:
    gains = {gain["key"]: gain for gain in ladder["gains"] if gain["split"] == split}
    cells = (_format_gain(gains[key]) for key in ("identifiers", "links", "features", "contribution"))
    truth = ladder.get("truth")
    known = ("-", "-") if not truth else (f"{truth:.3g}", f"{gains['contribution']['estimate'] / truth:.0%}")
    return (ladder["job"], *cells, *known)


def _ladder_table(ladder: Mapping[str, Any]) -> ResultTable:
    splits = list(dict.fromkeys(rung["split"] for rung in ladder["rungs"]))
    found = {(rung["name"], rung["split"]): rung for rung in ladder["rungs"]}
    rows = [
        (name, *(_format_rung(found[name, split]) for split in splits))
        for name in dict.fromkeys(rung["name"] for rung in ladder["rungs"])
    ]
    gains = {(gain["key"], gain["split"]): gain for gain in ladder["gains"]}
    for key in dict.fromkeys(gain["key"] for gain in ladder["gains"]):
        rows.append((f"gain, {key}", *(_format_gain(gains[key, split]) for split in splits)))
    unit = f", {ladder['unit']}" if ladder["metric"] == "rmse" else ""
    return ResultTable(
        f"{ladder['job']}: {ladder['metric']}{unit}", ("rung", *(f"{s} split" for s in splits)), tuple(rows)
    )


def _ladder_chart(ladder: Mapping[str, Any]) -> ResultChart:
    """Return the chart of all rungs on the last split, the harder one."""
    split = ladder["rungs"][-1]["split"]
    rungs = [rung for rung in ladder["rungs"] if rung["split"] == split]
    means, deviations = (tuple(rung[name] for rung in rungs) for name in ("mean", "deviation"))
    series = result_table.ChartSeries("ours", means, deviations, tuple(None for _ in rungs))
    title, measure = f"{ladder['job']}, {split} split", f"{ladder['metric']}, {ladder['job']}"
    return ResultChart(title, "", measure, tuple(rung["name"] for rung in rungs), (series,))


def _format_rung(rung: Mapping[str, Any]) -> str:
    return result_table.format_score(rung["mean"], rung["deviation"], len(rung["values"]))


def _format_gain(gain: Mapping[str, Any]) -> str:
    return f"{gain['estimate']:.3g} ({gain['low']:.3g} to {gain['high']:.3g})"


REPRODUCTIONS: dict[str, Callable[[str, ReproductionContext], Reproduction]] = {
    **dict.fromkeys(STUDIES, _reproduce_study),
    "figure-privacy": _reproduce_privacy,
    "figure-delta": _reproduce_delta,
    "table-linkage-time": _reproduce_linkage_time,
    "table-training-time": _reproduce_training_time,
    "table-parties-time": _reproduce_parties_time,
    "table-parameters": _reproduce_parameters,
    "figure-insight": _reproduce_insight,
    "figure-similarities": _reproduce_similarities,
    "figure-tau-epsilon": _reproduce_tau_epsilon,
    "figure-neighbours": _reproduce_neighbours,
    LEADERBOARD: _reproduce_leaderboard,
}
