"""The Typer application: every command and the section of the help that lists it."""

from importlib.metadata import entry_points
from typing import Annotated

import typer

from fedsim import __version__
from fedsim.cli import job_commands as job, table_commands as table
from fedsim.cli.options import SectionedGroup, flag
from fedsim.registry import load_plugins

COMMANDS = {
    "First steps": (table.demo, table.profile, table.init, table.explain),
    "Agree on a job": (job.approve, job.check, job.audit, job.compare, job.tune),
    "Run a job": (job.train, job.party, job.relay),
    "Use the results": (job.runs, job.report, job.predict, job.serve),
    "Link tables without training": (table.link, table.encode),
}

load_plugins()
# Plain help wraps well at 80 columns. Tracebacks with local variables would show records.
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=SectionedGroup,
    epilog="Research (datasets, experiments, figures and benchmarks): fedsim lab --help",
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(table.certs_app, name="certs", rich_help_panel="Agree on a job")
app.add_typer(job.privacy_app, name="privacy", rich_help_panel="Agree on a job")
for extension in entry_points(group="fedsim.commands"):  # commands of other packages: `fedsim lab` of fedsim_lab
    app.add_typer(extension.load(), name=extension.name, hidden=True)  # the end of the help names `lab`


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedsim {__version__}")
        raise typer.Exit


@app.callback()
def fedsim(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, flag("Show a traceback after an error; accepted anywhere.", "--debug")] = False,
) -> None:
    """Train one model on the tables of several parties that share no key, using fuzzy record linkage."""
