"""Append-only audit log of a party: lines of JSON, each with the hash of the line before.

A line that was changed, removed or inserted is detected when the log is read. A log that was cut off at its end cannot
be detected from the log alone: note the last hash elsewhere. Facts are settings and counts, never data.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsim.config.party_file import PartyFile
from fedsim.errors import FileError, SettingError
from fedsim.protocol.messages import Party
from fedsim.runs.run_folder import make_private_folder

AuditFact = str | int | float | bool | None | Sequence[str] | Sequence[int]
FIRST_HASH = "0" * 64
MAX_LINE_BYTES = 64 * 1024
TORN_LINE = "torn line set aside"


@dataclass(frozen=True)
class AuditEntry:
    """One line of a log."""

    time: str
    party: str
    what: str
    facts: Mapping[str, Any]
    previous: str
    hash: str


@dataclass(frozen=True)
class AuditLog:
    """A party's log; several threads and processes of the party may append to it."""

    path: Path
    party: Party
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def append(self, what: str, facts: Mapping[str, AuditFact] | None = None) -> AuditEntry:
        """Add an entry and wait until it is on disk.

        If the last line is incomplete because a process was killed, it is first moved to a file beside the log, and an
        entry records that.
        """
        with self._locked() as file:
            last, torn = _split_end(file, self.path)
            if torn:
                digest = hashlib.sha256(torn).hexdigest()
                torn_path = self.path.with_name(f"{self.path.name}.torn-{digest[:12]}")
                copy = os.open(torn_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    _write_all(copy, torn)
                finally:
                    os.close(copy)
                os.ftruncate(file, os.fstat(file).st_size - len(torn))
                self._add(file, last, TORN_LINE, {"bytes": len(torn), "sha256": digest})
                last = _split_end(file, self.path)[0]
            return self._add(file, last, what, facts or {})

    def _add(self, file: int, last: bytes, what: str, facts: Mapping[str, AuditFact]) -> AuditEntry:
        previous = _parse_line(last, self.path, None).hash if last else FIRST_HASH
        time = self.clock().astimezone(UTC).isoformat(timespec="milliseconds")
        entry = _seal_entry(time, str(self.party), what, facts, previous)
        line = _to_line(asdict(entry))
        if len(line) > MAX_LINE_BYTES:
            message = f"an entry of {len(line):,} bytes is too long for the audit log; the limit is {MAX_LINE_BYTES:,}"
            raise SettingError(message, code="entry-too-long", limit=MAX_LINE_BYTES)
        size = os.fstat(file).st_size
        try:
            _write_all(file, line)
        except OSError:
            os.ftruncate(file, size)  # a full disk would leave half a line
            raise
        return entry

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the log and lock it until the block ends or the process dies."""
        try:
            make_private_folder(self.path.parent)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            finally:
                os.close(file)
        except OSError as error:
            hint = "a party does nothing that it cannot log: check folder, permissions and disk space"
            message = f"cannot write the audit log {self.path}: {error.strerror}; {hint}"
            raise FileError(message, code="audit-log-unwritable") from error


def open_audit_log(party_file: PartyFile) -> AuditLog:
    """Return the log of a party, which has the entries of all its jobs."""
    return AuditLog(party_file.folder / "audit.jsonl", party_file.party)


def read_audit_log(path: Path) -> Iterator[AuditEntry]:
    """Yield the entries, each verified against the one before; the first invalid line raises a ``FileError``."""
    previous = FIRST_HASH
    for number, line in enumerate(_lines(path), 1):
        if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            cause = "because a process was killed; the next start repairs the log"
            message = f"{path}, line {number} is incomplete, {cause}"
            raise FileError(message, code="torn-line", line=number)
        entry = _parse_line(line, path, number)
        if entry.previous != previous:
            message = f"{path}, line {number} does not follow the line before; lines were removed, inserted or moved"
            raise FileError(message, code="broken-chain", line=number)
        previous = entry.hash
        yield entry


def _lines(path: Path) -> Iterator[bytes]:
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is not a regular file; give the path of the log", code="not-a-file")
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "invalid path"
        message = f"cannot read the audit log {path}: {reason}; check the path"
        raise FileError(message, code="unreadable-file") from error


def _split_end(file: int, path: Path) -> tuple[bytes, bytes]:
    """Return the last complete line and the bytes after it."""
    size = os.fstat(file).st_size
    start = max(0, size - 2 * MAX_LINE_BYTES)
    *complete, torn = os.pread(file, size - start, start).split(b"\n")
    if start and len(complete) < 2:
        message = f"{path} is damaged: its last line is too long; move the file elsewhere and keep it"
        raise FileError(message, code="damaged-log")
    return (complete[-1] + b"\n" if complete else b""), torn


def _parse_line(line: bytes, path: Path, number: int | None) -> AuditEntry:
    try:
        content = json.loads(line)
        # An entry has exactly one valid form, so that its hash covers every byte.
        entry = _seal_entry(content["time"], content["party"], content["what"], content["facts"], content["previous"])
        texts = (entry.time, entry.party, entry.what, entry.previous)
        if all(isinstance(text, str) for text in texts) and _to_line(asdict(entry)) == line:
            return entry
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    where = "the last line" if number is None else f"line {number}"
    raise FileError(f"{path}, {where} was changed, or this is not an audit log", code="changed-line", line=number)


def _seal_entry(time: str, party: str, what: str, facts: Mapping[str, Any], previous: str) -> AuditEntry:
    content = {"time": time, "party": party, "what": what, "facts": dict(facts), "previous": previous}
    return AuditEntry(time, party, what, dict(facts), previous, hashlib.sha256(_to_line(content)).hexdigest())


def _to_line(content: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError):
        message = "a fact in the audit log must be text, a finite number, a boolean, or a list of them"
        raise SettingError(message, code="invalid-fact") from None


def _write_all(file: int, content: bytes) -> None:
    written = 0
    while written < len(content):
        written += os.write(file, content[written:])
    os.fsync(file)
