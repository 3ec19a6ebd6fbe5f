"""The keys of a secondary's tables: created, rotated and destroyed, with what was ever evaluated with them.

A key belongs to a table, not to a job: it lives in the party's key store, and what it evaluated is counted in the same
file. Deleting the file loses the key, so nobody resets the count and keeps the table. Restoring an older copy of the
whole file does reset it to that copy; nothing on one machine can prevent that, so the owner must keep copies of the key
store as carefully as the table itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedsim.errors import FileError, PolicyError
from fedsim.linkage.direct.groups import Grouping, RecordedGroups
from fedsim.linkage.direct.oprf import SecretKey
from fedsim.storage.files import atomic_write, check_private, ensure_folder, remove_abandoned_parts, remove_paths
from fedsim.storage.tensor_file import arrays_digest

KEY_FORMAT = "fedsim table key 2"
Update = Callable[[RecordedGroups], tuple[Grouping, RecordedGroups]]


@dataclass(frozen=True)
class KeyLife:
    """What is known of one key: its public part, and when it was created and destroyed (ISO 8601)."""

    public: str
    created: str
    destroyed: str | None = None


@dataclass(frozen=True)
class Shown:
    """What a primary was sent in a job: how many ``vectors``, each of ``m`` rows or more, and when (ISO 8601)."""

    primary: str
    job: str
    time: str
    share: str
    m: int
    vectors: int


@dataclass(frozen=True)
class KeyRecord:
    """The keys that a table ever had, oldest first, and the tokens evaluated for each primary, over all of them.

    ``last`` has the digest of each primary's last request to the present key: repeated after a restart, it costs
    nothing. ``terms`` are those by which averages of the table were first shown, if any were; ``groups`` is the digest
    of the file with its groups; ``shown`` says what was shown to whom, oldest first.
    """

    keys: tuple[KeyLife, ...] = ()
    evaluated: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = field(default=None, repr=False)
    terms: Mapping[str, Any] = field(default_factory=dict)
    groups: str = ""
    shown: tuple[Shown, ...] = ()


@dataclass(frozen=True)
class KeyStore:
    """A folder with one file per table.

    Examples
    --------
    >>> import tempfile
    >>> now = datetime.fromisoformat("2030-01-02T03:04:05+00:00")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = KeyStore(Path(folder))
    ...     _ = store.create("firms", now)
    ...     store.destroy("firms", now).keys[0].destroyed
    '2030-01-02T03:04:05+00:00'
    """

    folder: Path

    def create(self, table: str, now: datetime, key: SecretKey | None = None) -> SecretKey:
        """Create the key of a table, by default a random one; refuse if it has one."""
        with self._locked(table):
            record = self._read(table)
            if record.secret is not None:
                message = f"table '{table}' has a key; rotate it, or destroy it first"
                raise FileError(message, code="already-exists", table=table)
            return self._add_key(table, record, now, key or SecretKey.generate())

    def key(self, table: str) -> SecretKey:
        """Return the key of a table."""
        record = self._read(table)
        if record.secret is not None:
            return SecretKey(bytes.fromhex(record.secret))
        if record.keys:
            message = (
                f"the key of table '{table}' was destroyed on {record.keys[-1].destroyed}; nothing more can be opened"
            )
            raise FileError(message, code="key-destroyed", table=table)
        raise FileError(f"table '{table}' has no key; create one", code="no-key", table=table)

    def record(self, table: str) -> KeyRecord:
        """Return the record of a table's keys, without the secret."""
        return replace(self._read(table), secret=None)

    def rotate(self, table: str, now: datetime) -> SecretKey:
        """Destroy the key of a table and create another; the count of evaluated tokens goes on."""
        with self._locked(table):
            return self._add_key(table, self._end_key(table, now), now, SecretKey.generate())

    def destroy(self, table: str, now: datetime) -> KeyRecord:
        """Destroy the key of a table for good: nobody can open another entry of its tables.

        The file is replaced by one without the secret. Blocks of the old file may survive on the disk until they are
        overwritten; where that matters, keep the key store on an encrypted disk.
        """
        with self._locked(table):
            record = self._end_key(table, now)
            self._write(table, record)
            remove_abandoned_parts(self.folder)  # a process killed while it wrote left the secret in one
            return record

    def charge(self, table: str, primary: str, tokens: int, limit: int, request: str = "") -> int:
        """Count tokens before they are evaluated, durably; raise ``PolicyError`` beyond the limit.

        Parameters
        ----------
        table
            Whose key evaluates them.
        primary
            Who asks.
        tokens
            How many, padding included: the secondary cannot tell tokens apart.
        limit
            ``max_tokens`` of the owner's policy, over all jobs and keys of the table.
        request
            A digest of what is asked; the same request again, in a row, is counted once.
        """
        with self._locked(table):
            self.key(table)  # raises if there is none
            record = self._read(table)
            before = record.evaluated.get(primary, 0)
            if request and record.last.get(primary) == request:
                return before
            if before + tokens > limit:
                left = limit - before
                message = f"primary '{primary}' asks for {tokens:,} tokens of table '{table}', but {left:,} are left"
                hint = "the owner of the table may raise max_tokens in its [policy]"
                raise PolicyError(f"{message}; {hint}", code="over-budget", rule="max_tokens", limit=limit, left=left)
            counts, last = {**record.evaluated, primary: before + tokens}, {**record.last, primary: request}
            self._write(table, replace(record, evaluated=counts, last=last))
            return before + tokens

    def require_terms(self, table: str, terms: Mapping[str, Any]) -> KeyRecord:
        """Refuse other terms than those by which averages of a table were first shown, if any were."""
        record = self._read(table)
        changed = [name for name in terms if record.terms and terms[name] != record.terms.get(name)]
        if changed:
            # Other parties read this text: the owner sees the values with `fedsim privacy ledger`.
            message = f"averages of table '{table}' were first shown with another {' and '.join(changed)}"
            hint = "all jobs must have the same, because differences of averages would show fewer records"
            raise PolicyError(f"{message}; {hint}", code="terms-bound", rule="m", changed=changed)
        return record

    def update_groups(self, table: str, terms: Mapping[str, Any], update: Update) -> Grouping:
        """Return the groups of a table's rows, as they are for life.

        Parameters
        ----------
        table
            The table.
        terms
            The terms of the job by which groups are formed; any others than those of the first job are refused.
        update
            Given what was recorded, returns the groups of the present rows and what is to be recorded.
        """
        with self._locked(table):
            record = self.require_terms(table, terms)
            left = list(self.folder.glob(f"{table}-{'[0-9a-f]' * 16}.groups"))
            if left and not record.groups:
                message = f"table '{table}' has groups in {left[0]}, but its key file, which names them, is gone"
                hint = "restore a copy of the key file; remove the groups only if no average was ever sent"
                raise FileError(f"{message}: {hint}", code="bad-key-file", table=table)
            path = self._groups_path(table, record.groups)
            known = RecordedGroups.load(path) if record.groups else RecordedGroups.empty()
            grouping, after = update(known)
            if after is not known:
                digest = arrays_digest(after.rows, after.grouping.group)
                after.save(self._groups_path(table, digest))
                self._write(table, replace(record, terms=dict(terms), groups=digest))
                remove_paths([path] if record.groups else [])
            return grouping

    def add_shown(self, table: str, shown: Shown) -> None:
        """Record what a primary was sent, once for a job."""
        with self._locked(table):
            record = self._read(table)
            if all((shown.primary, shown.job) != (of.primary, of.job) for of in record.shown):
                self._write(table, replace(record, shown=(*record.shown, shown)))

    def _groups_path(self, table: str, digest: str) -> Path:
        return self._path(table).with_name(f"{table}-{digest[:16]}.groups")

    def _add_key(self, table: str, record: KeyRecord, now: datetime, key: SecretKey) -> SecretKey:
        life = KeyLife(key.public.hex(), now.isoformat())
        self._write(table, replace(record, keys=(*record.keys, life), secret=key.scalar.hex()))
        return key

    def _end_key(self, table: str, now: datetime) -> KeyRecord:
        self.key(table)  # raises if there is none
        record = self._read(table)
        ended = replace(record.keys[-1], destroyed=now.isoformat())
        return replace(record, keys=(*record.keys[:-1], ended), secret=None, last={})

    def _path(self, table: str) -> Path:
        if not table or not all(char.isalnum() or char in "-_." for char in table) or table.startswith("."):
            message = "the name of a table has letters, digits, '-', '_' and '.' only, and does not start with '.'"
            raise FileError(message, code="bad-path")
        return self.folder / f"{table}.key.json"

    def _read(self, table: str) -> KeyRecord:
        path = self._path(table)
        if not path.exists():
            return KeyRecord()
        check_private(path)
        try:
            facts = json.loads(path.read_bytes())
            intact = facts.pop("sha256") == _digest(facts)
            keys, evaluated = tuple(KeyLife(**life) for life in facts["keys"]), dict(facts["evaluated"])
            shown = tuple(Shown(**of) for of in facts["shown"])
            bound = dict(facts["terms"]), str(facts["groups"]), shown
            record = KeyRecord(keys, evaluated, dict(facts["last"]), facts["secret"], *bound)
            known = intact and facts["format"] == KEY_FORMAT and all(type(count) is int for count in evaluated.values())
            usable = record.secret is None or SecretKey(bytes.fromhex(record.secret)).public.hex() == keys[-1].public
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}", code="not-readable") from error
        except (ValueError, TypeError, LookupError, AttributeError):  # without the cause, which may quote the secret
            known = usable = False
        if not (known and usable):
            raise FileError(f"{path} is not a valid key file; restore a copy", code="bad-key-file")
        return record

    def _write(self, table: str, record: KeyRecord) -> None:
        facts = {"format": KEY_FORMAT, **asdict(record)}
        with atomic_write(self._path(table), mode=0o600) as part:
            part.write_text(json.dumps({**facts, "sha256": _digest(facts)}, indent=1) + "\n", encoding="ascii")

    @contextmanager
    def _locked(self, table: str) -> Iterator[None]:
        """Lock the file of a table until the block ends or the process dies."""
        path = self._path(table)
        ensure_folder(self.folder)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _digest(facts: Mapping[str, object]) -> str:
    """Return a digest of the content of a key file, so that no damaged disk changes a count."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
