"""A trained job whose parties come online one by one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.predictor import Predictor
from fedsim.runtime.primary import TrainingOutcome
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all, staying
from session_fixtures import PATIENCE

SOLO = {'when_partner_is_away = "solo"': 'when_partner_is_away = "error"'}
STACKED = {"job": {'method = "fedsim"': 'method = "stacked"'}}
EMBEDDED = {"job": STACKED["job"] | {"[network]": '[protection]\nembedding = "random"\n\n[network]'}}

Changes = dict[str, dict[str, str]]
_trained: dict[str, tuple[TemporaryDirectory[str], TrainingOutcome]] = {}


def train_job(folder: Path, changes: Changes) -> TrainingOutcome:
    """Lay out a job and train it."""
    lay_out(folder, changes)
    job, files = read_all(folder)
    return run_local(job, list(files.values())).outcome


def copy_trained_job(folder: Path, changes: Changes) -> TrainingOutcome:
    """The same, but trained only for the first test of this process that asks for it; others get copies."""
    key = json.dumps(changes, sort_keys=True)
    if key not in _trained:
        kept = TemporaryDirectory()
        _trained[key] = kept, train_job(Path(kept.name), changes)
    kept, outcome = _trained[key]
    shutil.copytree(kept.name, folder, dirs_exist_ok=True)
    return outcome


class World:
    """A trained job whose parties can be brought online one by one; ``train`` trains it anew, as it is patched now."""

    def __init__(
        self, folder: Path, changes: Changes, train: Callable[[Path, Changes], TrainingOutcome] = copy_trained_job
    ) -> None:
        self.outcome = train(folder, changes)
        self.job, self.files = read_all(folder)
        self.records = infer_numbers(read_table(folder / "flats.csv")).drop("price")
        self.transport, self._stack = InProcessTransport(), ExitStack()

    def bring(self, name: str) -> PartyContext:
        return self._stack.enter_context(staying(self.job, self.files[name], self.transport))

    def predictor(self, wait_seconds: float = PATIENCE) -> Predictor:
        post = self._stack.enter_context(
            open_party_context(self.job, self.files["city"], self.transport, software_versions(), predicting=True)
        )
        return Predictor(post, wait_seconds=wait_seconds)

    def close(self) -> None:
        self._stack.close()
