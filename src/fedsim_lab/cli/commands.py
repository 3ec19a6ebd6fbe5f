"""Commands of ``fedsim lab``: bench, datasets, faults, plan, reproduce, sweep and tradeoff."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.cli import options as opt
from fedsim.cli.options import Json, OutputMode, Quiet, parse_names
from fedsim.errors import FedSimError, FileError

if TYPE_CHECKING:
    from fedsim_lab.datasets.dataset_registry import AvailableDataset

DataFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with one folder of files per dataset; generated datasets need none.",
        envvar="FEDSIM_DATA",
    ),
]
OutFolder = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder for the results; a second run continues there.")
]
Workers = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Trainings at the same time, each in a process; they share a GPU."),
]


def bench(
    name: Annotated[str, opt.argument("NAME", "Name of a file in the folder benchmarks.")] = "linkage",
    cases: Annotated[list[str] | None, opt.argument("CASE", "Cases to run. Default: all.")] = None,
) -> None:
    """Run a benchmark of the folder benchmarks and print its table."""
    script = Path("benchmarks") / f"{name}.py"
    if not script.is_file():
        raise FileError(f"{script} does not exist; run this command in the project's folder", code="no-benchmark")
    sys.path.insert(0, str(script.parent.resolve()))
    run = runpy.run_path(str(script.resolve())).get("main")
    if run is None:
        raise FileError(f"{script} has no main(); choose another benchmark, such as linkage", code="no-benchmark")
    run(cases)


def datasets(
    data: DataFolder = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as one JSON object.")] = False,
) -> None:
    """List the datasets: which can be loaded, with how many records, and where to get the others."""
    from fedsim_lab.datasets.dataset_registry import find_datasets

    rows = [_load_dataset_row(here, data) for here in find_datasets(data)]
    value = {"folder": None if data is None else str(data), "datasets": [row.as_dict() for row in rows]}
    OutputMode(quiet, as_json).show(value, lambda: _print_datasets(rows, data))
    if any(row.fault for row in rows):
        raise typer.Exit(2)


@dataclass(frozen=True)
class _DatasetRow:
    """A dataset in the list; ``records`` are those of each party that can be loaded here, none without its files."""

    here: AvailableDataset
    records: tuple[int, ...] = ()
    fault: str = ""

    @property
    def state(self) -> str:
        if self.here.about.generated:
            return "generated"
        if self.fault:
            return "faulty"
        return "found" if self.here.complete else "missing"

    def as_dict(self) -> dict[str, Any]:
        about = self.here.about
        files = [
            {
                "name": file.name,
                "found": str(self.here.paths[file.name]) if file.name in self.here.paths else None,
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
            "state": self.state,
            "fault": self.fault or None,
            "records": self.records or None,
            "complete": about.records,
            "task": about.task,
            "measure": about.measure,
            "unit": about.unit,
            "note": about.note or None,
            "files": files,
        }


def _load_dataset_row(here: AvailableDataset, folder: Path | None) -> _DatasetRow:
    from fedsim_lab.datasets.dataset_registry import load_dataset

    if here.about.generated:
        return _DatasetRow(here, here.about.records)
    if not here.complete:
        return _DatasetRow(here)
    try:
        dataset = load_dataset(here.about.name, folder)
    except FedSimError as error:
        return _DatasetRow(here, fault=str(error))
    return _DatasetRow(here, (len(dataset.primary), *(len(secondary.table) for secondary in dataset.secondaries)))


def _print_datasets(rows: list[_DatasetRow], folder: Path | None) -> None:
    from fedsim.cli.output import print_table

    cells = []
    for row in rows:
        about, counts = row.here.about, " + ".join(f"{count:,}" for count in row.records) or "-"
        licence = "; ".join(dict.fromkeys(file.licence for file in about.files if file.needed))
        cells.append((about.name, row.state, counts, about.title, licence))
    print_table(("dataset", "state", "records", "content", "licence"), cells)
    for row in rows:
        if row.fault:
            typer.echo(f"\n{row.here.about.name} is faulty: {row.fault}")
    missing = [file for row in rows for file in row.here.missing]
    if folder is None:
        typer.echo("\nNo data folder: use --data or FEDSIM_DATA. These files are read from it:")
    elif not folder.is_dir():
        typer.echo(f"\nThe folder {folder} does not exist; use --data or FEDSIM_DATA. These files are read from it:")
    elif missing:
        typer.echo(f"\nNot in {folder}:")
    for file in missing:
        more = "" if file.needed else " (not in the paper)"
        typer.echo(f"  {file.paths[0]}{more}: {file.holds}\n    from {file.source}; licence: {file.licence}")


def check_folder(folder: Path | None, option: str) -> Path | None:
    """Return the folder after checking that it exists, or ``None`` if the user named none."""
    if folder is not None and not folder.is_dir():
        raise FileError(f"{option} {folder} is not a folder; use one that exists", code="no-such-folder")
    return folder


def faults(
    schedules: Annotated[int, opt.option("N", "Random schedules to run.", min=0)] = 10,
    seed: Annotated[int, opt.option("N", "Random seed of the first schedule; the others follow.", min=0)] = 0,
    kills: Annotated[int, opt.option("N", "Also run one job that is killed N times.", min=0)] = 0,
    frames: Annotated[int, opt.option("N", "Also send N mutated frames to every role and phase.", min=0)] = 0,
    relay: Annotated[bool, opt.flag("Let the parties of the schedules meet at a relay.", "--relay")] = False,
    workers: Annotated[int, opt.option("N", "Jobs to run at the same time.", min=1)] = 2,
    out: OutFolder = Path("fedsim-faults"),
    report: Annotated[Path | None, opt.option("FILE", "Write a report in Markdown.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run jobs of real processes under kills, pauses, broken networks, wrong clocks and full disks.

    Every job must end with the weights of an undisturbed run, or refuse with the cause and end with them after repair;
    if one does not, its folder is kept and the exit code is 2. Network namespaces and full disks need root on Linux,
    wrong clocks a C compiler; without them these faults are left out. Schedules that held are not run again.

    fedsim lab faults --schedules 3
    """
    from fedsim.cli.output import print_lines, progress_printer
    from fedsim_lab.faults.report import CampaignOptions, run_campaign, summary_lines, write_fault_report

    mode = OutputMode(quiet, as_json)
    options = CampaignOptions(schedules, opt.check_seed(seed), kills, frames, workers, out, relay)
    results = run_campaign(options, progress_printer(silent=mode.silent))
    if report is not None:
        write_fault_report(results, report)
    mode.show({"results": results}, lambda: print_lines(summary_lines(results)))
    if any(result["result"] == "violated" for result in results):
        raise typer.Exit(2)


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="table-real, figure-k, ..., leaderboard, all or checklist.")
    ],
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Random seeds. Default: 5, or 1 with --fast.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fewer records, epochs and settings: minutes instead of hours.")
    ] = False,
    data: DataFolder = None,
    studies: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder with the files that describe the studies.")
    ] = Path("experiments/paper"),
    out: OutFolder = Path("fedsim-reproduce"),
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Train nothing; write the trainings to this folder, for another machine."),
    ] = None,
    gather: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="First collect the results of such a machine.")
    ] = None,
    workers: Workers = 1,
    stored: Annotated[
        bool, typer.Option("--stored", help="Train nothing; show the trainings that `fedsim lab plan` stored.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper, print it beside the paper's numbers and write a page.

    Datasets that are missing are named with their source. Results are stored: stop at any time and run the command
    again to continue. The command writes NAME.html, NAME.json, NAME.parquet (a row per training) and a picture per
    chart; with --fast into the subfolder fast. NAME checklist prints every item of the paper with its evidence.

    To carry out a plan, run python -m fedsim_lab.worker_pool PLAN/plan.json PLAN RESULTS WORKERS SECONDS.

    fedsim lab reproduce table-parameters
    """
    from fedsim_lab.cli.handlers import ReproduceOptions, gather_results, run_reproduce, write_plan

    options = ReproduceOptions(
        seeds or (1 if fast else 5), fast, check_folder(data, "--data"), studies, out, workers, stored
    )
    if gather:
        check_folder(gather, "--gather")
        gather_results(gather, options)
    if plan:
        write_plan(name, options, plan)
        return
    run_reproduce(name, options, OutputMode(quiet, as_json))


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan.")] = Path("experiments/paper/plan.toml"),
    data: DataFolder = None,
    hours: Annotated[
        float, typer.Option(metavar="HOURS", min=0, help="Start no training after HOURS; 0 only counts.")
    ] = 0,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Threads of a training.")] = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the trainings behind the paper's tables, the most valuable first, or count those that are stored.

    Every training is a line in results/paper/trainings.jsonl beside the folder of the plan, with its settings, the
    revision of the code and the time it took. Stop at any time and run the command again to continue.

    fedsim lab plan --hours 8
    """
    from fedsim_lab.cli.handlers import run_training_plan

    run_training_plan(file, check_folder(data, "--data"), hours, threads, OutputMode(quiet, as_json))


def sweep(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A dataset of `fedsim lab datasets`.")],
    grid: Annotated[str, typer.Option(metavar="NAME", help="Grid: paper, partners, privacy, rate or none.")] = "none",
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=LIST",
            help="Values instead of the grid's, such as k=5,10: k, metric (hamming compares the paper's filters), tau, "
            "decay or a setting of a job's [training]. Repeat for others.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="Method to train: fedsim, avgsim, featuresim or top1sim.")
    ] = "fedsim",
    split: Annotated[
        str, typer.Option(metavar="NAME", help="random, or group to keep equal identifiers on one side.")
    ] = "random",
    secondaries: Annotated[
        str, typer.Option(metavar="LIST", help="Secondaries, separated by commas. Default: the first.")
    ] = "",
    preset: Annotated[
        str, typer.Option(metavar="NAME", help="modern, paper, or the paper's sizes for a dataset: paper:hdb.")
    ] = "modern",
    epochs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Epochs. Default: those of the preset.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Random seeds per setting.")] = 1,
    records: Annotated[int, typer.Option(metavar="N", min=0, help="At most this many primary records; 0 for all.")] = 0,
    data: DataFolder = None,
    out: OutFolder = Path("fedsim-sweep"),
    workers: Workers = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a dataset with many settings, rank them by validation score, and show the test score of the best.

    Results are stored: stop at any time and run the command again to continue.

    fedsim lab sweep city --try k=4,8 --try learning_rate=0.001,0.003 --epochs 5
    """
    from fedsim_lab.cli.handlers import parse_grid, run_sweep
    from fedsim_lab.study_runner import StudyContext
    from fedsim_lab.sweep import SweepSubject

    subject = SweepSubject(dataset, method, preset, split, epochs, records, tuple(parse_names(secondaries)))
    context = StudyContext(check_folder(data, "--data"), out, seeds, workers=workers)
    run_sweep(subject, parse_grid(grid, values or []), context, OutputMode(quiet, as_json))


def tradeoff(
    job: opt.JobFile,
    parties: Annotated[list[Path], opt.argument("PARTY_FILE", "Files of the primary and a secondary.")],
    out: Annotated[Path, opt.option("NAME", "Write NAME.json and NAME.html.")] = Path("tradeoff"),
    sweep: Annotated[str, opt.option("WHAT", "tau, blur or features.")] = "tau",
    seeds: Annotated[int, opt.option("N", "Number of random seeds.", min=1, max=20)] = 1,
    epochs: Annotated[int, opt.option("N", "Epochs of each training.", min=1)] = 5,
    most_records: Annotated[int, opt.option("N", "Sample larger tables to this many records.", min=20)] = 3_000,
    seed: Annotated[int, opt.option("N", "First random seed.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Vary one protection; report the best attack's gain and the model's quality at each setting.

    Nothing is sent; the tables of the party files are read.

    fedsim lab tradeoff job.toml city.toml rentals.toml --sweep features
    """
    from fedsim_audit.audit_report import AuditSettings
    from fedsim_lab.tradeoff import run_tradeoff

    first = opt.check_seed(seed)
    settings = [AuditSettings(seed=first + i, epochs=epochs, most_records=most_records) for i in range(seeds)]
    run_tradeoff(job, parties, (settings, sweep), opt.check_out_name(out), OutputMode(quiet, as_json))


app = typer.Typer(
    no_args_is_help=True,
    cls=opt.SectionedGroup,
    help="Work with the paper's datasets, figures and benchmarks.",
)
for command in (datasets, plan, reproduce, sweep, tradeoff, bench, faults):
    app.command()(command)
