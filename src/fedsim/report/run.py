"""A finished run as its folder tells it: the record, the test records, the ledger, and ladder and audit where made."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from fedsim.errors import FileError
from fedsim.party.job import Job
from fedsim.party.ledger_file import read_ledger
from fedsim.party.run_record import RunRecord, read_record, read_test
from fedsim.protocol.ledger import Entry
from fedsim.report.ladder import Ladder, read_ladder

AUDIT = "audit.json"
AUDIT_FORMAT = "fedsim audit 1"


@dataclass(frozen=True, eq=False)
class Run:
    """Everything a report needs; ``audit`` is what ``fedsim audit`` wrote, as it stands there."""

    folder: Path
    record: RunRecord
    job: Job
    test: pl.DataFrame = field(repr=False)
    ledger: list[Entry]
    ladder: Ladder | None
    audit: dict[str, Any] | None = field(repr=False)

    @property
    def total_bytes(self) -> int:
        """What crossed the primary's border, both ways."""
        return sum(entry.bytes for entry in self.ledger)


def read_run(folder: Path) -> Run:
    """The run that a primary's folder keeps."""
    record = read_record(folder)
    job = Job.from_dict(record.job)
    return Run(folder, record, job, read_test(folder), read_ledger(folder), read_ladder(folder), _audit(folder))


def _audit(folder: Path) -> dict[str, Any] | None:
    path = folder / AUDIT
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] == AUDIT_FORMAT:
            return dict(found)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise FileError(f"{path} was not written by `fedsim audit` of this release; run it again, or move the file away")
