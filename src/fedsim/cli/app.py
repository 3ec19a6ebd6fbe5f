"""The Typer application: every command and the panel of the help it is listed in."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from fedsim import __version__
from fedsim.cli.commands.link import encode, link
from fedsim.cli.commands.review import approve, audit, check, compare
from fedsim.cli.commands.review import privacy_app as privacy
from fedsim.cli.commands.run import log, party, predict, report, runs, serve, train
from fedsim.cli.commands.setup import certs, demo, explain, init, key

# Tracebacks with local variables would show records.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
COMMANDS = {
    "First steps": (demo, init, explain),
    "Agree on a job": (key, certs, approve, check, audit, compare),
    "Run it": (train, party),
    "Use what was learnt": (runs, report, predict, serve, log),
    "Link tables, without learning": (link, encode),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(privacy, name="privacy", rich_help_panel="Agree on a job")
for extension in entry_points(group="fedsim.commands"):  # commands of other packages: `fedsim lab` of fedsim_lab
    app.add_typer(extension.load(), name=extension.name, rich_help_panel="Research")


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
