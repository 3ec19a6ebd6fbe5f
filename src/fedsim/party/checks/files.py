"""Job and party files: read, or every mistake at once with file, line and the nearest word."""

from __future__ import annotations

from pathlib import Path

from fedsim.errors import FedSimError
from fedsim.party.checks.finding import Finding, failed, ok, telling
from fedsim.party.job import Job, read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.toml_file import DocumentError

MOST = 20  # mistakes of one file: who has more of them begins with the first


def read_checked_job(path: Path) -> tuple[Job | None, list[Finding]]:
    """The job, if its file is sound."""
    try:
        job = read_job(path)
    except FedSimError as error:
        return None, _faults("job file", error)
    parties = ", ".join(map(str, job.parties))
    return job, [ok("job file", str(path)), telling("parties", parties)]


def read_checked_party(path: Path) -> tuple[PartyFile | None, list[Finding]]:
    """The party file, if it is sound."""
    try:
        own = read_party_file(path)
    except FedSimError as error:
        return None, _faults("party file", error)
    return own, [ok("party file", str(path))]


def _faults(check: str, error: FedSimError) -> list[Finding]:
    """Every fault of a file in the order of its lines."""
    faults = error.faults if isinstance(error, DocumentError) else [str(error)]
    return [failed(check, fault) for fault in faults[:MOST]]
