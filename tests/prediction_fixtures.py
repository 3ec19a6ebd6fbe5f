"""A trained job whose parties come online one by one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from fedsim.data.table_reader import infer_numbers, read_table
from fedsim.protocol.transport import InProcessTransport
from fedsim.runtime.party_context import PartyContext, open_party_context, software_versions
from fedsim.runtime.predict import Predictor
from fedsim.runtime.primary import TrainingOutcome
from fedsim.runtime.run_local import run_local
from job_fixtures import lay_out, read_all, staying
from session_fixtures import PATIENCE

SOLO = {'when_partner_is_away = "solo"': 'when_partner_is_away = "error"'}


class World:
    """A trained job whose parties can be brought online one by one."""

    def __init__(self, folder: Path, changes: dict[str, dict[str, str]]) -> None:
        lay_out(folder, changes)
        self.job, self.files = read_all(folder)
        self.outcome: TrainingOutcome = run_local(self.job, list(self.files.values())).outcome
        self.records = infer_numbers(read_table(folder / "flats.csv")).drop("price")
        self.transport, self._stack = InProcessTransport(), ExitStack()

    def bring(self, name: str) -> PartyContext:
        return self._stack.enter_context(staying(self.job, self.files[name], self.transport))

    def predictor(self, wait_seconds: float = PATIENCE) -> Predictor:
        post = self._stack.enter_context(
            open_party_context(self.job, self.files["city"], self.transport, software_versions())
        )
        return Predictor(post, wait_seconds=wait_seconds)

    def close(self) -> None:
        self._stack.close()
