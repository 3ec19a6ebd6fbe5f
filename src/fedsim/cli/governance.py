"""What a data protection officer asks for: a document and deletions (``fedsim privacy governance`` and ``delete``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedsim.cli.options import OutputMode
from fedsim.cli.output import print_lines
from fedsim.config import read_job, read_party_file
from fedsim.config.party_file import require_membership
from fedsim.errors import SettingError
from fedsim.protocol.messages import Role
from fedsim.report.formatting import pluralise
from fedsim.runs import deletion
from fedsim.runs.run_folder import lock_run_folder


def run_governance(job_path: Path, parties: Sequence[Path], out: Path, mode: OutputMode) -> None:
    """Write the document of a job; without party files, from those beside it that have the names of its parties."""
    from fedsim.report.governance import write_governance

    job = read_job(job_path)
    if not parties:
        beside = (job_path.with_name(f"{party.name}.toml") for party in job.parties)
        parties = [path for path in beside if path.is_file()]
    files = [read_party_file(path) for path in parties]
    for file in files:
        require_membership(job, file)
    write_governance(job, files, out)
    value = {"file": str(out), "parties": [str(path) for path in parties]}
    mode.show(value, lambda: print_lines([f"Wrote {out}", f"from {', '.join(map(str, (job_path, *parties)))}"]))


def run_delete(job_path: Path, party_path: Path, secondaries: Sequence[str], mode: OutputMode) -> None:
    """Delete stored rows of these secondaries, and all rows whose retention has ended."""
    job, own = read_job(job_path), read_party_file(party_path)
    require_membership(job, own)
    if own.role is not Role.PRIMARY or not job.protection.sealed:
        fault = "only a primary under sealed labels stores activations of a secondary"
        message = f"there is nothing to delete for {own.party} in job '{job.name}': {fault}"
        raise SettingError(f"{message}; name another job or party", code="nothing-stored")
    if unknown := set(secondaries) - set(job.secondaries):
        message = f"the job has no secondary '{min(unknown)}'; choose from {', '.join(job.secondaries)}"
        raise SettingError(message, code="unknown-party")
    now = datetime.now(UTC)
    with lock_run_folder(job, own):  # no process that still has the rows in memory, or could send them
        requested = {name: deletion.delete_rows(job, own, name, deletion.REQUEST, now) for name in secondaries}
        deleted = {**deletion.delete_expired_rows(job, own, now), **requested}
        until = {name: deletion.stored_until(job, own, name) for name in job.secondaries}
    lines = [f"Deleted {pluralise(rows, 'row')} of {name}." for name, rows in deleted.items()]
    lines += [f"Rows of {name} may be stored until {end:%Y-%m-%d %H:%M} UTC." for name, end in until.items() if end]
    stored = {name: end.isoformat() if end else None for name, end in until.items()}
    mode.show({"deleted": deleted, "stored_until": stored}, lambda: print_lines(lines or ["No rows are stored."]))
