"""Job and party files: read, or every mistake at once with file, line and the nearest word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsim.errors import FedSimError
from fedsim.party.checks.finding import Finding, failed, fails, ok, telling
from fedsim.party.checks.written import is_job_file, is_party_file
from fedsim.party.job import Job, read_job
from fedsim.party.party_file import PartyFile, read_party_file
from fedsim.party.toml_file import DocumentError

MOST = 20  # mistakes of one file: who has more of them begins with the first


def wrong_order(job: Path, parties: Sequence[Path]) -> Finding | None:
    """One sentence where a party file stands in the place of the job, instead of all that a job has and it has not."""
    if not is_party_file(job):
        return None
    meant = next((path for path in parties if is_job_file(path)), None)
    others = [job, *(path for path in parties if path != meant)]
    words = " ".join(map(str, [meant or "JOB.toml", *others]))
    return fails("job file", f"{job} is the file of a party, and the job comes first", f"say: fedsim check {words}")


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
        if is_job_file(path):
            return None, [fails("party file", f"{path} is a job, no file of a party", "name it first, and once")]
        return None, _faults("party file", error)
    return own, [ok("party file", str(path))]


def _faults(check: str, error: FedSimError) -> list[Finding]:
    """Every fault of a file in the order of its lines."""
    faults = error.faults if isinstance(error, DocumentError) else [str(error)]
    return [failed(check, fault) for fault in faults[:MOST]]
