"""The owners' tables for an audit; nothing is sent, so neither approval nor policy is asked.

Where the other side's table is not at hand, one half of the own table stands in for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsim.audit.settings import FEWEST_RECORDS
from fedsim.data.readers import read_table
from fedsim.errors import InputError, SettingError
from fedsim.party.job import Job
from fedsim.party.own_columns import OwnColumns, own_columns
from fedsim.party.own_table import OwnTable
from fedsim.party.party_file import PartyFile
from fedsim.protocol.parties import Role


@dataclass(frozen=True, eq=False)
class Tables:
    """Both sides in the clear; ``notes`` say what is not as it will be."""

    primary: OwnTable
    secondaries: Mapping[str, OwnTable]
    notes: tuple[str, ...]


def read_tables(job: Job, files: Sequence[PartyFile], most: int, rng: np.random.Generator) -> Tables:
    """The tables of these parties; larger ones are sampled, missing ones stood in for."""
    holders = [own for own in files if own.role is not Role.COORDINATOR]
    if not holders:
        raise SettingError(
            "an audit needs the file of a party that has a table; name the primary's, a secondary's or both"
        )
    twice = [own.party for own in holders if [other.name for other in holders].count(own.name) > 1]
    if twice:
        raise SettingError(f"{len(twice)} files are of {twice[0]}; name the file of each party once")
    notes: list[str] = []
    read = {own.name: _sampled(_read(job, own), most, rng, notes) for own in holders}
    primary = next((read[own.name] for own in holders if own.role is Role.PRIMARY), None)
    secondaries = {own.name: read[own.name] for own in holders if own.role is Role.SECONDARY}
    if primary is not None and secondaries:
        return Tables(primary, secondaries, tuple(notes))
    alone = next(iter(read.values()))
    notes.append(
        f"only {alone.own.party} is here: one random half of its own table stands in for the other side, so these "
        "figures are a guess of what the true partner will see"
    )
    if primary is None:
        halves = {name: _halves(table, rng) for name, table in secondaries.items()}
        first, *others = halves
        notes += [f"{read[name].own.party} was left out; audit it alone, or with the primary's file" for name in others]
        return Tables(halves[first][0], {first: halves[first][1]}, tuple(notes))
    own, other = _halves(primary, rng)
    secondary = next(iter(job.secondaries))
    columns = OwnColumns({secondary: other.columns.identifiers[secondary]}, other.columns.features, None)
    return Tables(own, {secondary: replace(other, columns=columns)}, tuple(notes))


def _read(job: Job, own: PartyFile) -> OwnTable:
    if own.data is None:
        raise SettingError(f"the file of {own.party} names no data; add [data] file")
    frame = read_table(own.data.source, separator=own.data.separator, option="data.separator =")
    if len(frame) < FEWEST_RECORDS:
        raise InputError(f"{own.data.source} has {len(frame)} records; an audit needs at least {FEWEST_RECORDS}")
    return OwnTable(frame, own_columns(job, own, frame.columns), own)


def _sampled(table: OwnTable, most: int, rng: np.random.Generator, notes: list[str]) -> OwnTable:
    if len(table) <= most:
        return table
    rows = np.sort(rng.choice(len(table), most, replace=False))
    notes.append(
        f"{table.own.party}: {most:,} of {len(table):,} records were drawn; the whole, denser table gives more away"
    )
    return replace(table, frame=table.frame[rows])


def _halves(table: OwnTable, rng: np.random.Generator) -> tuple[OwnTable, OwnTable]:
    rows = rng.permutation(len(table))
    middle = len(rows) // 2
    return replace(table, frame=table.frame[rows[:middle]]), replace(table, frame=table.frame[rows[middle:]])
