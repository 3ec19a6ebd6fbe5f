"""A party's table: can it be read, has it the columns, are there enough records?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from fedsim.data.header import absent
from fedsim.data.readers import read_table
from fedsim.data.splits import random_split
from fedsim.errors import FedSimError
from fedsim.party.checks.finding import Finding, failed, fails, ok, telling, warning
from fedsim.party.checks.subject import Case, Table
from fedsim.party.checks.written import Setting, nearest_file, place_of
from fedsim.party.job import Job
from fedsim.party.own_columns import OwnColumns, identifiers_for, own_columns
from fedsim.party.party_file import Data, PartyFile
from fedsim.protocol.codec import MOST_BYTES
from fedsim.protocol.parties import Role

FEW_STEPS = 200
LEAST_GROUPS = 3  # training, validation and test need one each


def read_checked_table(own: PartyFile, job: Job | None) -> tuple[Table | None, list[Finding]]:
    """The party's table; where it cannot be read as a whole, at least the columns that the job needs."""
    if own.data is None:
        return None, []
    try:
        frame = _read(own.data, None)
    except FedSimError as error:
        return _part(own, job), [_unread(own, own.data, error)]
    size = f"{own.data.source}: {len(frame):,} records, {frame.width:,} columns"
    return Table(frame, tuple(frame.columns)), [telling("data", size)]


def checked_columns(own: PartyFile, job: Job, table: Table) -> tuple[OwnColumns | None, list[Finding]]:
    """The party's columns in this job, each of those that are missing with the nearest that is there."""
    if table.header is None or own.data is None:
        return None, []
    missing = {column: setting for column, setting in _wanted(own, job).items() if column not in table.header}
    if missing:
        where = {column: f"{place_of(own, setting)}{own.data.source}" for column, setting in missing.items()}
        return None, [failed("columns", f"{where[name]}: {absent(name, table.header)}") for name in missing]
    try:
        columns = own_columns(job, own, table.header)
    except FedSimError as error:
        return None, [failed("columns", str(error))]
    linking, features = len(columns.linking), len(columns.features or ())
    return columns, [ok("columns", f"{linking} that link, {features:,} features{', label' * bool(columns.label)}")]


def records(case: Case) -> Iterator[Finding]:
    """Enough for k, for the split, and not too many for one message."""
    if case.table is None:
        return
    here = len(case.table.frame)
    if case.own.role is Role.PRIMARY:
        yield from _split(case, here)
    elif here < (k := case.job.secondaries[case.own.name].k):
        yield fails("records", f"k is {k:,} for a table of {here:,} records", f"lower k to {here:,} in the job at most")
    largest = case.estimate.largest_message
    if largest > MOST_BYTES:
        yield fails(
            "records",
            f"the largest message would have {largest:,} bytes, and {MOST_BYTES:,} are allowed",
            "take fewer records, shorter filters or a smaller k",
        )
    yield ok("records", f"{here:,}")


def steps(case: Case) -> Iterator[Finding]:
    """Enough of them for networks to learn anything."""
    if case.table is None or case.own.role is not Role.PRIMARY:
        return
    in_all = case.estimate.steps * case.estimate.epochs
    if in_all < FEW_STEPS:
        result = f"{in_all:,} step{'s' * (in_all != 1)} in all; networks learn little from so few"
        yield warning("steps", result, "more epochs or a smaller batch_size")
    else:
        yield ok("steps", f"{in_all:,} in all")


def _split(case: Case, here: int) -> Iterator[Finding]:
    if case.job.task.split == "random":
        random_split(here, np.random.default_rng(0))
        return
    frame = case.table.frame if case.table else pl.DataFrame()
    linking = [column for column in _identifiers(case.own, case.job) if column in frame.columns]
    groups = frame.select(linking).n_unique() if linking else LEAST_GROUPS
    if groups < LEAST_GROUPS:
        yield fails(
            "records",
            f"all records share {groups} sets of identifiers, and a split by group needs {LEAST_GROUPS}",
            'set task.split = "random" in the job, or link by other columns',
        )


def _read(data: Data, columns: list[str] | None) -> pl.DataFrame:
    return read_table(data.source, columns, separator=data.separator, option="data.separator =")


def _unread(own: PartyFile, data: Data, error: FedSimError) -> Finding:
    """Why a table cannot be read; where no file has its name, also where that is written and which name is near."""
    source = data.source
    if not isinstance(source, Path) or source.exists():
        return failed("data", str(error))
    near = nearest_file(source)
    result = f"{place_of(own, ('data', 'file'))}{source} does not exist"
    return fails("data", result, f"did you mean '{near}'?" if near else "check the path")


def _part(own: PartyFile, job: Job | None) -> Table | None:
    """What can still be looked at, such as in a table with a column twice that nobody uses."""
    if own.data is None or job is None or own.party not in job.parties:
        return None
    try:
        return Table(_read(own.data, list(dict.fromkeys(_needed(own, job)))), None)
    except FedSimError:
        return None


def _wanted(own: PartyFile, job: Job) -> dict[str, Setting]:
    """Every column that the party names or agreed on, and the setting that names it."""
    by_name = {column: (name,) for name, column in own.identifiers.items() if isinstance(column, str)}
    for name, columns in own.identifiers.items():
        by_name |= {column: (name, agreed) for agreed, column in columns.items()} if isinstance(columns, dict) else {}
    wanted = {column: ("identifiers", *by_name.get(column, ())) for column in _identifiers(own, job)}
    named = {("label", "column"): [own.label.column] if own.label else []}
    named |= {("features", "columns"): list(own.features.columns or ()), ("features", "drop"): list(own.features.drop)}
    for setting, columns in named.items():
        for column in columns:
            wanted.setdefault(column, setting)
    return wanted


def _needed(own: PartyFile, job: Job) -> list[str]:
    return [*_identifiers(own, job), *([own.label.column] if own.label else [])]


def _identifiers(own: PartyFile, job: Job) -> list[str]:
    linked = [name for name in job.secondaries if name == own.name or own.role is Role.PRIMARY]
    return [column for name in linked for column in identifiers_for(job, own, name).values()]
