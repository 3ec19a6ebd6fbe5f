"""``fedsim experiment``: train every rung of an experiment file and print the table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.datasets import DATA
from fedsim.cli.options import Json, Quiet, keep_quiet

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
    data: Data = DATA,
    out: Out = Path("fedsim-experiment"),
    seeds: Seeds = 2,
    metric: Metric = "rmse",
    prepare_only: PrepareOnly = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Link, split and prepare the tables of an experiment, train its rungs, and print their test results.

    What is in the results file already is not trained again. On another machine with torch and numpy alone:
    python -m fedsim.experiment.run OUT/rungs.json OUT OUT
    """
    import json
    from dataclasses import asdict

    from fedsim.experiment.cases import Cases, save_cases
    from fedsim.experiment.outline import read_outline
    from fedsim.experiment.own_files import read_dataset
    from fedsim.experiment.results import Results
    from fedsim.experiment.run import climb
    from fedsim.experiment.table import checked_metric, table

    outline = read_outline(file)
    cases = Cases(read_dataset(outline, data)).each(outline.splits, range(seeds))
    if prepare_only:
        save_cases(cases, out)
        (out / "rungs.json").write_text(json.dumps([asdict(rung) for rung in outline.rungs]))
        if as_json:
            typer.echo(json.dumps({"folder": str(out)}, ensure_ascii=False))
        return
    results = Results(out)
    climb(cases, outline.rungs, results, keep_quiet if quiet or as_json else typer.echo)
    known = checked_metric(metric, results.lines)
    if as_json:
        typer.echo(json.dumps({"metric": known, "trainings": results.lines}))
    elif not quiet:
        typer.echo(table(results.lines, known))
