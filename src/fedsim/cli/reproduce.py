"""``fedsim reproduce``: a table or figure of the paper, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.datasets import DATA, Data, data_folder, there
from fedsim.cli.options import Json, Quiet

Name = Annotated[
    str, typer.Argument(help="A table or figure such as table-real or figure-k, the ladder, or all of them: all.")
]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many seeds; 5, or 1 with --fast.")]
Fast = Annotated[bool, typer.Option("--fast", help="Fewer records, epochs and settings: minutes instead of hours.")]
Studies = Annotated[Path, typer.Option(help="Folder with the files that describe the studies.")]
Out = Annotated[Path, typer.Option(help="Folder for results and pages; what was trained there is not trained again.")]
Plan = Annotated[
    Path | None,
    typer.Option(help="Train nothing; write what is to be trained into this folder, for a machine with torch alone."),
]
Gather = Annotated[
    Path | None, typer.Option(help="First take over what such a machine trained: its folder of results.")
]


def reproduce(
    name: Name,
    seeds: Seeds = None,
    fast: Fast = False,
    data: Data = DATA,
    studies: Studies = Path("experiments/paper"),
    out: Out = Path("fedsim-reproduce"),
    plan: Plan = None,
    gather: Gather = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train what a table or figure of the paper shows, print it beside the paper's figures, and write a page.

    Datasets that are not there are named with the place to get them. Every training is kept: stop at any time and call
    again. Written are NAME.html, NAME.json, NAME.parquet (a row per training) and a picture per chart; with --fast they
    go into the subfolder fast, for they show that everything runs, not what it reaches.

    A plan is carried out by: python -m fedsim.experiment.crew PLAN/plan.json PLAN RESULTS WORKERS SECONDS

    fedsim reproduce table-parameters
    """
    from fedsim.cli.reproducing import Asked, gather_and_tell, plan_and_tell, reproduce_and_tell

    asked = Asked(seeds or (1 if fast else 5), fast, data_folder(data), studies, out)
    if gather:
        gather_and_tell(there(gather, "--gather"), asked)
    if plan:
        plan_and_tell(name, asked, plan)
        return
    reproduce_and_tell(name, asked, quiet=quiet, as_json=as_json)
