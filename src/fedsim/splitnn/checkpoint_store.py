"""A party's checkpoint folder, and the description of settings that a checkpoint must match."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from fedsim.errors import FileError
from fedsim.storage.files import atomic_folder
from fedsim.storage.tensor_file import arrays_digest
from fedsim.validation import first_difference

# On disk: one folder per step with tensors.safetensors and facts.json. The facts hold the SHA-256 of the tensors and
# the description of the job; nothing is ever unpickled. A folder appears complete or not at all, so a kill or a full
# disk leaves earlier checkpoints intact.
CHECKPOINT_FORMAT = "fedsim checkpoint 1"


class DamagedCheckpoint(FileError):  # noqa: N818
    """A checkpoint that cannot be read; an earlier one may be intact."""


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one party in one job; only a checkpoint with an equal description of the job is loaded."""

    folder: Path  # one subfolder per step
    job: Mapping[str, Any]

    def steps(self) -> list[int]:
        """List the stored steps in ascending order."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; it replaces one of the same step that a run left when it was killed."""
        packed = safetensors.torch.save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
        head = {"format": CHECKPOINT_FORMAT, "step": step, "sha256": hashlib.sha256(packed).hexdigest()}
        try:
            with atomic_folder(self._path(step)) as part:
                (part / "tensors.safetensors").write_bytes(packed)
                content = json.dumps({**head, "job": self.job, "facts": facts}, indent=1)
                (part / "facts.json").write_text(content, encoding="utf-8")
        except FileError as error:
            last = max(self.steps(), default=None)
            intact = "there is no earlier checkpoint" if last is None else f"the checkpoint of step {last} is intact"
            message = f"cannot write the checkpoint of step {step}: {error}; {intact}: free space and run again"
            raise FileError(message, code="checkpoint-not-written", step=step, last=last) from error

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts of a checkpoint of this job."""
        path = self._path(step)
        try:
            stored = json.loads((path / "facts.json").read_bytes())
            packed = (path / "tensors.safetensors").read_bytes()
            if stored["format"] != CHECKPOINT_FORMAT:
                formats = f"the format '{stored['format']}', but this version reads '{CHECKPOINT_FORMAT}'"
                raise FileError(f"{path} has {formats}; start the training again", code="checkpoint-format")
            difference = first_difference(json.loads(json.dumps(self.job)), stored["job"])
            if difference:
                message = f"{path} belongs to another job: {difference}; restore that setting, or use another folder"
                raise FileError(message, code="checkpoint-of-another-job", difference=difference)
            if hashlib.sha256(packed).hexdigest() != stored["sha256"]:
                raise DamagedCheckpoint(f"{path} is damaged: its SHA-256 does not match", code="damaged-checkpoint")
            return safetensors.torch.load(packed), dict(stored["facts"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{path} is not a readable checkpoint", code="damaged-checkpoint") from error

    def forget_before(self, step: int) -> None:
        """Delete the checkpoints of earlier steps."""
        for old in self.steps():
            if old < step:
                shutil.rmtree(self._path(old), ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"


def describe(value: Any) -> Any:
    """Return a setting as plain JSON values, so that two runs can be compared.

    >>> from fedsim.splitnn.party_model import WarmCosine
    >>> describe(WarmCosine())
    {'kind': 'WarmCosine', 'warm': 0.05, 'floor': 0.01}
    """
    if is_dataclass(value):
        settings = {entry.name: describe(getattr(value, entry.name)) for entry in fields(value)}
        return {"kind": type(value).__name__, **settings}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    return [describe(entry) for entry in value] if isinstance(value, tuple) else value


def arrays_fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """Return twelve hexadecimal digits that identify arrays; they never leave the party."""
    return arrays_digest(*arrays)[:12]
