"""Append-only audit log of a party: lines of JSON chained by their hashes.

A line changed, removed or put in between shows when the log is read. What no log can show by itself is that its end was
cut off: note the last hash elsewhere to be sure of that, too. Facts are settings and counts, never data.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class AuditLog:
    """A party's log, to which lines are only ever added; safe for threads and for several processes of the party."""

    path: Path
    party: Party
    clock: Callable[[], datetime] = _now

    def append(self, what: str, facts: Mapping[str, AuditFact] | None = None) -> AuditEntry:
        """Add a line; it is on the disk when this returns.

        A last line that a kill cut short is first moved to a file beside the log, and the log says so.
        """
        with self._locked() as file:
            end, torn = _split_end(file, self.path)
            if torn:
                end = self._set_aside(file, end, torn)
            return self._add(file, end, what, facts or {})

    def _set_aside(self, file: int, last: bytes, torn: bytes) -> bytes:
        digest = hashlib.sha256(torn).hexdigest()
        aside = self.path.with_name(f"{self.path.name}.torn-{digest[:12]}")
        with open(aside, "wb", opener=_open_private) as copy:
            _write_all(copy.fileno(), torn)
        os.ftruncate(file, os.fstat(file).st_size - len(torn))
        self._add(file, last, TORN_LINE, {"bytes": len(torn), "sha256": digest})
        return _split_end(file, self.path)[0]

    def _add(self, file: int, last: bytes, what: str, facts: Mapping[str, AuditFact]) -> AuditEntry:
        previous = _parse_line(last, self.path, "its last line").hash if last else FIRST_HASH
        time = self.clock().astimezone(UTC).isoformat(timespec="milliseconds")
        entry = _seal_entry(time, str(self.party), what, facts, previous)
        line = _line(asdict(entry))
        if len(line) > MAX_LINE_BYTES:
            raise SettingError(f"an entry of {len(line):,} bytes for the audit log; it takes up to {MAX_LINE_BYTES:,}")
        size = os.fstat(file).st_size
        try:
            _write_all(file, line)
        except OSError:
            os.ftruncate(file, size)  # a disk that is full leaves half a line
            raise
        return entry

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The open log, ours alone until the block ends or the process dies."""
        try:
            make_private_folder(self.path.parent)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise FileError(
                f"cannot write the audit log {self.path}: {error.strerror}; a party does nothing it cannot log: "
                "check folder, permissions and space"
            ) from error


def open_audit_log(party_file: PartyFile) -> AuditLog:
    """The log of a party, one for all its jobs."""
    return AuditLog(party_file.folder / "audit.jsonl", party_file.party)


def read_audit_log(path: Path) -> Iterator[AuditEntry]:
    """The entries in turn, each checked against the one before; the first that does not fit is a ``FileError``."""
    previous = FIRST_HASH
    for number, line in enumerate(_lines(path), 1):
        where = f"line {number}"
        if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
            raise FileError(
                f"{path}, {where} is torn: a process was killed while writing it; its next start sets the line aside"
            )
        entry = _parse_line(line, path, where)
        if entry.previous != previous:
            raise FileError(f"{path}, {where} does not follow the line before: lines were removed, added or moved")
        previous = entry.hash
        yield entry


def verify_audit_log(path: Path) -> int:
    """How many entries the log has, if every one of them is as it was written."""
    return sum(1 for _ in read_audit_log(path))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"{path} is no regular file but a folder, device or pipe; name the log itself")
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "the system cannot look it up"
        raise FileError(f"cannot read the audit log {path}: {reason}; check the path") from error


def _split_end(file: int, path: Path) -> tuple[bytes, bytes]:
    """The last whole line, and what stands behind it."""
    size = os.fstat(file).st_size
    start = max(0, size - 2 * MAX_LINE_BYTES)
    lines = os.pread(file, size - start, start).split(b"\n")
    torn, whole = lines[-1], lines[:-1]
    if start and len(whole) < 2:
        raise FileError(f"{path} is damaged: it ends in a line too long to be one of ours; move it away and keep it")
    return (whole[-1] + b"\n" if whole else b""), torn


def _parse_line(line: bytes, path: Path, where: str) -> AuditEntry:
    try:
        words = json.loads(line)
        # Only the one way of writing an entry will do: its hash then stands for every byte.
        entry = _seal_entry(words["time"], words["party"], words["what"], words["facts"], words["previous"])
        texts = (entry.time, entry.party, entry.what, entry.previous)
        if all(isinstance(text, str) for text in texts) and _line(asdict(entry)) == line:
            return entry
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise FileError(f"{path}, {where} is not as it was written: the log was changed there, or this is no audit log")


def _seal_entry(time: str, party: str, what: str, facts: Mapping[str, Any], previous: str) -> AuditEntry:
    content = {"time": time, "party": party, "what": what, "facts": dict(facts), "previous": previous}
    return AuditEntry(time, party, what, dict(facts), previous, hashlib.sha256(_line(content)).hexdigest())


def _line(content: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError):
        raise SettingError("a fact for the audit log is no text, finite number, yes or no, or list of such") from None


def _write_all(file: int, line: bytes) -> None:
    written = 0
    while written < len(line):
        written += os.write(file, line[written:])
    os.fsync(file)
