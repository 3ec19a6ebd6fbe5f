"""Deletion of the activations that a primary stores under sealed labels, on request or when their retention ends."""

from datetime import datetime, timedelta
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.protocol.messages import Party, Role
from fedsim.runs.run_folder import open_audit_log, run_path
from fedsim.storage.tensor_file import load_tensors, save_tensors

ROWS_FORMAT = "rows of a secondary 1"
REQUEST, RETENTION = "request", "retention"  # why rows are deleted


def rows_path(folder: Path, secondary: str) -> Path:
    """Return where the primary stores the rows of a secondary, in the run folder."""
    return folder / "rows" / f"{secondary}.safetensors"


def table_path(folder: Path, secondary: str) -> Path:
    """Return where the primary stores the encrypted table of a secondary, in the run folder."""
    return folder / "tables" / f"{secondary}.safetensors"


def handed_over_path(path: Path) -> Path:
    """Return the marker that a table was handed over as a file, with its digest."""
    return path.with_suffix(".handed-over")


def released_path(path: Path) -> Path:
    """Return the marker that the secondary has sent all rows and may leave."""
    return path.with_suffix(".released")


def delete_rows(job: Job, party_file: PartyFile, secondary: str, reason: str, now: datetime) -> int:
    """Delete what the primary stores of a secondary, note it in its audit log, and return how many rows these were.

    The run folder must be locked. The file stays, with no row in it: it says which columns a stored network expects.
    """
    path, rows = rows_path(run_path(job, party_file), secondary), 0
    if path.is_file():
        tensors, facts = load_tensors(path, ROWS_FORMAT)
        rows = len(tensors["pseudonym"])
        emptied = {**tensors, "pseudonym": tensors["pseudonym"][:0], "values": tensors["values"][:0]}
        save_tensors(path, ROWS_FORMAT, emptied, facts)
        released_path(path).unlink(missing_ok=True)
        table_path(run_path(job, party_file), secondary).unlink(missing_ok=True)
    peer, time = str(Party(Role.SECONDARY, secondary)), timestamp(now)
    about = {"job": job.hash, "peer": peer, "reason": reason, "time": time}
    open_audit_log(party_file).append("rows deleted", {**about, "rows": rows})
    return rows


def delete_expired_rows(job: Job, party_file: PartyFile, now: datetime) -> dict[str, int]:
    """Delete at the primary the rows whose retention has ended; return how many of which secondary."""
    ends = {name: stored_until(job, party_file, name) for name in job.secondaries}
    expired = [name for name, end in ends.items() if end is not None and end <= now]
    return {name: delete_rows(job, party_file, name, RETENTION, now) for name in expired}


def stored_until(job: Job, party_file: PartyFile, secondary: str) -> datetime | None:
    """Return when the primary must delete the rows of a secondary; None if it stores none."""
    path = rows_path(run_path(job, party_file), secondary)
    if not path.is_file():
        return None
    tensors, facts = load_tensors(path, ROWS_FORMAT)
    return retention_end(facts["received"], job.protection.retention) if len(tensors["pseudonym"]) else None


def retention_end(received: str, retention: timedelta) -> datetime:
    """Return when rows that were received at this time (ISO 8601) must be deleted.

    >>> retention_end("2026-01-01T00:00:00+00:00", timedelta(days=90)).isoformat()
    '2026-04-01T00:00:00+00:00'
    """
    return datetime.fromisoformat(received) + retention


def timestamp(now: datetime) -> str:
    """Return a time as stored rows have it: ISO 8601, to the second."""
    return now.isoformat(timespec="seconds")
