"""The primary's own table as it was when the run was made, for pages whose owner asks for more than counts."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from fedsim.data.readers import read_table
from fedsim.errors import InputError, SettingError
from fedsim.party.own_columns import identifiers_for
from fedsim.party.party_file import PartyFile
from fedsim.party.protecting import frame_digest
from fedsim.report.run import Run


def own_frame(run: Run, own: PartyFile) -> pl.DataFrame:
    """All columns, as the file has them; another table than that of the run is refused."""
    if own.name != run.record.party or own.data is None:
        raise SettingError(f"the page takes the file of '{run.record.party}', the primary of this run; name that file")
    frame, made = read_table(own.data.source, separator=own.data.separator), run.record.table
    if len(frame) != made.records:
        raise InputError(
            f"the table of '{own.name}' has {len(frame)} records, the run was made with {made.records}; bring back the "
            "table of then"
        )
    if frame_digest(frame) != made.digest:
        raise InputError(f"the table of '{own.name}' has changed since the run was made; bring back the table of then")
    return frame


def example_names(run: Run, own: PartyFile) -> Mapping[int, str]:
    """The identifiers of the example records, by row: for the owner's eyes."""
    frame = own_frame(run, own)
    columns = dict.fromkeys(
        column for name in run.job.secondaries for column in identifiers_for(run.job, own, name).values()
    )
    rows = dict.fromkeys(example.row for example in run.record.examples)
    return {row: ", ".join(f"{column} {frame[column][row]}" for column in columns) for row in rows}
