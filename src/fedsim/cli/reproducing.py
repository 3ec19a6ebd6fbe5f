"""The work behind ``fedsim reproduce``: sheets for people, for programs and as pages."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import typer
from rich.console import Console

from fedsim.cli.options import telling
from fedsim.cli.ticking import going_on_later, watching
from fedsim.experiment.crew import gathered
from fedsim.experiment.plan import save_plan
from fedsim.experiment.reproductions import ALL, NAMES, Desk, Reproduced, reproduce
from fedsim.experiment.results import LINES, Results, made_folder
from fedsim.experiment.sheet import Sheet, Table
from fedsim.experiment.study_run import Bench
from fedsim.linkage.whole_file import whole_file
from fedsim.report.charts import standalone
from fedsim.report.insight import importance_figure, weight_figure
from fedsim.report.page import write_page
from fedsim.report.reproduce_page import reproduce_page, sheet_figures
from fedsim.report.words import duration

TRAININGS, FAST = "trainings", "fast"
WIDTH = 118


@dataclass(frozen=True)
class Asked:
    """What the user wants done, and where."""

    seeds: int
    fast: bool
    data: Path
    studies: Path
    out: Path

    @property
    def sheets(self) -> Path:
        """Where pages go: those of a fast run must not take the place of others."""
        return self.out / FAST if self.fast else self.out


def reproduce_and_tell(name: str, asked: Asked, *, quiet: bool, as_json: bool) -> None:
    """Reproduce one or all, write every file, print."""
    made_folder(asked.sheets)
    silent = quiet or as_json
    watch = watching(Console(stderr=True), silent=silent)
    bench = Bench(asked.data, asked.out / TRAININGS, asked.seeds, telling(silent=silent), watch)
    desk = Desk(asked.studies, bench, asked.fast)
    for one in NAMES if name == ALL else [name]:
        began = time.perf_counter()
        with going_on_later():
            found = reproduce(one, desk)
        write_all(found, asked.sheets)
        if as_json:
            typer.echo(json.dumps(found.sheet.as_dict()))
        elif not quiet:
            for line in lines_of(found.sheet):
                typer.echo(line)
            typer.echo(f"written: {asked.sheets / one}.html, .json ({duration(time.perf_counter() - began)})\n")


def plan_and_tell(name: str, asked: Asked, folder: Path) -> None:
    """Write what is to be trained elsewhere."""
    bench = Bench(asked.data, asked.out / TRAININGS, asked.seeds)
    count = save_plan(Desk(asked.studies, bench, asked.fast).work(name), Results(bench.out), folder)
    typer.echo(f"{count} trainings planned in {folder}")


def gather_and_tell(folder: Path, asked: Asked) -> None:
    """Take over what another machine trained."""
    workers = sorted(path.parent for path in folder.rglob(LINES))
    new = gathered(workers, Results(asked.out / TRAININGS))
    typer.echo(f"{new} trainings taken over from {folder}", err=True)


def write_all(found: Reproduced, out: Path) -> None:
    """The page, the JSON, the trainings as a table, and the pictures."""
    sheet, more = found.sheet, []
    if found.insight is not None:
        more = [*map(weight_figure, found.insight.curves), *map(importance_figure, found.insight.importances)]
    write_page(reproduce_page(sheet, more), out / f"{sheet.name}.html")
    with whole_file(out / f"{sheet.name}.json") as part:
        part.write_text(json.dumps(sheet.as_dict(), indent=1) + "\n", encoding="utf-8")
    for place, figure in enumerate([*sheet_figures(sheet), *more], start=1):
        with whole_file(out / f"{sheet.name}-{place}.svg") as part:
            part.write_text(standalone(figure), encoding="utf-8")
    if found.lines:
        with whole_file(out / f"{sheet.name}.parquet") as part:
            trainings(found.lines).write_parquet(part)


def trainings(lines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """A row per training: what it was, its settings, its metrics, where and how long it ran."""
    rows = []
    for line in lines:
        flat = {name: value for name, value in line.items() if not isinstance(value, dict)}
        for group in ("settings", "test", "validation"):
            flat |= {f"{group}.{name}": value for name, value in line[group].items()}
        rows.append({**flat, "value": None if line.get("value") is None else str(line["value"])})
    return pl.DataFrame(rows, infer_schema_length=None)


def lines_of(sheet: Sheet) -> Iterator[str]:
    """The sheet as text."""
    short = f", --fast: {sheet.facts['fast']}" if "fast" in sheet.facts else ""
    yield f"{sheet.title} ({sheet.place}){short}"
    for sentence in sheet.says:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")
    for table in sheet.tables:
        yield ""
        yield table.title
        yield from _aligned(table)
    if sheet.notes:
        yield ""
        yield "what differs from the paper:"
    for note in sheet.notes:
        yield from textwrap.wrap(f"- {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield ""


def _aligned(table: Table) -> Iterator[str]:
    rows = [table.head, *table.rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.head))]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
