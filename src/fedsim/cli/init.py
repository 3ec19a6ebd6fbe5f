"""``fedsim init``: from two tables to files that train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.asking import answered
from fedsim.cli.options import Json, Quiet, Separator, keep_quiet, names
from fedsim.errors import SettingError

Primary = Annotated[
    str | None,
    typer.Option(
        metavar="TABLE", help="The primary's table: .csv, .csv.gz, .tsv, .parquet, or sqlite:///flats.db#table."
    ),
]
Secondary = Annotated[str | None, typer.Option(metavar="TABLE", help="The secondary's table, where it is at hand.")]
On = Annotated[str, typer.Option(metavar="COLUMNS", help="Columns that link, between commas; guessed without it.")]
OnSecondary = Annotated[
    str,
    typer.Option(metavar="COLUMNS", help="The same columns in the secondary's table, where it names them otherwise."),
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column of the primary to predict.")]
Task = Annotated[str | None, typer.Option(help="regression or classification.")]
Partners = Annotated[int | None, typer.Option("--k", min=1, max=10_000, help="Partners per record; 20 without it.")]
Tau = Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Noise on the similarities; 0 for none.")]
Epochs = Annotated[int | None, typer.Option(min=1, max=100_000, help="Epochs; as the preset has them without it.")]
SeparatorSecondary = Annotated[str | None, typer.Option(metavar="CHAR", help="The same for the secondary's table.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write; made if it is not there.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing: take the best guess, and say so.")]
Force = Annotated[bool, typer.Option("--force", help="Replace job and party files; never a key.")]


def init(
    primary: Primary = None,
    secondary: Secondary = None,
    on: On = "",
    on_secondary: OnSecondary = "",
    label: Label = None,
    task: Task = None,
    k: Partners = None,
    tau: Tau = None,
    epochs: Epochs = None,
    separator: Separator = None,
    separator_secondary: SeparatorSecondary = None,
    out: Out = Path(),
    yes: Yes = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look at the tables, propose how to link and what to learn, and write job.toml and a file for every party.

    With one table alone, that party's file is written, and the job with marks where the other side has to fill in.

    fedsim init --primary flats.csv --secondary rentals.csv --label price
    """
    from fedsim.cli.initialising import Asker, Wishes, run_init

    wishes = Wishes(
        primary=primary,
        secondary=secondary,
        on=names(on),
        on_secondary=names(on_secondary),
        label=label,
        task=task,
        k=k,
        tau=tau,
        epochs=epochs,
        separators={"primary": separator, "secondary": separator_secondary or separator},
    )
    say = keep_quiet if quiet or as_json else typer.echo
    found = run_init(wishes, out, Asker(_best_guess if yes else _ask), force=force, say=say)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))


def _best_guess(question: str, guess: str) -> str:
    return guess


def _ask(question: str, guess: str) -> str:
    answer: str | None = answered(lambda: typer.prompt(question, default=guess or None, err=True))
    if answer is None:
        raise SettingError("nobody answered; say --yes to take the best guess, or answer by options")
    return answer.strip()
