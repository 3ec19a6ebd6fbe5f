"""The Typer application: every command and the section of the help that lists it."""

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedsim import __version__
from fedsim.cli import job_commands as job, table_commands as table
from fedsim.cli.options import flag
from fedsim.registry import load_plugins

COMMANDS = {
    "First steps": (table.demo, table.init, table.explain),
    "Agree on a job": (table.key, table.certs, job.approve, job.check, job.audit, job.compare),
    "Run a job": (job.train, job.party),
    "Use the results": (job.runs, job.report, job.predict, job.serve, job.log),
    "Link tables without training": (table.link, table.encode),
}


class SectionedGroup(TyperGroup):
    """A group whose help lists the commands by section, with their whole summary."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help page."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = str(getattr(command, "rich_help_panel", None) or "Commands")
            sections.setdefault(panel, []).append((name, (command.help or "").partition("\n\n")[0]))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=10)


load_plugins()
# Plain help wraps well at 80 columns. Tracebacks with local variables would show records.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, cls=SectionedGroup)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(job.privacy_app, name="privacy", rich_help_panel="Agree on a job")
for extension in entry_points(group="fedsim.commands"):  # commands of other packages: `fedsim lab` of fedsim_lab
    app.add_typer(extension.load(), name=extension.name, rich_help_panel="Research")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedsim {__version__}")
        raise typer.Exit


@app.callback()
def fedsim(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, flag("Show a traceback after an error; works anywhere.", "--debug")] = False,
) -> None:
    """Train one model on the tables of several parties that share no key, by fuzzy record linkage."""
