"""The finished job of ``training.start_from``: its run folder, and whether another job can start with its weights."""

from collections.abc import Sequence
from pathlib import Path

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.config.schema import to_toml
from fedsim.errors import FileError, SettingError
from fedsim.hyperparameters import hyperparameters
from fedsim.protocol.messages import Role
from fedsim.runs.record import RunRecord
from fedsim.runs.run_folder import is_trained
from fedsim.validation import first_difference

SHORT_HASH_DIGITS = 12


def find_earlier_run(party_file: PartyFile, job_hash: str) -> Path:
    """Return the run folder of a finished job of this party.

    Parameters
    ----------
    party_file
        The party.
    job_hash
        The hash of the finished job.
    """
    for folder in party_file.folder.glob(f"*-{job_hash}"):
        if is_trained(folder):
            return folder
    message = f"{party_file.party} has no finished run of job {job_hash[:SHORT_HASH_DIGITS]} in {party_file.folder}"
    hint = "restore the folder of that run, or remove training.start_from"
    if party_file.role is Role.SECONDARY:
        hint = "restore the folder of that run, or list this secondary in training.joining"
    raise FileError(f"{message}; {hint}", code="no-earlier-run", job=job_hash)


def require_suitable_start(job: Job, earlier: RunRecord, table: tuple[str, Sequence[str]] | None) -> None:
    """Raise a ``SettingError`` unless all that weights and split of the earlier job depend on is unchanged.

    Parameters
    ----------
    job
        The job that is to start with the weights of the earlier one.
    earlier
        The record of the job that ``training.start_from`` names, at the primary.
    table
        The digest of the primary's table, and the columns that it learns from; None if the table cannot be read.
    """
    start = f"job {(job.training.start_from or '')[:SHORT_HASH_DIGITS]}"
    before, joining = earlier.job["secondaries"], job.training.joining or []
    new = [name for name in job.secondaries if name not in before and name not in joining]
    if new:
        message = f"secondary '{new[0]}' took no part in {start}; add joining = {to_toml([*joining, *new])}"
        raise SettingError(message, code="not-joining", secondary=new[0])
    for name in before:
        if name not in job.secondaries:
            message = f"secondary '{name}' took part in {start}, but not in this one; add it, or remove start_from"
            raise SettingError(message, code="other-earlier-job", secondary=name)
        if name in joining:
            message = f"secondary '{name}' took part in {start}; remove it from training.joining"
            raise SettingError(message, code="other-earlier-job", secondary=name)
    if table and (table[0], list(table[1])) != (earlier.table.digest, earlier.table.features):
        message = f"the primary's table or its features have changed since {start}, so that their split differs"
        hint = "use the table and the features of that job, or remove training.start_from"
        raise SettingError(f"{message}; {hint}", code="other-earlier-job", difference="table")
    shapes = [name for name, rule in hyperparameters().items() if rule.shapes]
    compared = [
        {
            "seed": settings["seed"],
            "task": settings["task"],
            "training": {name: settings["training"].get(name) for name in ("preset", "method", *shapes)},
            # An owner may change its mind about explanations.
            "secondaries": {name: {**settings["secondaries"][name], "explanations": None} for name in before},
        }
        for settings in (job.to_dict(), earlier.job)
    ]
    if difference := first_difference(compared[0], compared[1]):
        message = f"training cannot start from {start}: {difference}"
        hint = "use the setting of that job, so that it was not trained on test records of this one"
        raise SettingError(f"{message}; {hint}", code="other-earlier-job", difference=difference)
