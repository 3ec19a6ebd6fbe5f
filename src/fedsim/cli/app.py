"""The Typer application: every command and the section of the help that lists it."""

from collections.abc import Callable
from typing import Annotated

import typer

from fedsim import __version__
from fedsim.cli import job_commands as job, table_commands as table
from fedsim.cli.options import SectionedGroup, flag
from fedsim.registry import COMMANDS

# A name stands for the command of a package beside the core.
SECTIONS: dict[str, tuple[Callable[..., None] | str, ...]] = {
    "First steps": (table.try_tables, table.demo, table.init, table.explain),
    "Agree on a job": (job.approve, job.check, "audit", job.compare, job.tune),
    "Run a job": (job.train, job.party, "relay"),
    "Use the results": (job.runs, job.report, job.predict, "serve"),
    "Link tables without training": ("link", "encode"),
}
GROUPS = {"privacy": job.privacy_app}

# Plain help wraps well at 80 columns. Tracebacks with local variables would show records.
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=SectionedGroup,
    epilog="Research (datasets, experiments, figures and benchmarks): fedsim lab --help",
)
for section, listed in SECTIONS.items():
    for command in listed:
        if not isinstance(command, str):
            name = command.__name__.removesuffix("_tables")  # try is a keyword of Python
            app.command(name, rich_help_panel=section)(command)
        elif command in COMMANDS:
            app.command(command, rich_help_panel=section)(COMMANDS[command])
for title, group in GROUPS.items():
    app.add_typer(group, name=title, rich_help_panel="Agree on a job")
for name in COMMANDS:
    group_name, _, command_name = name.rpartition(" ")
    if group_name:
        GROUPS[group_name].command(command_name)(COMMANDS[name])
    elif isinstance(COMMANDS[name], typer.Typer):
        section = COMMANDS.detail(name, "section")
        app.add_typer(COMMANDS[name], name=name, hidden=section is None, rich_help_panel=section)


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
