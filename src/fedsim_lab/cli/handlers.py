"""Run reproductions and sweeps, show their progress, write and print their results."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import typer
from rich.console import Console
from rich.text import Text

from fedsim.cli.exit_codes import ExitCode
from fedsim.cli.options import parse_names
from fedsim.cli.output import progress_printer
from fedsim.contribution.result_store import RESULTS_FILE, ResultStore
from fedsim.errors import SettingError
from fedsim.report.formatting import format_duration, format_number
from fedsim.report.gates_page import importance_figure, weight_figure
from fedsim.report.page import write_page
from fedsim.storage.files import atomic_write, ensure_folder
from fedsim.training.labels import Metrics
from fedsim.training.loop import Epoch, Hook, TrainingOutline
from fedsim_lab.reproduce import ALL, REPRODUCTIONS, Reproduction, ReproductionContext, reproduce
from fedsim_lab.reproduce_page import chart_figures, reproduce_page, standalone_svg
from fedsim_lab.result_table import ResultSheet, ResultTable
from fedsim_lab.study_runner import HookFactory, StudyContext, no_hooks, save_plan
from fedsim_lab.sweep import GRIDS, Sweep, SweepGrid, SweepSubject, SweepTrial
from fedsim_lab.worker_pool import collect_results

# What commands that train for long tell meanwhile: the epoch on a terminal, and how to go on after Ctrl-C


STOPPED_MESSAGE = "stopped; what was trained is kept: the same command goes on"


class EpochStatus(Hook):
    """One line that names the training and its epoch, and vanishes with it."""

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
    """A ticker for every training, where somebody looks."""
    if silent or not console.is_terminal:
        return no_hooks

    def watch(title: str) -> Sequence[Hook]:
        return [EpochStatus(title, console)]

    return watch


@contextmanager
def report_interrupt() -> Iterator[None]:
    """Ctrl-C is answered with a sentence about what was trained."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(STOPPED_MESSAGE, err=True)
        raise typer.Exit(ExitCode.STOPPED) from None


# The work behind ``fedsim lab reproduce``: sheets for people, for programs and as pages


TRAININGS_FOLDER, FAST_FOLDER = "trainings", "fast"
WIDTH = 118


@dataclass(frozen=True)
class ReproduceOptions:
    """What the user wants done, and where."""

    seeds: int
    fast: bool
    data: Path
    studies: Path
    out: Path

    @property
    def sheets(self) -> Path:
        """Where pages go: those of a fast run must not take the place of others."""
        return self.out / FAST_FOLDER if self.fast else self.out


def run_reproduce(name: str, asked: ReproduceOptions, *, quiet: bool, as_json: bool) -> None:
    """Reproduce one or all, write every file, print."""
    ensure_folder(asked.sheets)
    silent = quiet or as_json
    watch = epoch_status_hooks(Console(stderr=True), silent=silent)
    bench = StudyContext(asked.data, asked.out / TRAININGS_FOLDER, asked.seeds, progress_printer(silent=silent), watch)
    desk = ReproductionContext(asked.studies, bench, asked.fast)
    for one in REPRODUCTIONS if name == ALL else [name]:
        began = time.perf_counter()
        with report_interrupt():
            found = reproduce(one, desk)
        write_outputs(found, asked.sheets)
        if as_json:
            typer.echo(json.dumps(found.sheet.as_dict()))
        elif not quiet:
            for line in sheet_lines(found.sheet):
                typer.echo(line)
            typer.echo(f"written: {asked.sheets / one}.html, .json ({format_duration(time.perf_counter() - began)})\n")


def write_plan(name: str, asked: ReproduceOptions, folder: Path) -> None:
    """Write what is to be trained elsewhere."""
    bench = StudyContext(asked.data, asked.out / TRAININGS_FOLDER, asked.seeds)
    count = save_plan(ReproductionContext(asked.studies, bench, asked.fast).work(name), ResultStore(bench.out), folder)
    typer.echo(f"{count} trainings planned in {folder}")


def gather_results(folder: Path, asked: ReproduceOptions) -> None:
    """Take over what another machine trained."""
    workers = sorted(path.parent for path in folder.rglob(RESULTS_FILE))
    new = collect_results(workers, ResultStore(asked.out / TRAININGS_FOLDER))
    typer.echo(f"{new} trainings taken over from {folder}", err=True)


def write_outputs(found: Reproduction, out: Path) -> None:
    """The page, the JSON, the trainings as a table, and the pictures."""
    sheet, more = found.sheet, []
    if found.insight is not None:
        more = [*map(weight_figure, found.insight.curves), *map(importance_figure, found.insight.importances)]
    write_page(reproduce_page(sheet, more), out / f"{sheet.name}.html")
    with atomic_write(out / f"{sheet.name}.json") as part:
        part.write_text(json.dumps(sheet.as_dict(), indent=1) + "\n", encoding="utf-8")
    for place, figure in enumerate([*chart_figures(sheet), *more], start=1):
        with atomic_write(out / f"{sheet.name}-{place}.svg") as part:
            part.write_text(standalone_svg(figure), encoding="utf-8")
    if found.lines:
        with atomic_write(out / f"{sheet.name}.parquet") as part:
            trainings_frame(found.lines).write_parquet(part)


def trainings_frame(lines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """A row per training: what it was, its settings, its metrics, where and how long it ran."""
    rows = []
    for line in lines:
        flat = {name: value for name, value in line.items() if not isinstance(value, dict)}
        for group in ("settings", "test", "validation"):
            flat |= {f"{group}.{name}": value for name, value in line[group].items()}
        rows.append({**flat, "value": None if line.get("value") is None else str(line["value"])})
    return pl.DataFrame(rows, infer_schema_length=None)


def sheet_lines(sheet: ResultSheet) -> Iterator[str]:
    """The sheet as text."""
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
        yield "what differs from the paper:"
    for note in sheet.notes:
        yield from textwrap.wrap(f"- {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield ""


def _table_lines(table: ResultTable) -> Iterator[str]:
    rows = [table.head, *table.rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.head))]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


# The work behind ``fedsim lab sweep``


AXIS_TYPES: dict[str, Callable[[str], Any]] = {
    "k": int,
    "metric": str,
    "tau": float,
    "rate": float,
    "batch": int,
    "hidden": int,
    "decay": float,
}
NO_GRID = "none"
MAX_SHOWN = 20


def parse_grid(name: str, given: Mapping[str, str]) -> SweepGrid:
    """A grid by its name, with the values that the user gives instead.

    >>> parse_grid("none", {"k": "5,10", "rate": ""}).k
    (5, 10)
    """
    if name not in (NO_GRID, *GRIDS):
        raise SettingError(f"grid '{name}' is unknown; choose {', '.join(GRIDS)} or {NO_GRID}")
    start = SweepGrid() if name == NO_GRID else GRIDS[name]
    return replace(start, **{axis: _parse_values(axis, words) for axis, words in given.items() if words})


def run_sweep(
    subject: SweepSubject, grid: SweepGrid, bench: StudyContext, trials: int, *, quiet: bool, as_json: bool
) -> None:
    """Sweep, write the ranking, print it."""
    ensure_folder(bench.out)
    silent = quiet or as_json
    watch = epoch_status_hooks(Console(stderr=True), silent=silent)
    sweep = Sweep(subject, replace(bench, tell=progress_printer(silent=silent), watch=watch))
    with report_interrupt():
        found = sweep.search(grid, trials, bench.out / "search.log") if trials else sweep.grid(grid)
    described = [{"setting": asdict(tried.setting), "validation": tried.validation} for tried in found]
    report = {"format": 1, "subject": asdict(subject), "ranking": described, "best_test": found[0].test}
    with atomic_write(bench.out / "sweep.json") as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report))
    elif not quiet:
        _print_ranking(found)
        typer.echo(f"written: {bench.out / 'sweep.json'}")


def _print_ranking(found: Sequence[SweepTrial]) -> None:
    metric = "rmse" if "rmse" in found[0].validation else "accuracy"
    typer.echo(f"{'validation ' + metric:<22}setting")
    for tried in found[:MAX_SHOWN]:
        typer.echo(f"{format_number(tried.validation[metric]):<22}{tried.setting.words()}")
    typer.echo(
        f"best on the test records: {metric} {format_number(found[0].test[metric])} with {found[0].setting.words()}"
    )


def _parse_values(axis: str, words: str) -> tuple[Any, ...]:
    try:
        found = tuple(AXIS_TYPES[axis](word) for word in parse_names(words))
    except ValueError:
        raise SettingError(f"--{axis} is a list of values between commas, and one of them is none") from None
    if not found:
        raise SettingError(f"--{axis} '{words}' names no value; give one or more between commas, or leave it out")
    return found
