"""What a data protection officer asks for: deletions and documents (``fedsim privacy delete`` and ``governance``)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsim.cli.options import OutputMode
from fedsim.cli.output import print_lines
from fedsim.config import Job, PartyFile, read_job, read_party_file
from fedsim.config.party_file import party_credentials, require_membership
from fedsim.errors import SettingError
from fedsim.protocol.messages import Role
from fedsim.protocol.tls import Credentials
from fedsim.report.formatting import pluralise
from fedsim.runs import deletion
from fedsim.runs.run_folder import lock_run_folder, make_private_folder


def run_governance(job_path: Path, parties: Sequence[Path], out: Path, mode: OutputMode) -> None:
    """Write the documents of a job; without party files, from those beside it that have the names of its parties."""
    from fedsim.report.governance import write_governance

    job = read_job(job_path)
    if not parties:
        beside = (job_path.with_name(f"{party.name}.toml") for party in job.parties)
        parties = [path for path in beside if path.is_file()]
    files = [read_party_file(path) for path in parties]
    for own in files:
        require_membership(job, own)
    make_private_folder(out, remedy="choose another --out")
    written = write_governance(job, files, out)
    names = " and ".join(map(str, written))
    sources = (
        ", ".join(map(str, parties)) or "the job alone; everything in the party files is listed as an open question"
    )
    value = {"files": [str(path) for path in written], "parties": [str(path) for path in parties]}
    mode.show(value, lambda: print_lines([f"Wrote {names}", f"from {sources}"]))


def run_delete(job_path: Path, party_path: Path, file: Path | None, mode: OutputMode) -> None:
    """Request, carry out or confirm the deletion of stored rows, by the role of the party and what the file is."""
    job, own = read_job(job_path), read_party_file(party_path)
    require_membership(job, own)
    if own.role is Role.COORDINATOR or not job.protection.sealed:
        fault = "only a primary under sealed labels stores activations of a secondary"
        message = f"there is nothing to delete for {own.party} in job '{job.name}': {fault}"
        raise SettingError(f"{message}; name another job or party", code="nothing-stored")
    credentials = party_credentials(own)
    with lock_run_folder(job, own):  # no process that still has the rows in memory, or could send them
        work = _delete_at_primary if own.role is Role.PRIMARY else _delete_at_secondary
        value, lines = work(job, own, file, credentials)
    mode.show(value, lambda: print_lines(lines))


def _delete_at_primary(
    job: Job, own: PartyFile, file: Path | None, credentials: Credentials | None
) -> tuple[dict[str, Any], list[str]]:
    now = datetime.now(UTC)
    if file is None:
        deleted = deletion.delete_expired_rows(job, own, credentials, now)
    else:
        said = deletion.read_deletion(file, job, own, credentials.authority if credentials else None)
        deleted = [deletion.delete_rows(job, own, said.secondary, deletion.REQUEST, credentials, now)]
    until = {name: deletion.stored_until(job, own, name) for name in job.secondaries}
    lines = []
    for said, path in deleted:
        lines.append(f"Deleted {pluralise(said.rows, 'row')} of {said.secondary} ({said.reason}).")
        lines.append(f"Wrote {path}. Send it to the owner of {said.secondary}, for its audit log.")
    lines += [f"Rows of {name} may be stored until {end:%Y-%m-%d %H:%M} UTC." for name, end in until.items() if end]
    stored = {name: end.isoformat() if end else None for name, end in until.items()}
    value = {"deleted": [asdict(said) | {"receipt": str(path)} for said, path in deleted], "stored_until": stored}
    return value, lines or ["No rows are stored."]


def _delete_at_secondary(
    job: Job, own: PartyFile, file: Path | None, credentials: Credentials | None
) -> tuple[dict[str, Any], list[str]]:
    if file is not None:
        said = deletion.record_receipt(file, job, own, credentials.authority if credentials else None)
        rows = pluralise(said.rows, "row")
        return {"confirmed": asdict(said)}, [f"{said.party} deleted {rows} at {said.time} ({said.reason})."]
    path = deletion.request_deletion(job, own, credentials, datetime.now(UTC))
    job_name = job.path.name or "job.toml"
    command = shlex.join(["fedsim", "privacy", "delete", job_name, f"{job.primary.name}.toml", path.name])
    lines = [
        f"Wrote {path}. The approval of this job is withdrawn.",
        f"Send the file to the owner of {job.primary.name}, who runs: {command}",
    ]
    if job.hash in own.policy.approve:
        lines.append("policy.approve in the party file still approves this job; remove its hash there.")
    return {"request": str(path)}, lines
