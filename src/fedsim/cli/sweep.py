"""``fedsim sweep``: which partners, metric, noise and learning suit a dataset?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.datasets import DATA, Data, data_folder
from fedsim.cli.options import Json, Quiet, names

Dataset = Annotated[str, typer.Argument(help="A dataset of fedsim datasets.")]
GridName = Annotated[
    str, typer.Option("--grid", help="A grid: paper (the paper's own), partners, privacy, rate; or none to start from.")
]
Ks = Annotated[str, typer.Option("--k", help="Numbers of partners between commas, instead of the grid's.")]
Rates = Annotated[str, typer.Option("--rate", help="Learning rates between commas, instead of the grid's.")]
Metrics = Annotated[str, typer.Option("--metric", help="Metrics between commas; hamming compares the paper's filters.")]
Taus = Annotated[str, typer.Option("--tau", help="Bounds on the greedy attack between commas; smaller is more noise.")]
Batches = Annotated[str, typer.Option("--batch", help="Records of a batch between commas, instead of the grid's.")]
Widths = Annotated[
    str,
    typer.Option("--hidden", help="Widths of the local networks between commas, instead of the grid's."),
]
Decays = Annotated[str, typer.Option("--decay", help="Weight decays between commas, instead of the grid's.")]
Search = Annotated[
    int, typer.Option(min=0, help="So many settings that Optuna chooses, instead of the whole grid; needs its extra.")
]
Method = Annotated[str, typer.Option(help="What is trained: fedsim, avgsim, featuresim, top1sim.")]
SplitName = Annotated[
    str, typer.Option("--split", help="random, or group: records with equal identifiers stay on one side.")
]
Secondaries = Annotated[
    str, typer.Option(help="Secondaries that take part, between commas; the dataset's first where nothing is said.")
]
Preset = Annotated[str, typer.Option(help="modern, paper, or the paper's sizes for a dataset, such as paper:hdb.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs, instead of the preset's.")]
Seeds = Annotated[int, typer.Option(min=1, help="How often every setting is split and trained anew.")]
Records = Annotated[int, typer.Option(min=0, help="At most so many records of the primary; 0: all.")]
Out = Annotated[Path, typer.Option(help="Folder for results; a second call goes on from there.")]


def sweep(
    dataset: Dataset,
    grid: GridName = "none",
    k: Ks = "",
    rate: Rates = "",
    metric: Metrics = "",
    tau: Taus = "",
    batch: Batches = "",
    hidden: Widths = "",
    decay: Decays = "",
    search: Search = 0,
    method: Method = "fedsim",
    split: SplitName = "random",
    secondaries: Secondaries = "",
    preset: Preset = "modern",
    epochs: Epochs = None,
    seeds: Seeds = 1,
    records: Records = 0,
    data: Data = DATA,
    out: Out = Path("fedsim-sweep"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a dataset under many settings, rank them by the validation records, and show the test of the best.

    Every training is kept: stop at any time and call again.

    fedsim sweep city --k 4,8 --rate 0.001,0.003 --epochs 5
    """
    from fedsim.cli.sweeping import grid_from, sweep_and_tell
    from fedsim.experiment.study_run import Bench
    from fedsim.experiment.sweep import Subject

    subject = Subject(dataset, method, preset, split, epochs, records, tuple(names(secondaries)))
    given = {"k": k, "metric": metric, "tau": tau, "rate": rate, "batch": batch, "hidden": hidden, "decay": decay}
    bench = Bench(data_folder(data), out, seeds)
    sweep_and_tell(subject, grid_from(grid, given), bench, search, quiet=quiet, as_json=as_json)
