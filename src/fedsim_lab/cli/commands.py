"""Commands of ``fedsim lab``: bench, datasets, experiment, reproduce and sweep."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.cli.options import Json, Quiet, parse_names, print_nothing
from fedsim.errors import FileError

if TYPE_CHECKING:
    from fedsim_lab.datasets.registry import AvailableDataset

# ``fedsim lab bench``: how fast is it here, beside named peers?


BenchmarkName = Annotated[
    str, typer.Argument(help="Which benchmark: the name of a file in the project's benchmarks folder.")
]
BenchmarkCases = Annotated[list[str] | None, typer.Argument(help="Only these of its cases; all without.")]


def bench(name: BenchmarkName = "linkage", cases: BenchmarkCases = None) -> None:
    """Run a benchmark of the project's benchmarks folder and print its table."""
    script = Path("benchmarks") / f"{name}.py"
    if not script.is_file():
        raise FileError(f"there is no {script} here; run this in the project's folder, where the benchmarks are")
    sys.path.insert(0, str(script.parent.resolve()))
    run = runpy.run_path(str(script.resolve())).get("main")
    if run is None:
        raise FileError(f"{script} is a part of a benchmark; run the whole, such as `fedsim lab bench linkage`")
    run(cases)


# ``fedsim lab datasets``: which datasets are here, and where to get the others


DEFAULT_DATA_FOLDER = Path("../shared/data")

DataFolder = Annotated[
    Path,
    typer.Option(
        help="Folder with one folder of files per dataset, as fedsim lab datasets lists them.", envvar="FEDSIM_DATA"
    ),
]

# Wide enough for a line per dataset where no terminal says how wide it is.
PIPED_WIDTH = 160

DatasetsJson = Annotated[bool, typer.Option("--json", help="Print the list as one JSON object.")]
CheckDatasets = Annotated[
    bool, typer.Option("--check", help="Load what is found, count its records, and say what is wrong.")
]


@dataclass(frozen=True)
class _DatasetRow:
    """A dataset as it is listed: ``records`` are those ``counted``, or those of the whole dataset."""

    here: AvailableDataset
    records: tuple[int, ...]
    fault: str = ""
    counted: bool = False

    @property
    def state(self) -> str:
        if self.here.about.generated:
            return "generated"
        if self.fault:
            return "faulty"
        return "found" if self.here.complete else "missing"


def datasets(
    data: DataFolder = DEFAULT_DATA_FOLDER,
    check: CheckDatasets = False,
    quiet: Quiet = False,
    as_json: DatasetsJson = False,
) -> None:
    """List the datasets of the paper and the generated ones: what is found, how large, and where to get the rest."""
    from fedsim_lab.datasets.registry import find_datasets

    rows = [
        _load_dataset_row(here, data) if check else _DatasetRow(here, here.about.records)
        for here in find_datasets(data)
    ]
    if as_json or not quiet:
        (_print_datasets_json if as_json else _print_datasets)(rows, data)
    if any(row.fault for row in rows):
        raise typer.Exit(2)


def data_folder(data: Path) -> Path:
    """The folder of the datasets; one that the user names must be there, for not all datasets need files."""
    return data if data == DEFAULT_DATA_FOLDER else existing_folder(data, "--data")


def existing_folder(folder: Path, option: str) -> Path:
    """A folder that is there."""
    if not folder.is_dir():
        raise FileError(f"{option} {folder} is no folder that can be read; name one that is there")
    return folder


def _load_dataset_row(here: AvailableDataset, folder: Path) -> _DatasetRow:
    from fedsim.errors import FedSimError
    from fedsim_lab.datasets.registry import load_dataset

    if not here.complete:
        return _DatasetRow(here, here.about.records)
    try:
        dataset = load_dataset(here.about.name, folder)
    except FedSimError as error:
        return _DatasetRow(here, here.about.records, str(error))
    counts = (len(dataset.primary), *(len(secondary.table) for secondary in dataset.secondaries))
    return _DatasetRow(here, counts, counted=True)


def _print_datasets_json(rows: list[_DatasetRow], folder: Path) -> None:
    import json

    typer.echo(
        json.dumps({"folder": str(folder), "datasets": [_dataset_as_dict(row) for row in rows]}, ensure_ascii=False)
    )


def _dataset_as_dict(row: _DatasetRow) -> dict[str, Any]:
    about = row.here.about
    files = [
        {
            "name": file.name,
            "found": str(row.here.paths[file.name]) if file.name in row.here.paths else None,
            "accepted": file.paths,
            "needed": file.needed,
            "holds": file.holds,
            "source": file.source,
            "licence": file.licence,
        }
        for file in about.files
    ]
    return {
        "name": about.name,
        "title": about.title,
        "state": row.state,
        "fault": row.fault or None,
        "records": row.records,
        "counted": row.counted,
        "task": about.task,
        "measure": about.measure,
        "unit": about.unit,
        "note": about.note or None,
        "files": files,
    }


def _print_datasets(rows: list[_DatasetRow], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_WIDTH)
    table = Table("dataset", "here", box=None, pad_edge=False)
    some_counted = any(row.counted for row in rows)
    table.add_column("records" if some_counted else "records in full", justify="right", no_wrap=True)
    table.add_column("what")
    table.add_column("licence")
    styles = {"missing": "yellow", "faulty": "red"}
    for row in rows:
        about = row.here.about
        table.add_row(
            Text(about.name, style="bold"),
            Text(row.state, style=styles.get(row.state, "green")),
            _format_record_counts(row) if row.counted or not some_counted else f"in full {_format_record_counts(row)}",
            Text(about.title),
            Text("; ".join(dict.fromkeys(file.licence for file in about.files if file.needed))),
        )
    console.print(table)
    _print_missing_files(rows, folder)


def _format_record_counts(row: _DatasetRow) -> str:
    return " + ".join(f"{count:,}" for count in row.records)


def _print_missing_files(rows: list[_DatasetRow], folder: Path) -> None:
    for row in rows:
        if row.fault:
            typer.echo(f"\n{row.here.about.name} is faulty: {row.fault}")
    missing = [file for row in rows for file in row.here.missing]
    if not folder.is_dir():
        typer.echo(f"\nThe folder {folder} is not there; name yours with --data or FEDSIM_DATA.")
    if missing:
        typer.echo(f"\nNot in {folder}:")
    for file in missing:
        more = "" if file.needed else " (not in the paper)"
        typer.echo(f"  {file.paths[0]}{more}: {file.holds}\n    from {file.source}; licence: {file.licence}")


# ``fedsim lab experiment``: train every rung of an experiment file and print the table


ExperimentPath = Annotated[Path, typer.Argument(help="Experiment file, such as experiments/hdb.toml.")]
ExperimentData = Annotated[Path, typer.Option(help="Folder with the tables the file names.", envvar="FEDSIM_DATA")]
ExperimentOut = Annotated[
    Path, typer.Option(help="Folder for prepared arrays and results; a second run goes on from there.")
]
ExperimentSeeds = Annotated[int, typer.Option(min=1, help="How many seeds per split.")]
TableMetric = Annotated[str, typer.Option(help="Metric of the table: rmse, r2, mae, accuracy or log_loss.")]
PrepareOnly = Annotated[
    bool, typer.Option("--prepare-only", help="Stop at the arrays, for training on another machine.")
]


def experiment(
    file: ExperimentPath,
    data: ExperimentData = DEFAULT_DATA_FOLDER,
    out: ExperimentOut = Path("fedsim-experiment"),
    seeds: ExperimentSeeds = 2,
    metric: TableMetric = "rmse",
    prepare_only: PrepareOnly = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Link, split and prepare the tables of an experiment, train its rungs, and print their test results.

    What is in the results file already is not trained again. On another machine with torch and numpy alone:
    python -m fedsim_lab.worker_pool OUT/rungs.json OUT OUT
    """
    import json
    from dataclasses import asdict

    from fedsim.contribution.result_store import ResultStore
    from fedsim.contribution.rungs import train_missing
    from fedsim_lab.dataset_cases import DatasetCases, save_cases
    from fedsim_lab.experiment_config import read_experiment_config, read_experiment_dataset
    from fedsim_lab.result_table import check_metric, markdown_table

    outline = read_experiment_config(file)
    cases = DatasetCases(read_experiment_dataset(outline, data)).each(outline.splits, range(seeds))
    if prepare_only:
        save_cases(cases, out)
        (out / "rungs.json").write_text(json.dumps([asdict(rung) for rung in outline.rungs]))
        if as_json:
            typer.echo(json.dumps({"folder": str(out)}, ensure_ascii=False))
        return
    results = ResultStore(out)
    train_missing(cases, outline.rungs, results, print_nothing if quiet or as_json else typer.echo)
    known = check_metric(metric, results.lines)
    if as_json:
        typer.echo(json.dumps({"metric": known, "trainings": results.lines}))
    elif not quiet:
        typer.echo(markdown_table(results.lines, known))


# ``fedsim lab reproduce``: a table or figure of the paper, ours beside theirs


ReproduceName = Annotated[
    str, typer.Argument(help="A table or figure such as table-real or figure-k, the ladder, or all of them: all.")
]
ReproduceSeeds = Annotated[int | None, typer.Option(min=1, help="How many seeds; 5, or 1 with --fast.")]
Fast = Annotated[bool, typer.Option("--fast", help="Fewer records, epochs and settings: minutes instead of hours.")]
StudiesFolder = Annotated[Path, typer.Option(help="Folder with the files that describe the studies.")]
ReproduceOut = Annotated[
    Path, typer.Option(help="Folder for results and pages; what was trained there is not trained again.")
]
PlanFolder = Annotated[
    Path | None,
    typer.Option(help="Train nothing; write what is to be trained into this folder, for a machine with torch alone."),
]
GatherFolder = Annotated[
    Path | None, typer.Option(help="First take over what such a machine trained: its folder of results.")
]


def reproduce(
    name: ReproduceName,
    seeds: ReproduceSeeds = None,
    fast: Fast = False,
    data: DataFolder = DEFAULT_DATA_FOLDER,
    studies: StudiesFolder = Path("experiments/paper"),
    out: ReproduceOut = Path("fedsim-reproduce"),
    plan: PlanFolder = None,
    gather: GatherFolder = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train what a table or figure of the paper shows, print it beside the paper's figures, and write a page.

    Datasets that are not there are named with the place to get them. Every training is kept: stop at any time and call
    again. Written are NAME.html, NAME.json, NAME.parquet (a row per training) and a picture per chart; with --fast they
    go into the subfolder fast, for they show that everything runs, not what it reaches.

    A plan is carried out by: python -m fedsim_lab.worker_pool PLAN/plan.json PLAN RESULTS WORKERS SECONDS

    fedsim lab reproduce table-parameters
    """
    from fedsim_lab.cli.handlers import ReproduceOptions, gather_results, run_reproduce, write_plan

    asked = ReproduceOptions(seeds or (1 if fast else 5), fast, data_folder(data), studies, out)
    if gather:
        gather_results(existing_folder(gather, "--gather"), asked)
    if plan:
        write_plan(name, asked, plan)
        return
    run_reproduce(name, asked, quiet=quiet, as_json=as_json)


# ``fedsim lab sweep``: which partners, metric, noise and learning suit a dataset?


DatasetName = Annotated[str, typer.Argument(help="A dataset of fedsim datasets.")]
GridName = Annotated[
    str, typer.Option("--grid", help="A grid: paper (the paper's own), partners, privacy, rate; or none to start from.")
]
SweepKs = Annotated[str, typer.Option("--k", help="Numbers of partners between commas, instead of the grid's.")]
SweepRates = Annotated[str, typer.Option("--rate", help="Learning rates between commas, instead of the grid's.")]
SweepMetrics = Annotated[
    str, typer.Option("--metric", help="Metrics between commas; hamming compares the paper's filters.")
]
SweepTaus = Annotated[
    str, typer.Option("--tau", help="Bounds on the greedy attack between commas; smaller is more noise.")
]
SweepBatches = Annotated[str, typer.Option("--batch", help="Records of a batch between commas, instead of the grid's.")]
SweepWidths = Annotated[
    str,
    typer.Option("--hidden", help="Widths of the local networks between commas, instead of the grid's."),
]
SweepDecays = Annotated[str, typer.Option("--decay", help="Weight decays between commas, instead of the grid's.")]
SweepTrials = Annotated[
    int, typer.Option(min=0, help="So many settings that Optuna chooses, instead of the whole grid; needs its extra.")
]
SweepMethod = Annotated[str, typer.Option(help="What is trained: fedsim, avgsim, featuresim, top1sim.")]
SplitName = Annotated[
    str, typer.Option("--split", help="random, or group: records with equal identifiers stay on one side.")
]
SweepSecondaries = Annotated[
    str, typer.Option(help="Secondaries that take part, between commas; the dataset's first where nothing is said.")
]
SweepPreset = Annotated[str, typer.Option(help="modern, paper, or the paper's sizes for a dataset, such as paper:hdb.")]
SweepEpochs = Annotated[int | None, typer.Option(min=1, help="Epochs, instead of the preset's.")]
SweepSeeds = Annotated[int, typer.Option(min=1, help="How often every setting is split and trained anew.")]
SweepRecords = Annotated[int, typer.Option(min=0, help="At most so many records of the primary; 0: all.")]
SweepOut = Annotated[Path, typer.Option(help="Folder for results; a second call goes on from there.")]


def sweep(
    dataset: DatasetName,
    grid: GridName = "none",
    k: SweepKs = "",
    rate: SweepRates = "",
    metric: SweepMetrics = "",
    tau: SweepTaus = "",
    batch: SweepBatches = "",
    hidden: SweepWidths = "",
    decay: SweepDecays = "",
    search: SweepTrials = 0,
    method: SweepMethod = "fedsim",
    split: SplitName = "random",
    secondaries: SweepSecondaries = "",
    preset: SweepPreset = "modern",
    epochs: SweepEpochs = None,
    seeds: SweepSeeds = 1,
    records: SweepRecords = 0,
    data: DataFolder = DEFAULT_DATA_FOLDER,
    out: SweepOut = Path("fedsim-sweep"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a dataset under many settings, rank them by the validation records, and show the test of the best.

    Every training is kept: stop at any time and call again.

    fedsim lab sweep city --k 4,8 --rate 0.001,0.003 --epochs 5
    """
    from fedsim_lab.cli.handlers import parse_grid, run_sweep
    from fedsim_lab.study_runner import StudyContext
    from fedsim_lab.sweep import SweepSubject

    subject = SweepSubject(dataset, method, preset, split, epochs, records, tuple(parse_names(secondaries)))
    given = {"k": k, "metric": metric, "tau": tau, "rate": rate, "batch": batch, "hidden": hidden, "decay": decay}
    bench = StudyContext(data_folder(data), out, seeds)
    run_sweep(subject, parse_grid(grid, given), bench, search, quiet=quiet, as_json=as_json)


app = typer.Typer(no_args_is_help=True, help="Research: the paper's datasets, experiments and figures, and benchmarks.")
for command in (datasets, experiment, reproduce, sweep, bench):
    app.command()(command)
