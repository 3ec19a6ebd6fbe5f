"""Describe one or two tables before they are linked (``fedsim profile``)."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.cli.init import FormatChoices, detect_separators, read_profile
from fedsim.cli.options import OutputMode, print_nothing
from fedsim.cli.output import print_lines, print_named_values, print_table
from fedsim.data.sql import parse_source
from fedsim.data.table_reader import source_files
from fedsim.report.formatting import pluralise
from fedsim.report.page import write_page
from fedsim.report.profile_page import COLUMN_HEAD, ProfileSummary, profile_page, summarise_profiles
from fedsim.storage.files import check_output_paths
from fedsim.types import CellFormat
from fedsim.wizard.proposal import TableProfiles, pairs_from_names


@dataclass(frozen=True)
class ProfileRequest:
    """The options of ``fedsim profile``; what is empty is guessed."""

    tables: Mapping[str, str | None]
    separators: Mapping[str, str | None]
    on: Sequence[str]
    on_secondary: Sequence[str]
    label: str | None
    out: Path
    decimal: CellFormat | None = None
    date_format: CellFormat | None = None


def run_profile(request: ProfileRequest, mode: OutputMode) -> None:
    """Write the page about one or two tables, and print a summary."""
    sources = {role: parse_source(table) for role, table in request.tables.items() if table}
    check_output_paths([request.out], source_files(list(sources.values())))
    separators = detect_separators(sources, request.separators)
    formats = FormatChoices(request.decimal, request.date_format)
    tables = {
        role: read_profile(source, separators[role], formats, print_nothing)[0] for role, source in sources.items()
    }
    profiles = TableProfiles(tables["primary"], tables.get("secondary"))
    pairs = None
    if request.on:
        pairs = pairs_from_names(profiles, request.on, request.on_secondary or request.on)
    summary = summarise_profiles(profiles, pairs, request.label)
    write_page(profile_page(profiles, summary), request.out)
    mode.show(summary.to_dict() | {"file": str(request.out)}, lambda: _print_profile(summary, request))


def _print_profile(summary: ProfileSummary, request: ProfileRequest) -> None:
    for name, own in summary.columns.items():
        print_lines([f"{name}: {pluralise(summary.rows[name], 'record')}, {pluralise(len(own), 'column')}"])
        print_table(COLUMN_HEAD, [one.cells(summary.rows[name]) for one in own])
        print_lines([""])
    print_named_values(_profile_lines(summary, request))


def _profile_lines(summary: ProfileSummary, request: ProfileRequest) -> Iterator[tuple[str, str]]:
    yield "in short", summary.answer
    for name, *cells in summary.overlap:
        parts = zip(cells, summary.overlap_head[1:], strict=True)
        yield "overlap", f"{name}: {'; '.join(f'{head}: {cell}' for cell, head in parts if cell)}"
    for row in summary.quality:
        yield "linkage", f"{row.name}: {row.value}"
    for table, column, reason in summary.personal:
        yield "personal", f"{column} of {table}: {reason}"
    for warning in summary.warnings:
        yield "warning", warning
    yield "wrote", str(request.out)
    tables = [f"--{role} {shlex.quote(table)}" for role, table in request.tables.items() if table]
    yield "next", f"fedsim init {' '.join(tables)}"
