"""What the checks of a party look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from fedsim.party.estimate import Estimate
from fedsim.party.job import Job
from fedsim.party.own_columns import OwnColumns
from fedsim.party.party_file import PartyFile


@dataclass(frozen=True, eq=False)
class Place:
    """A party by itself, here and now."""

    own: PartyFile
    now: datetime


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """A party's records; ``header`` is None where the file could be read only in part."""

    frame: pl.DataFrame
    header: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Case:
    """A party in a job; what could not be read is None, and so are columns that are not all there."""

    job: Job
    own: PartyFile
    table: Table | None
    columns: OwnColumns | None
    estimate: Estimate
