"""Options, option parsing, prompts and JSON output that several commands share; imports nothing heavy."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from fedsim.errors import SettingError, replace_unprintable

WANTED_NUMBERS = {int: "a whole number", float: "a number"}


class SectionedGroup(TyperGroup):
    """A group whose help lists the commands by section, with their whole summary."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a word in the place of a number is refused with the numbers that are allowed."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            annotation: Any = getattr(getattr(error.param, "type_descriptor", None), "annotation", None)
            wanted: str | None = WANTED_NUMBERS.get(annotation)
            faults: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
            if wanted and any("pars" in fault["type"] for fault in faults):  # out of range, Typer says it well
                low, high = (getattr(error.param, end, None) for end in ("min", "max"))
                limits = f" from {low}" * (low is not None) + f" to {high}" * (high is not None)
                error.message = f"'{faults[0]['input']}' is not {wanted}; give {wanted}{limits}"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help page."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if command.hidden:
                continue
            panel = str(getattr(command, "rich_help_panel", None) or "Commands")
            sections.setdefault(panel, []).append((name, (command.help or "").partition("\n\n")[0]))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=10)


MAX_WIDTH = 100  # of wrapped text


def terminal_width(most: int = MAX_WIDTH) -> int:
    """Return how wide text may be: as wide as the terminal, within a limit that also holds without one."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def option(metavar: str, text: str, *names: str, **limits: Any) -> Any:
    """Return the declaration of an option with a value, and its help."""
    return typer.Option(*names, metavar=metavar, help=text, **limits)


def flag(text: str, *names: str) -> Any:
    """Return the declaration of an option without a value, and its help."""
    return typer.Option(*names, help=text)


def argument(metavar: str, text: str) -> Any:
    """Return the declaration of a positional argument, and its help."""
    return typer.Argument(metavar=metavar, help=text)


TABLE_HELP = ".csv, .csv.gz, .tsv, .parquet or sqlite:///flats.db#table"
K_HELP = "Partner records per record. Default: 20."  # fedsim.types.DEFAULT_K, which would import numpy
JobFile = Annotated[Path, argument("JOB", "Job file that all parties share.")]
PartyPath = Annotated[Path, argument("PARTY_FILE", "Your own party file.")]
Insecure = Annotated[
    bool, flag("No certificates and no encryption; only between processes on one machine.", "--insecure")
]
Verbose = Annotated[bool, flag("Print more details.", "--verbose", "-v")]
Wait = Annotated[float, option("SECONDS", "Time to wait for parties that are offline.", min=0.1)]
Again = Annotated[bool, flag("Discard the stored result and start from the beginning.", "--again")]
Quiet = Annotated[bool, flag("Print errors only.", "--quiet", "-q")]
Json = Annotated[bool, flag("Print the result as one JSON object; combine with --quiet.", "--json")]
Separator = Annotated[str | None, option("CHAR", "Separator of a text table, such as ';' or tab.")]
SecondarySeparator = Annotated[str | None, option("CHAR", "Separator of the secondary's table, if it differs.")]
Decimal = Annotated[str | None, option("MARK", "comma or point: decimal mark where cells like 1,234 leave it open.")]
DateFormat = Annotated[
    str | None, option("ORDER", "Where dates like 1/2/2020 leave it open: day-month-year or month-day-year.")
]
SecondaryColumns = Annotated[str, option("COLUMNS", "Names of these columns in the secondary's table, if they differ.")]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class OutputMode:
    """What a command prints: text, one JSON object, or nothing but errors."""

    quiet: bool = False
    json: bool = False
    verbose: bool = False

    @property
    def silent(self) -> bool:
        """Return whether progress and text for people are off."""
        return self.quiet or self.json

    def show(self, value: object, print_text: Callable[[], None]) -> None:
        """Print the result in the form the user asked for."""
        if self.json:
            print_json(value)
        elif not self.quiet:
            print_text()


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines of text that may name columns, files or peers; none of them can control the terminal."""
    typer.echo(replace_unprintable(text, lines=True), err=err)


def print_json(value: object) -> None:
    """Print one JSON value on one line."""
    typer.echo(json.dumps(value))


def print_nothing(line: str = "") -> None:
    """Print nothing."""


def parse_names(listed: str) -> list[str]:
    """Split column names at commas.

    >>> parse_names("lat, lon")
    ['lat', 'lon']
    """
    return [name.strip() for name in listed.split(",") if name.strip()]


def check_seed(seed: int) -> int:
    """Return the random seed; refuse a negative one."""
    if seed < 0:
        raise SettingError(f"--seed {seed} is negative; use an integer of at least 0", code="negative-seed", seed=seed)
    return seed


def check_out_name(out: Path) -> Path:
    """Return a name to which file extensions can be added."""
    if not out.name:
        raise SettingError(f"--out '{out}' is not a file name; use a name such as audit", code="out-names-no-file")
    return out


def prompt_user(question: Callable[[], Answer]) -> Answer | None:
    """Return the user's answer, or ``None`` at the end of the input; Ctrl-C stops the command."""
    signal.siginterrupt(signal.SIGINT, True)  # polars makes the system resume reading after Ctrl-C, until Enter
    try:
        return question()
    except typer.Abort as abort:
        typer.echo(err=True)
        if isinstance(abort.__context__, KeyboardInterrupt):  # Typer raises Abort for Ctrl-C and for end of input
            raise KeyboardInterrupt from None
        return None
