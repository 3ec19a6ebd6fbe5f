"""Deletion of the activations that a primary stores under sealed labels, on request or when their retention ends.

A primary that has these rows may never be online with the secondary again, so the owners exchange files: a request that
the secondary signs, and a receipt that the primary signs. Both logs get a line for each.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.errors import FileError
from fedsim.protocol.messages import Party, Role
from fedsim.protocol.tls import Credentials
from fedsim.runs.approval import approval_path
from fedsim.runs.log_receipts import read_statement, sign_statement
from fedsim.runs.run_folder import make_private_folder, open_audit_log, run_path
from fedsim.storage.files import atomic_write, read_bytes
from fedsim.storage.tensor_file import load_tensors, save_tensors

ROWS_FORMAT = "rows of a secondary 1"
DELETIONS_FOLDER = "deletions"
REQUEST, RETENTION = "request", "retention"  # why rows are deleted


@dataclass(frozen=True)
class DeletionStatement:
    """A secondary's request, or a primary's receipt of having deleted so many ``rows`` for a ``reason``.

    ``what`` is ``request`` or ``receipt``; ``signed`` unless the party has no certificate.
    """

    what: str
    party: str
    job: str
    secondary: str
    reason: str
    rows: int
    time: str
    signed: bool = False


_KINDS = {name: int if name == "rows" else str for name in DeletionStatement.__annotations__ if name != "signed"}


def rows_path(folder: Path, secondary: str) -> Path:
    """Return where the primary stores the rows of a secondary, in the run folder."""
    return folder / "rows" / f"{secondary}.safetensors"


def released_path(path: Path) -> Path:
    """Return the marker that the secondary has sent all rows and may leave."""
    return path.with_suffix(".released")


def request_deletion(job: Job, party_file: PartyFile, credentials: Credentials | None, now: datetime) -> Path:
    """Write a secondary's request and withdraw its approval, so that the rows are not sent again; return the file.

    Parameters
    ----------
    job
        The job with sealed labels.
    party_file
        The secondary.
    credentials
        Its certificate and key; the request is unsigned without them.
    now
        The time of the request.
    """
    asking, time = str(party_file.party), timestamp(now)
    said = DeletionStatement("request", asking, job.hash, party_file.name, REQUEST, 0, time)
    path = _write(party_file, said, credentials)
    open_audit_log(party_file).append("deletion requested", {"job": job.hash, "primary": job.primary.name})
    approval_path(job, party_file).unlink(missing_ok=True)
    open_audit_log(party_file).append("approval withdrawn", {"job": job.hash})
    return path


def read_deletion(path: Path, job: Job, party_file: PartyFile, authority: bytes | None) -> DeletionStatement:
    """Read what the other party of a deletion wrote: a request at the primary, a receipt at the secondary.

    Parameters
    ----------
    path
        The file.
    job, party_file
        The job, and the party that reads the file.
    authority
        The authority's certificates as PEM; with them, the other party must have signed.
    """
    try:
        signed = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        signed = None
    facts, proven = read_statement(signed, _KINDS, authority)
    said = DeletionStatement(**facts, signed=proven)
    at_primary = party_file.role is Role.PRIMARY
    wanted = {
        "what": ("request" if at_primary else "receipt", said.what),
        "job": (job.hash, said.job),
        "secondary": (said.secondary if at_primary else party_file.name, said.secondary),
        "party": (str(Party(Role.SECONDARY, said.secondary) if at_primary else _primary(job)), said.party),
    }
    for name, (expected, found) in wanted.items():
        if found != expected:
            fault = f"{path}: {name} is '{found[:80]}', but '{expected}' is needed here"
            raise FileError(f"{fault}; give the file of this job and party", code="other-deletion", field=name)
    if said.secondary not in job.secondaries:
        fault = f"{path}: the job has no secondary '{said.secondary[:80]}'; give the file of this job"
        raise FileError(fault, code="other-deletion", field="secondary")
    if authority is not None and not proven:
        message = f"{path} is not signed, but this party has certificates; ask for a signed file"
        raise FileError(message, code="unsigned-deletion")
    return said


def record_receipt(path: Path, job: Job, party_file: PartyFile, authority: bytes | None) -> DeletionStatement:
    """Note at the secondary that the primary has deleted its rows, and keep the receipt."""
    said = read_deletion(path, job, party_file, authority)
    kept = _file_of(party_file, said)
    make_private_folder(kept.parent)
    with atomic_write(kept, mode=0o600) as part:
        part.write_bytes(read_bytes(path))
    facts = {"job": job.hash, "primary": job.primary.name, "reason": said.reason, "time": said.time}
    open_audit_log(party_file).append("rows deleted by the primary", {**facts, "rows": said.rows})
    return said


def delete_rows(
    job: Job, party_file: PartyFile, secondary: str, reason: str, credentials: Credentials | None, now: datetime
) -> tuple[DeletionStatement, Path]:
    """Delete what the primary stores of a secondary, note it in its log, and write the receipt for the secondary.

    The run folder must be locked. The file stays, with no row in it: it says which columns a stored network expects.
    """
    path, rows = rows_path(run_path(job, party_file), secondary), 0
    if path.is_file():
        tensors, facts = load_tensors(path, ROWS_FORMAT)
        rows = len(tensors["pseudonym"])
        emptied = {**tensors, "pseudonym": tensors["pseudonym"][:0], "values": tensors["values"][:0]}
        save_tensors(path, ROWS_FORMAT, emptied, facts)
        released_path(path).unlink(missing_ok=True)
    said = DeletionStatement("receipt", str(party_file.party), job.hash, secondary, reason, rows, timestamp(now))
    peer = str(Party(Role.SECONDARY, secondary))
    open_audit_log(party_file).append(
        "rows deleted", {"job": job.hash, "peer": peer, "rows": rows, "reason": reason, "time": said.time}
    )
    return said, _write(party_file, said, credentials)


def delete_expired_rows(
    job: Job, party_file: PartyFile, credentials: Credentials | None, now: datetime
) -> list[tuple[DeletionStatement, Path]]:
    """Delete at the primary the rows whose retention has ended; return the receipts and their files."""
    deleted = []
    for name in job.secondaries:
        until = stored_until(job, party_file, name)
        if until is not None and until <= now:
            deleted.append(delete_rows(job, party_file, name, RETENTION, credentials, now))
    return deleted


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


def _primary(job: Job) -> Party:
    return Party(Role.PRIMARY, job.primary.name)


def timestamp(now: datetime) -> str:
    """Return a time as stored rows, requests and receipts have it: ISO 8601, to the second."""
    return now.isoformat(timespec="seconds")


def _file_of(party_file: PartyFile, said: DeletionStatement) -> Path:
    time = said.time.replace(":", "").replace("+0000", "Z")
    return party_file.folder / DELETIONS_FOLDER / f"{said.what}-{said.secondary}-{said.job[:12]}-{time}.json"


def _write(party_file: PartyFile, said: DeletionStatement, credentials: Credentials | None) -> Path:
    facts = asdict(said)
    del facts["signed"]
    path = _file_of(party_file, said)
    make_private_folder(path.parent)
    with atomic_write(path, mode=0o600) as part:
        part.write_text(json.dumps(sign_statement(facts, credentials), indent=1) + "\n", encoding="utf-8")
    return path
