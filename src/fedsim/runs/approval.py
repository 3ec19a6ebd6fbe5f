"""The owner's approval of exactly one job with exactly these columns, kept on file."""

from __future__ import annotations

import json
import os
import pwd
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedsim.config.job import Job, SecondaryTerms
from fedsim.config.party_file import PartyColumns, PartyFile, resolve_columns
from fedsim.config.policy import hardening_steps
from fedsim.errors import FedSimError
from fedsim.runs.run_folder import make_private_folder
from fedsim.storage.digest import first_difference
from fedsim.storage.files import atomic_write

APPROVAL_FORMAT = "fedsim approval 1"


class ApprovalError(FedSimError):
    """The owner has not approved what the party is about to do."""


@dataclass(frozen=True)
class Approval:
    """What was approved, when and by whom; ``settings`` are the whole job, to tell later what has changed."""

    job: str
    role: str
    name: str
    columns: Mapping[str, Any]
    privacy: Mapping[str, Any]
    time: str
    by: str
    settings: Mapping[str, Any]
    format: str = APPROVAL_FORMAT


def approve(
    job: Job, party_file: PartyFile, header: Sequence[str] | None, *, by: str, time: datetime
) -> tuple[Approval, Path]:
    """Write down the owner's approval; one given earlier for the same job gives way."""
    columns = resolve_columns(job, party_file, header)
    approval = Approval(
        job=job.hash,
        role=str(party_file.role),
        name=party_file.name,
        columns=columns.to_dict(),
        privacy={name: privacy_terms(terms) for name, terms in job.secondaries.items()},
        time=time.isoformat(timespec="seconds"),
        by=by,
        settings=job.to_dict(),
    )
    path = approval_path(job, party_file)
    make_private_folder(path.parent)
    with atomic_write(path, mode=0o600) as part:
        part.write_text(json.dumps(asdict(approval), indent=1) + "\n", encoding="utf-8")
    return approval, path


def require_approval(job: Job, party_file: PartyFile, header: Sequence[str] | None = None) -> str:
    """By whom and when the job was approved, in words; an ``ApprovalError`` with the command to run if it was not.

    Ask before any data is touched, and again with the table's ``header``: where the party file leaves the features to
    the table, a column that was added since needs a new approval.
    """
    columns = resolve_columns(job, party_file, header)
    if any(job.hash.startswith(prefix) for prefix in party_file.policy.approve):
        return "by the policy of the party file"
    approval = find_approval(job, party_file)
    changed = _describe_mismatch(approval, job, party_file, columns) if approval else _describe_missing(job, party_file)
    if approval is None or changed:
        raise ApprovalError(
            f"the owner of {party_file.party} has not approved job '{job.name}' ({job.short_hash}): {changed}; "
            f"read and approve it: {approval_command(job, party_file)}"
        )
    return f"by {approval.by} at {approval.time}"


def find_approval(job: Job, party_file: PartyFile) -> Approval | None:
    """The approval on file for this very job, whatever its columns."""
    return _read_approval(approval_path(job, party_file))


def approval_path(job: Job, party_file: PartyFile) -> Path:
    """Where the approval of a job lies."""
    return party_file.folder / "approvals" / f"{job.short_hash}.json"


def approval_command(job: Job, party_file: PartyFile) -> str:
    """What the owner types to approve."""
    paths = (job.path if job.path.name else Path("job.toml"), party_file.path)
    return f"fedsim approve {' '.join(shlex.quote(str(path)) for path in paths)}"


def privacy_terms(terms: SecondaryTerms) -> dict[str, Any]:
    """What decides how much one linkage gives away."""
    return {
        "k": terms.k,
        "metric": terms.metric,
        "tau": terms.tau,
        "sigma": terms.sigma,
        "identifiers": list(terms.encoding.columns),
        "bits": terms.encoding.n_bits,
        "hardening": hardening_steps(terms),
        **terms.model_dump(include={"blur", "min_degree", "dummies", "hide_rows"}),
    }


def current_user() -> str:
    """The user of the operating system; the environment, which anyone may set, is not asked."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _describe_mismatch(approval: Approval, job: Job, party_file: PartyFile, columns: PartyColumns) -> str:
    """In what an approval differs from what is about to happen."""
    if (approval.job, approval.role, approval.name) != (job.hash, str(party_file.role), party_file.name):
        return "the approval on file is of another job or party"
    now, then = columns.to_dict(), dict(approval.columns)
    features, allowed = now.pop("features"), then.pop("features", None)
    # The order of a table's columns is no matter of trust.
    same = features is None or (isinstance(allowed, list) and set(features) == set(map(str, allowed)))
    return "" if same and now == then else "its own columns have changed since"


def _describe_missing(job: Job, party_file: PartyFile) -> str:
    """Why there is no approval: none ever was, or the job has changed since the last one."""
    earlier = [
        approval for path in approval_path(job, party_file).parent.glob("*.json") if (approval := _read_approval(path))
    ]
    same = [approval for approval in earlier if approval.settings.get("name") == job.name]
    if not same:
        return "nobody did yet"
    last = max(same, key=lambda approval: approval.time)
    return f"since the last approval it has changed ({first_difference(job.to_dict(), dict(last.settings))})"


def _read_approval(path: Path) -> Approval | None:
    """An approval on file; one that cannot be read counts as none, since it can be given again."""
    try:
        approval = Approval(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (approval.job, approval.role, approval.name, approval.time, approval.by)
    tables = (approval.columns, approval.privacy, approval.settings)
    sound = all(isinstance(text, str) for text in texts) and all(isinstance(table, dict) for table in tables)
    return approval if sound and approval.format == APPROVAL_FORMAT else None
