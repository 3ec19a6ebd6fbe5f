"""What a stored result was computed from, beside its job, so that a result of other inputs is never shown as current.

A run, and a folder of comparisons, records a digest of every party's table and key, the settings that decide how the
table is read, and the release. Every command compares them before it uses or continues what is stored.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsim.config.job import Job
from fedsim.config.party_file import PartyFile
from fedsim.data.sql import SqlTable
from fedsim.errors import FedSimError, StaleResultError
from fedsim.linkage.encoding import Key
from fedsim.protocol.messages import Role
from fedsim.runs.budget import PrimaryBudget
from fedsim.runs.run_folder import KEPT_FILES, is_trained, open_audit_log, run_path
from fedsim.storage.files import atomic_write, check_readable, remove_paths
from fedsim.version import VERSION

log = logging.getLogger("fedsim.parties")

INPUTS_FILE, INPUTS_FORMAT = "inputs.json", "fedsim inputs 1"
# The settings that decide how a table is read; what the table contains is known by its digest.
_DECIDING: Any = {"data": True, "identifiers": True, "features": True, "label": True}
_DECIDING |= {"policy": {"columns", "min_list_rows"}}
_SOURCE: Any = {"data": {"file", "url", "table", "query"}}


@dataclass(frozen=True)
class InputChange:
    """A changed input of a party: ``kind`` is table, linkage key, party file or release, ``what`` says which."""

    kind: str
    party: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} of {self.party}"


@dataclass(frozen=True)
class PartyInputs:
    """The inputs of one party; ``stamp`` are size and time of the table's file, which is read again if they differ."""

    table: str
    stamp: list[int]
    key: str
    settings: dict[str, Any]
    release: str

    def changes(self, now: "PartyInputs", own: PartyFile) -> Iterator[InputChange]:
        """Yield what is different now."""
        party, source = str(own.party), own.data.source if own.data else None
        if now.table != self.table:
            yield InputChange("table", party, f"the table {source}")
        if now.key != self.key:
            yield InputChange("linkage key", party, "the linkage key")
        for name in sorted({*self.settings, *now.settings}):
            if now.settings.get(name) != self.settings.get(name):
                yield InputChange("party file", party, f"{name} in the file")
        if now.release != self.release:
            yield InputChange("release", party, f"the release ({self.release} then, {now.release} now)")


def _read_inputs(job: Job, own: PartyFile, known: PartyInputs | None, *, predicting: bool = False) -> PartyInputs:
    """Return the inputs as they are now; the table is not read if its file has the ``known`` stamp.

    A primary that is ``predicting`` does not need its table, which may be gone.
    """
    table, stamp, key = (known.table, known.stamp, known.key) if known else ("", [], "")
    source = own.data.source if own.data else None
    needed = not (predicting and own.role is Role.PRIMARY)
    if isinstance(source, SqlTable) and needed:
        from fedsim.data.table_reader import frame_digest  # noqa: PLC0415 - polars, which other tables do without

        table = frame_digest(source.read())
    elif isinstance(source, Path) and (needed or source.is_file()):
        check_readable(source)
        status = source.stat()
        before, stamp = stamp, [status.st_size, status.st_mtime_ns]
        if before != stamp:
            with source.open("rb") as file:
                table = hashlib.file_digest(file, "blake2b").hexdigest()
    if own.linkage is not None and job.kind.SHARES_KEY:
        with suppress(FedSimError):  # a run keeps the key that it began with, which may be out of reach now
            key = next(iter(job.secondaries.values())).encoding.fingerprint(Key.read(own.linkage.key))
    sections = own.model_dump(mode="json", include=_DECIDING, exclude=_SOURCE)
    settings = {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in (values or {}).items()
        if value not in (None, [], {})
    }
    if known and not needed:  # the party file now says how the new records are written
        others = {name: value for name, value in settings.items() if not name.startswith("data.")}
        settings = others | {name: value for name, value in known.settings.items() if name.startswith("data.")}
    return PartyInputs(table, stamp, key, settings, VERSION)


class InputRecord:
    """The inputs that a stored result was computed from.

    Parameters
    ----------
    path
        The file beside the result; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parties: dict[str, PartyInputs] = {}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # a damaged file records nothing
            facts = json.loads(path.read_bytes())
            if facts["format"] == INPUTS_FORMAT:
                self._parties = {party: PartyInputs(**inputs) for party, inputs in facts["parties"].items()}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is recorded."""
        return not self._parties

    def read(self, job: Job, files: Iterable[PartyFile]) -> dict[str, PartyInputs]:
        """Return the inputs of some parties as they are now, to be saved once a result depends on them."""
        return {str(own.party): _read_inputs(job, own, self._parties.get(str(own.party))) for own in files}

    def changes(self, job: Job, files: Sequence[PartyFile], *, predicting: bool = False) -> list[InputChange]:
        """Return what has changed; of a party without a record nothing has."""
        known = [(own, self._parties[str(own.party)]) for own in files if str(own.party) in self._parties]
        now = [_read_inputs(job, own, before, predicting=predicting) for own, before in known]
        return [change for (own, before), one in zip(known, now, strict=True) for change in before.changes(one, own)]

    def save(self, inputs: Mapping[str, PartyInputs]) -> None:
        """Record the inputs of some parties."""
        self._parties = {**self._parties, **inputs}
        facts = {"format": INPUTS_FORMAT, "parties": {party: asdict(one) for party, one in self._parties.items()}}
        with atomic_write(self.path, mode=0o600) as part:
            part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def require_unchanged(result: str, changes: Sequence[InputChange], *, hint: str) -> None:
    """Raise a ``StaleResultError`` if there are changes, of a ``result`` such as "job 'a' was run with"."""
    if changes:
        message = f"{result} other inputs; changed since: {', '.join(map(str, changes))}; restore them, or {hint}"
        raise StaleResultError(message, code="inputs-changed", changes=changes)


# Runs


def require_same_inputs(job: Job, files: Sequence[PartyFile], *, predicting: bool = False) -> None:
    """Raise a ``StaleResultError`` if the stored run of one of these parties is of other inputs.

    A model that is only used for ``predicting`` does not depend on the table of the primary, and another release can
    read it: such changes are logged.
    """
    changes = [change for own in files for change in _changed_inputs(job, own, predicting=predicting)]
    hint = "train again with --again" if len(files) > 1 else "train again: `fedsim party` with --again, at every party"
    require_unchanged(f"job '{job.name}' was run with", changes, hint=hint)


def _changed_inputs(job: Job, own: PartyFile, *, predicting: bool) -> Iterator[InputChange]:
    record = run_inputs(run_path(job, own))
    changes = record.changes(job, [own], predicting=predicting)
    if record.is_empty and own.role is not Role.COORDINATOR and is_trained(run_path(job, own)):
        changes = [InputChange("release", str(own.party), "the release (an earlier one)")]
    for change in changes:
        if predicting and (change.kind == "release" or (change.kind == "table" and own.role is Role.PRIMARY)):
            log.warning("the model was trained before a change of %s", change)
        else:
            yield change


def run_inputs(folder: Path) -> InputRecord:
    """Return the record of a run folder."""
    return InputRecord(folder / INPUTS_FILE)


def discard_run(job: Job, own: PartyFile) -> None:
    """Remove what a party stores of a run, so that it is run again from the start.

    What is left: the secret, so that equal cells get equal noise again, and the ledger of all that was ever sent. To
    the budget of a secondary the next run is another job.
    """
    folder = run_path(job, own)
    remove_paths(path for path in list(folder.iterdir()) if path.name not in KEPT_FILES)
    if own.role is Role.SECONDARY:
        PrimaryBudget.of(own, job.primary.name).close_job(job.hash)
    open_audit_log(own).append("run discarded", {"job": job.hash})
