"""A finished run as its folder tells it: the record, the test records, the ledger, and ladder and audit where made."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from fedsim.errors import FileError
from fedsim.party.error_groups import is_personal
from fedsim.party.job import Job
from fedsim.party.ledger_file import read_ledger
from fedsim.party.run_record import GroupError, RunRecord, read_record, read_test
from fedsim.protocol.ledger import Entry
from fedsim.report.ladder import Ladder, read_ladder

AUDIT = "audit.json"
AUDIT_FORMAT = "fedsim audit 1"


@dataclass(frozen=True, eq=False)
class Run:
    """Everything a report needs; ``audit`` is what ``fedsim audit`` wrote, as it stands there.

    Ladder and audit of another job are none; their notes say so.
    """

    folder: Path
    record: RunRecord
    job: Job
    test: pl.DataFrame = field(repr=False)
    ledger: list[Entry]
    ladder: Ladder | None
    audit: dict[str, Any] | None = field(repr=False)
    ladder_note: str = ""
    audit_note: str = ""

    @property
    def place(self) -> str:
        """The folder as one types it beside the party's folder."""
        whole = self.folder.resolve()
        return shlex.quote(f"{whole.parent.name}/{whole.name}")

    @property
    def total_bytes(self) -> int:
        """What crossed the primary's border, both ways."""
        return sum(entry.bytes for entry in self.ledger)

    @property
    def groups(self) -> list[GroupError]:
        """Errors by group, without the columns that link records or say who somebody is."""
        linking = {column for terms in self.job.secondaries.values() for column in terms.encoding.columns}
        return [group for group in self.record.groups if group.by not in linking and not is_personal(group.by)]


def read_run(folder: Path) -> Run:
    """The run that a primary's folder keeps."""
    record = read_record(folder)
    job, test, ledger = Job.from_dict(record.job), read_test(folder), read_ledger(folder)
    ladder, ladder_note = own_ladder(folder, record)
    audit, audit_note = _own_audit(folder, record)
    return Run(folder, record, job, test, ledger, ladder, audit, ladder_note, audit_note)


def own_ladder(folder: Path, record: RunRecord) -> tuple[Ladder | None, str]:
    """The ladder of this very job; for that of another one none, and a note."""
    ladder = read_ladder(folder)
    if ladder is None or ladder.belongs_to(str(record.job["name"]), record.hash):
        return ladder, ""
    return None, _foreign("ladder", ladder.job)


def _own_audit(folder: Path, record: RunRecord) -> tuple[dict[str, Any] | None, str]:
    audit = _audit(folder)
    if audit is None or audit.get("hash") == record.hash:
        return audit, ""
    return None, _foreign("audit", str(audit.get("job")))


def _foreign(thing: str, job: str) -> str:
    return f"The {thing} in this folder belongs to another job, '{job}', or to other settings, and is not shown."


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
