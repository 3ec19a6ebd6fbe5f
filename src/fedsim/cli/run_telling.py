"""Runs as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from fedsim.report.model_card import JSON, MARKDOWN
from fedsim.report.runs import DAMAGED, RunLine, differing, runs_under
from fedsim.report.words import duration, measure, size

LONGEST = 60
HEADS = ("folder", "method", "test", "epochs", "time", "bytes", "state")


def tell_runs(folder: Path, *, quiet: bool, as_json: bool) -> None:
    """Print what was trained under a folder."""
    lines = runs_under(folder)
    if as_json:
        typer.echo(json.dumps({"runs": [asdict(line) for line in lines], "differing": differing(lines)}))
    elif quiet:
        return
    elif not lines:
        typer.echo(f"no run lies under {folder}; `fedsim train` and `fedsim primary` keep theirs in the party's folder")
    else:
        _tell(lines)


def tell_written(page: Path, *, quiet: bool, as_json: bool) -> None:
    """Where a report and its card are, and for programs what the card says."""
    if as_json:
        card = json.loads((page.parent / JSON).read_text(encoding="utf-8"))
        typer.echo(json.dumps({"report": str(page), "card": card}))
    elif not quiet:
        typer.echo(f"written: {page}, {MARKDOWN} and {JSON} beside it")


def _tell(lines: Sequence[RunLine]) -> None:
    rows = [HEADS, *(_cells(line) for line in lines)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in lines:
        if line.worth:
            typer.echo(f"{line.folder}: {line.worth}")
        if line.note:
            typer.echo(f"{line.folder}: {line.note}")
    for key, values in differing(lines).items():
        typer.echo(f"differs: {key} = {', '.join(_short(value) for value in values)}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _cells(line: RunLine) -> tuple[str, ...]:
    score = "" if line.metric is None or line.value is None else f"{line.metric} {measure(line.value)}"
    if line.state == DAMAGED:
        return line.folder, "", "", "", "", "", line.state
    cost = duration(line.seconds), size(line.bytes)
    return line.folder, line.method or "", score, str(line.epochs), *cost, line.state
