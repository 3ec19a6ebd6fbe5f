"""What a party stores of a job in its run folder: model weights and encoded identifiers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim.config.job import Job
from fedsim.errors import FileError
from fedsim.linkage.files import load_encoded, save_encoded
from fedsim.runtime.apply_protection import frame_digest
from fedsim.runtime.party_data import PartyData
from fedsim.splitnn.checkpoint_store import CheckpointStore
from fedsim.storage.files import atomic_write
from fedsim.types import EncodedTable

Tensors = Mapping[str, Tensor]
TRAINED_MODEL = "model"  # a party's part of what was trained


@dataclass(frozen=True)
class RunStore:
    """The keeping of one party in one job."""

    folder: Path
    job: Job

    def save_weights(self, what: str, tensors: Tensors, facts: Mapping[str, Any]) -> None:
        """Keep weights with what is needed to use them."""
        self._shelf(what).save(0, tensors, facts)

    def has_weights(self, what: str) -> bool:
        """Whether they were kept."""
        return bool(self._shelf(what).steps())

    def load_weights(self, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What was kept; it must be of this very job."""
        if not self.has_weights(what):
            raise FileError(f"no trained model of job '{self.job.name}' lies in {self.folder}; train it first")
        return self._shelf(what).load(0)

    def encoded(self, table: PartyData, secondary: str) -> EncodedTable:
        """The table's filters; those kept are used again, for filters with noise must not be drawn twice."""
        path = self.encoded_path(secondary)
        folder, note = path.parent, path.with_suffix(".json")
        digest = frame_digest(table.identifiers(secondary))
        if path.is_file() and note.is_file() and _read_digest(note) == digest:
            return load_encoded(path)
        encoded = table.encoded(self.job, secondary, self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        save_encoded(encoded, path)
        with atomic_write(note) as part:
            part.write_text(json.dumps({"identifiers": digest}))
        return encoded

    def encoded_path(self, secondary: str) -> Path:
        """Where the filters for one list lie."""
        return self.folder / "encoded" / f"{secondary}.safetensors"

    def _shelf(self, what: str) -> CheckpointStore:
        return CheckpointStore(self.folder / what, {"job": self.job.hash})


def _read_digest(note: Path) -> str:
    try:
        return str(json.loads(note.read_text())["identifiers"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
