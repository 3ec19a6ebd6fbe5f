"""A party's table: can it be read, has it the columns, are there enough records?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from fedsim.data.header import absent
from fedsim.data.readers import read_table
from fedsim.data.splits import random_split
from fedsim.errors import FedSimError
from fedsim.party.checks.finding import Finding, failed, fails, ok, telling
from fedsim.party.checks.subject import Case, Table
from fedsim.party.job import Job
from fedsim.party.own_columns import OwnColumns, identifiers_for, own_columns
from fedsim.party.party_file import Data, PartyFile
from fedsim.protocol.codec import MOST_BYTES
from fedsim.protocol.parties import Role

LEAST_GROUPS = 3  # training, validation and test need one each


def read_checked_table(own: PartyFile, job: Job | None) -> tuple[Table | None, list[Finding]]:
    """The party's table; where it cannot be read as a whole, at least the columns that the job needs."""
    if own.data is None:
        return None, []
    try:
        frame = _read(own.data, None)
    except FedSimError as error:
        return _part(own, job), [failed("data", str(error))]
    size = f"{own.data.source}: {len(frame):,} records, {frame.width:,} columns"
    return Table(frame, tuple(frame.columns)), [telling("data", size)]


def checked_columns(own: PartyFile, job: Job, table: Table) -> tuple[OwnColumns | None, list[Finding]]:
    """The party's columns in this job, each of those that are missing with the nearest that is there."""
    if table.header is None or own.data is None:
        return None, []
    wanted = dict.fromkeys([*_needed(own, job), *(own.features.columns or ()), *own.features.drop])
    missing = [absent(column, table.header) for column in wanted if column not in table.header]
    if missing:
        return None, [failed("columns", f"{own.data.source}: {sentence}") for sentence in missing]
    try:
        columns = own_columns(job, own, table.header)
    except FedSimError as error:
        return None, [failed("columns", str(error))]
    linking = {column for named in columns.identifiers.values() for column in named.values()}
    features = len(columns.features or ())
    return columns, [ok("columns", f"{len(linking)} that link, {features:,} features{', label' * bool(columns.label)}")]


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


def _part(own: PartyFile, job: Job | None) -> Table | None:
    """What can still be looked at, such as in a table with a column twice that nobody uses."""
    if own.data is None or job is None or own.party not in job.parties:
        return None
    try:
        return Table(_read(own.data, list(dict.fromkeys(_needed(own, job)))), None)
    except FedSimError:
        return None


def _needed(own: PartyFile, job: Job) -> list[str]:
    return [*_identifiers(own, job), *([own.label.column] if own.label else [])]


def _identifiers(own: PartyFile, job: Job) -> list[str]:
    linked = [name for name in job.secondaries if name == own.name or own.role is Role.PRIMARY]
    return [column for name in linked for column in identifiers_for(job, own, name).values()]
