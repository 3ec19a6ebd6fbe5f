"""``fedsim experiment``: train every rung of an experiment file and print the table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(help="Experiment file, such as experiments/hdb.toml.")]
Data = Annotated[Path, typer.Option(help="Folder with the tables the file names.", envvar="FEDSIM_DATA")]
Out = Annotated[Path, typer.Option(help="Folder for prepared arrays and results; a second run goes on from there.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds per split.")]
Metric = Annotated[str, typer.Option(help="Metric of the table: rmse, r2, mae, accuracy or log_loss.")]
PrepareOnly = Annotated[
    bool, typer.Option("--prepare-only", help="Stop at the arrays, for training on another machine.")
]


def experiment(
    file: File,
    data: Data = Path("../shared/data"),
    out: Out = Path("fedsim-experiment"),
    seeds: Seeds = 2,
    metric: Metric = "rmse",
    prepare_only: PrepareOnly = False,
) -> None:
    """Link, split and prepare the tables of an experiment, train its rungs, and print their test results.

    What is in the results file already is not trained again. On another machine with torch and numpy alone:
    python -m fedsim.experiment.run FILE OUT OUT/results.jsonl
    """
    from fedsim.experiment.outline import read_outline
    from fedsim.experiment.prepare import save_arrays
    from fedsim.experiment.run import climb
    from fedsim.experiment.table import print_table

    outline, results = read_outline(file), out / "results.jsonl"
    save_arrays(outline, data, seeds, out)
    if not prepare_only:
        climb(outline, out, results)
        print_table(results, metric)
