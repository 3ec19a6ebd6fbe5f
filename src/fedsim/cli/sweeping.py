"""The work behind ``fedsim sweep``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import typer
from rich.console import Console

from fedsim.cli.options import names, telling
from fedsim.cli.ticking import going_on_later, watching
from fedsim.errors import SettingError
from fedsim.experiment.results import made_folder
from fedsim.experiment.study_run import Bench
from fedsim.experiment.sweep import GRIDS, Grid, Subject, Sweep, Tried
from fedsim.linkage.whole_file import whole_file
from fedsim.report.words import measure

KINDS: dict[str, Callable[[str], Any]] = {
    "k": int,
    "metric": str,
    "tau": float,
    "rate": float,
    "batch": int,
    "hidden": int,
    "decay": float,
}
NONE = "none"
SHOWN = 20


def grid_from(name: str, given: Mapping[str, str]) -> Grid:
    """A grid by its name, with the values that the user gives instead.

    >>> grid_from("none", {"k": "5,10", "rate": ""}).k
    (5, 10)
    """
    if name not in (NONE, *GRIDS):
        raise SettingError(f"grid '{name}' is unknown; choose {', '.join(GRIDS)} or {NONE}")
    start = Grid() if name == NONE else GRIDS[name]
    return replace(start, **{axis: _values(axis, words) for axis, words in given.items() if words})


def sweep_and_tell(subject: Subject, grid: Grid, bench: Bench, trials: int, *, quiet: bool, as_json: bool) -> None:
    """Sweep, write the ranking, print it."""
    made_folder(bench.out)
    silent = quiet or as_json
    watch = watching(Console(stderr=True), silent=silent)
    sweep = Sweep(subject, replace(bench, tell=telling(silent=silent), watch=watch))
    with going_on_later():
        found = sweep.search(grid, trials, bench.out / "search.log") if trials else sweep.grid(grid)
    described = [{"setting": asdict(tried.setting), "validation": tried.validation} for tried in found]
    report = {"format": 1, "subject": asdict(subject), "ranking": described, "best_test": found[0].test}
    with whole_file(bench.out / "sweep.json") as part:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report))
    elif not quiet:
        _tell(found)
        typer.echo(f"written: {bench.out / 'sweep.json'}")


def _tell(found: Sequence[Tried]) -> None:
    metric = "rmse" if "rmse" in found[0].validation else "accuracy"
    typer.echo(f"{'validation ' + metric:<22}setting")
    for tried in found[:SHOWN]:
        typer.echo(f"{measure(tried.validation[metric]):<22}{tried.setting.words()}")
    typer.echo(f"best on the test records: {metric} {measure(found[0].test[metric])} with {found[0].setting.words()}")


def _values(axis: str, words: str) -> tuple[Any, ...]:
    try:
        found = tuple(KINDS[axis](word) for word in names(words))
    except ValueError:
        raise SettingError(f"--{axis} is a list of values between commas, and one of them is none") from None
    if not found:
        raise SettingError(f"--{axis} '{words}' names no value; give one or more between commas, or leave it out")
    return found
