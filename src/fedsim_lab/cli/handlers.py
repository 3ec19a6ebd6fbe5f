"""Run reproductions and sweeps, show their progress, and write and print their results."""

import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
import typer
from rich.console import Console
from rich.text import Text

from fedsim.cli import ExitCode
from fedsim.cli.options import OutputMode, print_nothing
from fedsim.cli.output import print_lines, print_table, progress_printer, write_json
from fedsim.contribution.rungs import RESULTS_FILE, ResultStore
from fedsim.contribution.tuning import Grid, TuningTrial, describe_setting, parse_values, tuned_types
from fedsim.errors import SettingError
from fedsim.report.formatting import format_duration, format_number
from fedsim.report.model_charts import importance_figure, weight_figure
from fedsim.report.page import write_page
from fedsim.storage.files import atomic_write, ensure_folder
from fedsim.training.data import Metrics
from fedsim.training.loop import Epoch, Hook, TrainingOutline
from fedsim_lab.checklist import STATES, checklist_lines, read_checklist
from fedsim_lab.reproduce import ALL, PLANNED, REPRODUCTIONS, Reproduction, ReproductionContext, reproduce
from fedsim_lab.reproduce_page import chart_figures, reproduce_page, standalone_svg
from fedsim_lab.result_table import ResultSheet, ResultTable
from fedsim_lab.stored_trainings import StoredTrainings
from fedsim_lab.study_runner import HookFactory, StudyContext, no_hooks, save_plan, train_side_by_side
from fedsim_lab.sweep import GRIDS, SweepSubject, dataset_tuner, grid_settings, sweep_dataset
from fedsim_lab.training_plan import TrainingPlan
from fedsim_lab.worker_pool import collect_results, log_line

TRAININGS_FOLDER, FAST_FOLDER = "trainings", "fast"
CHECKLIST = "checklist"
WIDTH = 118
NO_GRID = "none"
MAX_SHOWN = 20


class EpochStatus(Hook):
    """Shows the current training and epoch on one line of the terminal."""

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._epochs = title, 0
        self._line: Any = console.status("")

    def started(self, outline: TrainingOutline) -> None:
        self._epochs = outline.epochs
        self._show(outline.epochs_done + 1)
        self._line.start()

    def epoch_ended(self, epoch: Epoch) -> None:
        self._show(min(epoch.number + 1, self._epochs))

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._line.stop()

    def failed(self) -> None:
        self._line.stop()

    def _show(self, epoch: int) -> None:
        self._line.update(Text(f"{self._title}: epoch {epoch}/{self._epochs}"))


def epoch_status_hooks(console: Console, *, silent: bool) -> HookFactory:
    """Return hooks that show the epoch of every training on a terminal."""
    if silent or not console.is_terminal:
        return no_hooks

    def watch(title: str) -> Sequence[Hook]:
        return [EpochStatus(title, console)]

    return watch


@contextmanager
def report_interrupt() -> Iterator[None]:
    """Print how to continue after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; results are stored, run the same command to continue", err=True)
        raise typer.Exit(ExitCode.STOPPED) from None


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of ``fedsim lab reproduce``."""

    seeds: int
    fast: bool
    data: Path | None
    studies: Path
    out: Path
    workers: int = 1
    stored: bool = False

    @property
    def stored_trainings(self) -> StoredTrainings | None:
        """The trainings to show, if nothing is to be trained."""
        return StoredTrainings(stored_path(self.studies)) if self.stored else None

    @property
    def sheets(self) -> Path:
        """The folder for pages; pages of a fast run must not replace others."""
        return self.out / FAST_FOLDER if self.fast else self.out


def run_reproduce(name: str, options: ReproduceOptions, mode: OutputMode) -> None:
    """Reproduce one or all tables and figures, write all files and print the results."""
    if name == CHECKLIST:
        show_checklist(mode)
        return
    ensure_folder(options.sheets)
    watch = epoch_status_hooks(Console(stderr=True), silent=mode.silent)
    progress = progress_printer(silent=mode.silent)
    folder = options.out / TRAININGS_FOLDER
    study = StudyContext(
        options.data, folder, options.seeds, progress, watch, options.workers, options.stored_trainings
    )
    context = ReproductionContext(options.studies, study, options.fast)
    if study.workers > 1 and name in PLANNED and not options.stored:
        with report_interrupt():
            report = print_nothing if mode.silent else log_line
            train_side_by_side(context.work(name), ResultStore(study.out), study.workers, report)
    for one in REPRODUCTIONS if name == ALL else [name]:
        began = time.perf_counter()
        with report_interrupt():
            done = reproduce(one, context)
        write_outputs(done, options.sheets)
        written = f"Wrote {options.sheets / one}.html and .json in {format_duration(time.perf_counter() - began)}\n"
        mode.show(done.sheet.as_dict(), partial(print_lines, [*sheet_lines(done.sheet), written]))


def show_checklist(mode: OutputMode) -> None:
    """Print the items of the paper with their state and evidence."""
    items = read_checklist()
    counts = {state: sum(item.state == state for item in items) for state in STATES}
    value = {"items": [asdict(item) for item in items], "counts": counts}
    mode.show(value, partial(print_lines, checklist_lines(items)))


def stored_path(studies: Path) -> Path:
    """Return the file of the stored trainings of a folder of studies."""
    return studies.parent / "results" / studies.name / "trainings.jsonl"


def run_training_plan(path: Path, data: Path | None, hours: float, threads: int, mode: OutputMode) -> None:
    """Run a plan for a number of hours, then print the progress of every step."""
    torch.set_num_threads(threads)
    plan = TrainingPlan(path, data, StoredTrainings(stored_path(path.parent)))
    if hours:
        with report_interrupt():
            trained = plan.run(hours * 3600, print_nothing if mode.silent else log_line)
        mode.show({"trained": trained}, lambda: typer.echo(f"{trained} trainings stored in {plan.stored.path}"))
        return
    steps = list(plan.progress())
    rows = [(f"{step.stored} of {step.total}", f"{step.hours:.2f}", step.step.title) for step in steps]
    value = {"steps": [asdict(step) for step in steps]}
    mode.show(value, lambda: print_table(("stored", "core hours", "step"), rows))


def write_plan(name: str, options: ReproduceOptions, folder: Path) -> None:
    """Write the trainings for another machine."""
    study = StudyContext(options.data, options.out / TRAININGS_FOLDER, options.seeds)
    work = ReproductionContext(options.studies, study, options.fast).work(name)
    count = save_plan(work, ResultStore(study.out), folder)
    typer.echo(f"Wrote {folder}: {count} trainings")


def gather_results(folder: Path, options: ReproduceOptions) -> None:
    """Collect the results of another machine."""
    workers = sorted(path.parent for path in folder.rglob(RESULTS_FILE))
    new = collect_results(workers, ResultStore(options.out / TRAININGS_FOLDER))
    typer.echo(f"collected {new} trainings from {folder}", err=True)


def write_outputs(found: Reproduction, out: Path) -> None:
    """Write the HTML page, the JSON file, the table of trainings, and the figures."""
    sheet, more = found.sheet, []
    if found.insight is not None:
        more = [*map(weight_figure, found.insight.curves), *map(importance_figure, found.insight.importances)]
    write_page(reproduce_page(sheet, more), out / f"{sheet.name}.html")
    write_json(out / f"{sheet.name}.json", sheet.as_dict())
    for place, figure in enumerate([*chart_figures(sheet), *more], start=1):
        with atomic_write(out / f"{sheet.name}-{place}.svg") as part:
            part.write_text(standalone_svg(figure), encoding="utf-8")
    if found.lines:
        with atomic_write(out / f"{sheet.name}.parquet") as part:
            trainings_frame(found.lines).write_parquet(part)


def trainings_frame(lines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return a row per training with its settings, metrics, machine and time."""
    rows = []
    for line in lines:
        flat = {name: value for name, value in line.items() if not isinstance(value, dict)}
        for group in ("settings", "test", "validation"):
            flat |= {f"{group}.{name}": value for name, value in line[group].items()}
        rows.append({**flat, "value": None if line.get("value") is None else str(line["value"])})
    return pl.DataFrame(rows, infer_schema_length=None)


def sheet_lines(sheet: ResultSheet) -> Iterator[str]:
    """Return the sheet as text."""
    short = f", --fast: {sheet.facts['fast']}" if "fast" in sheet.facts else ""
    yield f"{sheet.title} ({sheet.place}){short}"
    for sentence in sheet.says:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")
    for table in sheet.tables:
        yield ""
        yield table.title
        yield from _table_lines(table)
    if sheet.notes:
        yield ""
        yield "differences from the paper:"
    for note in sheet.notes:
        yield from textwrap.wrap(f"- {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield ""


def _table_lines(table: ResultTable) -> Iterator[str]:
    rows = [table.head, *table.rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.head))]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def parse_grid(name: str, given: Sequence[str]) -> Grid:
    """Return a grid by name, with the user's values in place of its own.

    >>> parse_grid("none", ["k=5,10"])
    {'k': [5, 10]}
    """
    if name not in (NO_GRID, *GRIDS):
        raise SettingError(f"unknown grid '{name}'; choose {', '.join(GRIDS)} or {NO_GRID}", code="unknown-grid")
    types: dict[str, Callable[[str], Any]] = {**tuned_types(), "metric": str, "tau": float, "decay": float}
    return {**GRIDS.get(name, {}), **parse_values(given, types)}


def run_sweep(subject: SweepSubject, grid: Grid, study: StudyContext, mode: OutputMode) -> None:
    """Sweep, write the ranking and print it."""
    ensure_folder(study.out)
    watch = epoch_status_hooks(Console(stderr=True), silent=mode.silent)
    tuner = dataset_tuner(subject, grid, replace(study, report=progress_printer(silent=mode.silent), hooks=watch))
    with report_interrupt():
        if study.workers > 1:
            work = ((arrays, [subject.rung(one)]) for one in grid_settings(grid) for arrays in tuner.subject.cases(one))
            train_side_by_side(work, tuner.results, study.workers, print_nothing)  # a report would show test scores
        ranked = sweep_dataset(tuner, grid)
    ranking = [{"setting": trial.setting, "validation": trial.validation} for trial in ranked]
    report = {"format": 1, "subject": asdict(subject), "ranking": ranking, "best_test": ranked[0].test}
    write_json(study.out / "sweep.json", report)
    mode.show(report, lambda: _print_ranking(ranked, study.out / "sweep.json"))


def _print_ranking(ranked: Sequence[TuningTrial], path: Path) -> None:
    metric = "rmse" if "rmse" in ranked[0].validation else "accuracy"
    rows = [(format_number(trial.validation[metric]), describe_setting(trial.setting)) for trial in ranked[:MAX_SHOWN]]
    print_table((f"validation {metric}", "setting"), rows)
    test = format_number(ranked[0].test[metric])
    typer.echo(f"test {metric} of the best setting: {test} with {describe_setting(ranked[0].setting)}")
    typer.echo(f"Wrote {path}")
