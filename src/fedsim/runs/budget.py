"""What a secondary has shown one primary, over all jobs: counted in its folder, and limited by its policy."""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedsim.config.party_file import PartyFile, Policy
from fedsim.errors import FileError, PolicyError
from fedsim.linkage.direct.key_store import KeyStore
from fedsim.protocol.messages import Party
from fedsim.runs.run_folder import make_private_folder
from fedsim.storage.files import DigestSet, atomic_write

BUDGET_FORMAT = "fedsim budget 1"
HALF_DIGEST = 8  # bytes of a digest of 16, which holds two of them


@dataclass(frozen=True)
class Spending:
    """Epochs of every job by its hash, and comparison runs with their epochs; ``records`` counts distinct records.

    ``most_uses`` is how often predictions have used the record that they used most, if the policy limits that.
    """

    jobs: Mapping[str, int] = field(default_factory=dict)
    studies: int = 0
    study_epochs: int = 0
    records: int = 0
    most_uses: int = 0

    @property
    def epochs(self) -> int:
        """All epochs, of jobs and studies."""
        return sum(self.jobs.values()) + self.study_epochs


@dataclass(frozen=True)
class PrimaryBudget:
    """The budget of one primary at a secondary; jobs that run at the same time share it."""

    folder: Path
    party: Party
    primary: str
    policy: Policy

    @classmethod
    def of(cls, party_file: PartyFile, primary: str) -> "PrimaryBudget":
        """Return the budget that a party has for a primary."""
        return cls(party_file.folder / "budgets" / primary, party_file.party, primary, party_file.policy)

    def read(self) -> Spending:
        """Return what was spent so far."""
        path = self.folder / "spent.json"
        try:
            facts: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {"format": BUDGET_FORMAT}
            known, spent = facts.pop("format") == BUDGET_FORMAT, Spending(**facts)
            counts = (spent.studies, spent.study_epochs, spent.records, spent.most_uses, *spent.jobs.values())
            if known and all(isinstance(count, int) and count >= 0 for count in counts):
                return spent
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass
        hint = "restore it, or delete it to reset the budget of this primary"
        raise FileError(f"{path} is not a valid budget file; {hint}", code="bad-budget")

    def charge_job(self, job: str, epochs: int) -> Spending:
        """Charge a job once, however often it resumes; raise ``PolicyError`` beyond the owner's limits."""
        with self._locked():
            spent = self.read()
            if job in spent.jobs:
                return spent
            self._check("max_jobs", len(spent.jobs) + 1, self.policy.max_jobs)
            return self._spend(spent, jobs={**spent.jobs, job: epochs})

    def close_job(self, job: str) -> None:
        """Keep what a job has spent under another name, so that running it again is charged as another job."""
        with self._locked():
            spent = self.read()
            if job in spent.jobs:
                earlier = sum(name.startswith(job) for name in spent.jobs)
                renamed = {f"{job}, run {earlier}" if name == job else name: n for name, n in spent.jobs.items()}
                self._spend(spent, jobs=renamed)

    def charge_study(self, epochs: int) -> Spending:
        """Charge a comparison run, every time it starts."""
        with self._locked():
            spent = self.read()
            self._check("max_studies", spent.studies + 1, self.policy.max_studies)
            return self._spend(spent, studies=spent.studies + 1, study_epochs=spent.study_epochs + epochs)

    def charge_records(self, digests: Iterable[bytes]) -> Spending:
        """Charge the records that are linked to this primary, each once."""
        with self._locked():
            known, spent = DigestSet(self.folder / "records"), self.read()
            new = known.missing(digests)
            if self.policy.max_records is not None:
                self._check("max_records", len(known) + len(new), self.policy.max_records)
            known.add(new)
            return self._spend(spent, records=len(known)) if new else spent

    def charge_uses(self, uses: Iterable[tuple[bytes, bytes]]) -> Spending:
        """Charge uses of records by predictions, given as digests of record and use; each pair is charged once."""
        with self._locked():
            known, spent = DigestSet(self.folder / "uses"), self.read()
            new = known.missing(record[:HALF_DIGEST] + use[:HALF_DIGEST] for record, use in uses)
            if not new:
                return spent
            used = Counter(entry[:HALF_DIGEST] for entry in (*known, *new))
            if self.policy.max_record_uses is not None:
                most = max(used[entry[:HALF_DIGEST]] for entry in new)
                self._check("max_record_uses", most, self.policy.max_record_uses)
            known.add(new)
            return self._spend(spent, most_uses=max(used.values()))

    def _spend(self, spent: Spending, **changes: Any) -> Spending:
        after = Spending(**{**asdict(spent), **changes})
        self._check("max_total_epochs", after.epochs, self.policy.max_total_epochs)
        with atomic_write(self.folder / "spent.json", mode=0o600) as part:
            part.write_text(json.dumps({"format": BUDGET_FORMAT, **asdict(after)}, indent=1) + "\n")
        return after

    def _check(self, rule: str, wanted: int, limit: int) -> None:
        # Other parties read this text: it must not tell how many records there are.
        if wanted > limit:
            message = f"{self.party} has a limit of {limit:,} for primary '{self.primary}' ({rule}), over all jobs"
            hint = f"its owner may raise {rule} in its [policy]"
            raise PolicyError(f"{message}; this would exceed it: {hint}", code="over-budget", rule=rule, limit=limit)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the budget until the block ends or the process dies."""
        make_private_folder(self.folder)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


KEYS_FOLDER = "keys"  # of a party's encrypted tables


def key_store(party_file: PartyFile) -> KeyStore:
    """Return the store of the keys of a secondary's encrypted tables, which also counts evaluated tokens."""
    return KeyStore(party_file.folder / KEYS_FOLDER)


def tokens_spent(party_file: PartyFile, primary: str) -> int:
    """Return how many tokens a secondary has evaluated for a primary, over all jobs and keys."""
    return key_store(party_file).record(party_file.name).evaluated.get(primary, 0)
