"""Tables, progress bars and JSON files that several commands write."""

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from fedsim.cli.options import echo, print_nothing, terminal_width
from fedsim.errors import replace_unprintable
from fedsim.report.formatting import format_duration
from fedsim.storage.files import atomic_write

ProgressCallback = Callable[[int, int], None]


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically; NaN and infinity are refused."""
    with atomic_write(path) as part:
        part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, one by one."""
    for line in lines:
        echo(line)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table under its column titles."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(as_text(title))
    for row in rows:
        table.add_row(*map(as_text, row))
    print_renderable(table)


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of texts, as wide as the terminal; the first row has the titles."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for place, title in enumerate(rows[0]):
        table.add_column(as_text(title), ratio=(2, 3, 6)[min(place, 2)])
    for row in rows[1:]:
        table.add_row(*map(as_text, row))
    console = Console(width=terminal_width(), highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().rstrip().splitlines()]


def print_named_values(values: Iterable[tuple[str, str]], name_width: int = 12) -> None:
    """Print names and values in two columns; names stand out on a terminal."""
    grid = two_column_grid(name_width)
    for name, value in values:
        grid.add_row(Text(name, style="yellow" if name == "warning" else "bold"), as_text(value))
    print_renderable(grid)


def two_column_grid(name_width: int) -> Table:
    """Return an empty grid of names and values; values are folded."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=name_width)
    grid.add_column(overflow="fold")
    return grid


def as_text(value: str) -> Text:
    """Return text in which names of files and columns cannot control a terminal."""
    return Text(replace_unprintable(value))


def print_renderable(renderable: RenderableType) -> None:
    """Print with rich, as wide as the terminal; into a pipe, without colours and as wide as needed."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100_000)
    with console.capture() as captured:
        console.print(renderable)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())  # with the escape sequences of rich; cells are cleaned by as_text


def wrap_text(start: str, text: str, *, hanging: int = 0) -> str:
    """Return text after its start, wrapped to the terminal; paths and names are never split.

    Later lines are indented as far as the text of the first, and ``hanging`` further.
    """
    width, indent = terminal_width(), " " * (len(start) + hanging)
    lines = textwrap.wrap(
        replace_unprintable(text),
        width,
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) or start


def progress_printer(*, silent: bool) -> Callable[[str], None]:
    """Return a function that prints one line of progress to standard error, wrapped in a terminal, or nothing."""
    if silent:
        return print_nothing
    wrapped = sys.stderr.isatty()  # logs have a line for every message
    return lambda line: echo(wrap_text("  ", line, hanging=2) if wrapped else f"  {line}", err=True)


@contextmanager
def progress_bar(title: str, unit: str = "", *, hidden: bool = False) -> Iterator[ProgressCallback | None]:
    """Show a bar on standard error that is moved by ``(done, total)``; yield ``None`` where no terminal is.

    Print nothing while the bar is shown.
    """
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield None
        return
    columns = TextColumn(title), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None, rate="")
        started = time.perf_counter()

        def move(done: int, total: int) -> None:
            seconds = max(time.perf_counter() - started, 1e-9)
            rate = f"{done / seconds:,.0f} {unit}/s, " if unit else ""
            left = f"{format_duration(seconds * (total - done) / done)} left" if done else ""
            progress.update(task, completed=done, total=total, rate=f"{rate}{left}")

        yield move
