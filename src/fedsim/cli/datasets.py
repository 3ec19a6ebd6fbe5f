"""``fedsim datasets``: which datasets are here, and where to get the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsim.cli.options import Quiet
from fedsim.errors import FileError

if TYPE_CHECKING:
    from fedsim.data.datasets.catalogue import Found

DATA = Path("../shared/data")

Data = Annotated[
    Path,
    typer.Option(
        help="Folder with one folder of files per dataset, as fedsim datasets lists them.", envvar="FEDSIM_DATA"
    ),
]

# Wide enough for a line per dataset where no terminal says how wide it is.
PIPED = 160

AsJson = Annotated[bool, typer.Option("--json", help="Print the list as one JSON object.")]
Check = Annotated[bool, typer.Option("--check", help="Load what is found, count its records, and say what is wrong.")]


@dataclass(frozen=True)
class _Row:
    """A dataset as it is listed: ``records`` are those ``counted``, or those of the whole dataset."""

    here: Found
    records: tuple[int, ...]
    fault: str = ""
    counted: bool = False

    @property
    def state(self) -> str:
        if self.here.about.generated:
            return "generated"
        if self.fault:
            return "faulty"
        return "found" if self.here.complete else "missing"


def datasets(data: Data = DATA, check: Check = False, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """List the datasets of the paper and the generated ones: what is found, how large, and where to get the rest."""
    from fedsim.data.datasets import found

    rows = [_checked(here, data) if check else _Row(here, here.about.records) for here in found(data)]
    if as_json or not quiet:
        (_tell_programs if as_json else _tell_people)(rows, data)
    if any(row.fault for row in rows):
        raise typer.Exit(2)


def data_folder(data: Path) -> Path:
    """The folder of the datasets; one that the user names must be there, for not all datasets need files."""
    return data if data == DATA else there(data, "--data")


def there(folder: Path, option: str) -> Path:
    """A folder that is there."""
    if not folder.is_dir():
        raise FileError(f"{option} {folder} is no folder that can be read; name one that is there")
    return folder


def _checked(here: Found, folder: Path) -> _Row:
    from fedsim.data.datasets import load
    from fedsim.errors import FedSimError

    if not here.complete:
        return _Row(here, here.about.records)
    try:
        dataset = load(here.about.name, folder)
    except FedSimError as error:
        return _Row(here, here.about.records, str(error))
    counts = (len(dataset.primary), *(len(secondary.table) for secondary in dataset.secondaries))
    return _Row(here, counts, counted=True)


def _tell_programs(rows: list[_Row], folder: Path) -> None:
    import json

    typer.echo(json.dumps({"folder": str(folder), "datasets": [_described(row) for row in rows]}, ensure_ascii=False))


def _described(row: _Row) -> dict[str, Any]:
    about = row.here.about
    files = [
        {
            "name": file.name,
            "found": str(row.here.paths[file.name]) if file.name in row.here.paths else None,
            "accepted": file.paths,
            "needed": file.needed,
            "holds": file.holds,
            "source": file.source,
            "licence": file.licence,
        }
        for file in about.files
    ]
    return {
        "name": about.name,
        "title": about.title,
        "state": row.state,
        "fault": row.fault or None,
        "records": row.records,
        "counted": row.counted,
        "task": about.task,
        "measure": about.measure,
        "unit": about.unit,
        "note": about.note or None,
        "files": files,
    }


def _tell_people(rows: list[_Row], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED)
    table = Table("dataset", "here", box=None, pad_edge=False)
    some_counted = any(row.counted for row in rows)
    table.add_column("records" if some_counted else "records in full", justify="right", no_wrap=True)
    table.add_column("what")
    table.add_column("licence")
    styles = {"missing": "yellow", "faulty": "red"}
    for row in rows:
        about = row.here.about
        table.add_row(
            Text(about.name, style="bold"),
            Text(row.state, style=styles.get(row.state, "green")),
            _records(row) if row.counted or not some_counted else f"in full {_records(row)}",
            Text(about.title),
            Text("; ".join(dict.fromkeys(file.licence for file in about.files if file.needed))),
        )
    console.print(table)
    _tell_rest(rows, folder)


def _records(row: _Row) -> str:
    return " + ".join(f"{count:,}" for count in row.records)


def _tell_rest(rows: list[_Row], folder: Path) -> None:
    for row in rows:
        if row.fault:
            typer.echo(f"\n{row.here.about.name} is faulty: {row.fault}")
    missing = [file for row in rows for file in row.here.missing]
    if not folder.is_dir():
        typer.echo(f"\nThe folder {folder} is not there; name yours with --data or FEDSIM_DATA.")
    if missing:
        typer.echo(f"\nNot in {folder}:")
    for file in missing:
        more = "" if file.needed else " (not in the paper)"
        typer.echo(f"  {file.paths[0]}{more}: {file.holds}\n    from {file.source}; licence: {file.licence}")
