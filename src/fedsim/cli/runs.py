"""Print the runs under a folder and where a report was written (``fedsim runs`` and ``fedsim report``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from fedsim.report.board import BoardServer
from fedsim.report.formatting import format_bytes, format_duration, format_number
from fedsim.report.run_data import DAMAGED, RunSummary, differing_settings, list_runs
from fedsim.report.run_report import CARD_JSON_FILE, CARD_MARKDOWN_FILE

MAX_VALUE_LENGTH = 60
COLUMN_TITLES = ("folder", "method", "test", "epochs", "time", "bytes", "state")


def print_runs(folder: Path, *, quiet: bool, as_json: bool) -> None:
    """Print what was trained under a folder."""
    lines = list_runs(folder)
    if as_json:
        typer.echo(json.dumps({"runs": [asdict(line) for line in lines], "differing": differing_settings(lines)}))
    elif quiet:
        return
    elif not lines:
        typer.echo(
            f"no runs under {folder}; `fedsim train` and `fedsim party` write theirs into the folder of the party"
        )
    else:
        _print_run_lines(lines)


def serve_live_page(folder: Path, port: int, *, quiet: bool, as_json: bool) -> None:
    """Serve the page that follows running parties until the process is stopped."""
    with BoardServer(folder, port) as server:
        if as_json:
            typer.echo(json.dumps({"address": server.address}))
        else:
            typer.echo(server.address if quiet else f"Open {server.address}\nPress Ctrl-C to stop.")
        server.serve_forever()


def print_report_path(page: Path, *, quiet: bool, as_json: bool) -> None:
    """Where a report and its card are, and for programs what the card says."""
    if as_json:
        card = json.loads((page.parent / CARD_JSON_FILE).read_text(encoding="utf-8"))
        typer.echo(json.dumps({"report": str(page), "card": card}))
    elif not quiet:
        typer.echo(f"written: {page}, {CARD_MARKDOWN_FILE} and {CARD_JSON_FILE} beside it")


def _print_run_lines(lines: Sequence[RunSummary]) -> None:
    rows = [COLUMN_TITLES, *(_run_cells(line) for line in lines)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMN_TITLES))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in lines:
        if line.worth:
            typer.echo(f"{line.folder}: {line.worth}")
        if line.note:
            typer.echo(f"{line.folder}: {line.note}")
    for key, values in differing_settings(lines).items():
        typer.echo(f"differs: {key} = {', '.join(_shorten_value(value) for value in values)}")


def _shorten_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"


def _run_cells(line: RunSummary) -> tuple[str, ...]:
    score = "" if line.metric is None or line.value is None else f"{line.metric} {format_number(line.value)}"
    if line.state == DAMAGED:
        return line.folder, "", "", "", "", "", line.state
    cost = format_duration(line.seconds), format_bytes(line.bytes)
    return line.folder, line.method or "", score, str(line.epochs), *cost, line.state
