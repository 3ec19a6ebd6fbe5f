"""The commands and the options they share."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsim import __version__
from fedsim.cli.approve import approve
from fedsim.cli.audit import audit
from fedsim.cli.bench import bench
from fedsim.cli.board import board
from fedsim.cli.certs import certs
from fedsim.cli.check import check
from fedsim.cli.compare import compare
from fedsim.cli.datasets import datasets
from fedsim.cli.demo import demo
from fedsim.cli.encode import encode
from fedsim.cli.experiment import experiment
from fedsim.cli.explain import explain
from fedsim.cli.init import init
from fedsim.cli.key import key
from fedsim.cli.link import link
from fedsim.cli.log import log
from fedsim.cli.parties import coordinator, primary, secondary, train
from fedsim.cli.predict import predict, serve
from fedsim.cli.privacy import app as privacy
from fedsim.cli.reproduce import reproduce
from fedsim.cli.runs import report, runs
from fedsim.cli.sweep import sweep

# Tracebacks with local variables would show records.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
COMMANDS = {
    "First steps": (demo, init, explain),
    "Agree on a job": (key, certs, approve, check, audit, compare),
    "Run it": (train, coordinator, primary, secondary, board),
    "Use what was learnt": (runs, report, predict, serve, log),
    "Link tables, without learning": (link, encode),
    "Measure": (experiment, reproduce, sweep, datasets, bench),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(privacy, name="privacy", rich_help_panel="Agree on a job")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedsim {__version__}")
        raise typer.Exit


@app.callback()
def fedsim(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from; works anywhere.")] = False,
) -> None:
    """Learn together from tables that share no key: find the most similar records of a partner, and use them all."""
