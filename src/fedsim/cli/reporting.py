"""The report that a training leaves behind."""

from __future__ import annotations

import logging
from pathlib import Path

import typer

from fedsim.errors import FileError
from fedsim.party.run_record import RECORD

log = logging.getLogger("fedsim.parties")


def report_on(folder: Path, *, silent: bool) -> Path | None:
    """Write the report of a run that has ended, and say where it is; a model is none the worse where that fails."""
    from fedsim.report.run_page import write_report

    if not (folder / RECORD).is_file():  # trained by an earlier release
        return None
    try:
        page = write_report(folder)
    except FileError as fault:
        log.warning("no report was written: %s", fault)
        return None
    if not silent:
        typer.echo(f"report: {page}")
    return page
