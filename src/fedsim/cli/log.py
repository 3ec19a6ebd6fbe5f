"""``fedsim log``: an audit log for people, checked line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Quiet

if TYPE_CHECKING:
    from fedsim.party.audit_log import Entry

# Wide enough for a hash and some facts where no terminal says how wide it is.
PIPED = 200


def log(
    file: Annotated[Path, typer.Argument(help="The audit log, such as rentals-run/audit.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a party's audit log and check that no line was changed, added or removed.

    Note the last hash elsewhere: it shows later that the end of the log was not cut off.
    """
    from fedsim.errors import FileError
    from fedsim.party.audit_log import read_log

    entries, fault = [], None
    try:
        for entry in read_log(file):
            entries.append(entry)
    except FileError as error:
        fault = error
    if as_json or not quiet:
        (_tell_programs if as_json else _tell_people)(entries, str(fault) if fault else None)
    if fault:
        raise fault


def _tell_programs(entries: list[Entry], fault: str | None) -> None:
    import json
    from dataclasses import asdict

    last = entries[-1].hash if entries else None
    typer.echo(json.dumps({"entries": [asdict(entry) for entry in entries], "last": last, "fault": fault}))


def _tell_people(entries: list[Entry], fault: str | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fedsim.protocol.words import printable

    table = Table("time", "party", "what", "facts", box=None, pad_edge=False)
    for entry in entries:
        table.add_row(*(Text(printable(word)) for word in (entry.time, entry.party, entry.what, _facts(entry))))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED)
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines() if entries else ():
        typer.echo(line.rstrip())
    if not fault:
        typer.echo(
            f"{len(entries)} entries, each as it was written; last hash {entries[-1].hash if entries else 'none'}"
        )


def _facts(entry: Entry) -> str:
    return ", ".join(f"{name} {value}" for name, value in entry.facts.items())
