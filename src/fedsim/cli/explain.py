"""``fedsim explain``: what a setting of a job or party file means."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.options import Quiet

if TYPE_CHECKING:
    from fedsim.party.explain import Key

WIDEST = 100
MARGIN = 11


class File(StrEnum):
    """Files that have a schema."""

    JOB = "job"
    PARTY = "party"


Word = Annotated[
    str | None, typer.Argument(metavar="[KEY]", help="training.wire, secondaries.NAME.k, tau...; none: all of them.")
]
Schema = Annotated[
    File | None, typer.Option(help="Print the JSON Schema of this kind of file, for editors, and leave.")
]


def explain(
    key: Word = None,
    schema: Schema = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Say what a setting of a job or party file means, what it may be, its default and an example.

    fedsim explain training.wire
    """
    from fedsim.party.explain import all_keys, keys_for
    from fedsim.party.shipped_schemas import shipped_text

    if schema is not None:
        typer.echo(shipped_text(schema), nl=False)
        return
    found = keys_for(key) if key else all_keys()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    if quiet:
        return
    for line in _in_full(found) if key else _in_short(found):
        typer.echo(line)


def _in_short(keys: Sequence[Key]) -> Iterator[str]:
    """A line for every setting, under the file it stands in."""
    for file in File:
        yield f"{file} file"
        for key in keys:
            if key.file == file and not key.of_kind:
                yield _cut(f"  {key.name:<36} {key.meaning}")


def _in_full(keys: Sequence[Key]) -> Iterator[str]:
    for place, key in enumerate(keys):
        if place:
            yield ""
        of_kind = f", kind {key.of_kind}" if key.of_kind else ""
        yield f"{key.name} (in the {key.file} file{of_kind})"
        yield from _wrapped("", key.meaning)
        yield from _wrapped("type", key.allowed)
        if key.inside:
            yield from _wrapped("settings", ", ".join(key.inside))
            continue
        yield from _wrapped("default", key.default or ("none: it must be given" if key.required else "left out"))
        yield from _wrapped("example", key.example)


def _wrapped(name: str, value: str) -> list[str]:
    start, further = f"  {name:<{MARGIN}}" if name else "  ", " " * (MARGIN + 2) if name else "  "
    return textwrap.wrap(value, _width(), initial_indent=start, subsequent_indent=further, break_long_words=False)


def _cut(line: str) -> str:
    return line if len(line) <= _width() else line[: _width() - 1].rstrip() + "…"


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
