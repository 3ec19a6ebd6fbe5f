"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import FileError, SettingError

DATA = Path("../shared/data")

Data = Annotated[
    Path,
    typer.Option(
        help="Folder with one folder of files per dataset, as fedsim datasets lists them.", envvar="FEDSIM_DATA"
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object; with --quiet that object alone.")
]
Separator = Annotated[
    str | None, typer.Option(metavar="CHAR", help="What stands between the cells of a text table; or the word tab.")
]


def names(listed: str) -> list[str]:
    """Column names between commas.

    >>> names("lat, lon")
    ['lat', 'lon']
    """
    return [name.strip() for name in listed.split(",") if name.strip()]


def checked_seed(seed: int) -> int:
    """The seed, if chance can start from it."""
    if seed < 0:
        raise SettingError(f"--seed {seed} is negative; give a whole number of at least 0")
    return seed


def keep_quiet(line: str = "") -> None:
    """Print nothing."""


def checked_out(out: Path) -> Path:
    """A name to which endings can be added."""
    if not out.name:
        raise SettingError(f"--out '{out}' names no file; give a name such as audit, to which the endings are added")
    return out


def data_folder(data: Path) -> Path:
    """The folder of the datasets; one that the user names must be there, for not all datasets need files."""
    return data if data == DATA else there(data, "--data")


def there(folder: Path, option: str) -> Path:
    """A folder that is there."""
    if not folder.is_dir():
        raise FileError(f"{option} {folder} is no folder that can be read; name one that is there")
    return folder
