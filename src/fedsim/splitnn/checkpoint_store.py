"""A party's checkpoint folder, and the description of settings that a checkpoint must match."""

from __future__ import annotations

import hashlib
import json
import os
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
from fedsim.storage.digest import arrays_digest, first_difference

# A party's folder of checkpoints: one subfolder per step, whole or not there at all
#
# Tensors are safetensors with a SHA-256 beside them, facts are JSON; nothing is ever unpickled. A checkpoint is written
# under another name, flushed to the disk and renamed, so a kill or a full disk leaves the earlier ones as they were.


CHECKPOINT_FORMAT = "fedsim checkpoint 1"


class DamagedCheckpoint(FileError):  # noqa: N818
    """A checkpoint that cannot be read; an earlier one may do."""


@dataclass(frozen=True)
class CheckpointStore:
    """Checkpoints of one party in one job; ``job`` is the description a checkpoint must agree with to be loaded."""

    folder: Path
    job: Mapping[str, Any]

    def steps(self) -> list[int]:
        """The steps kept, in order."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint; one of the same step, left by a run that died before all parties had it, gives way."""
        place, part = self._place(step), self.folder / f".step-{step:09d}.part"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            packed = safetensors.torch.save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
            head = {"format": CHECKPOINT_FORMAT, "step": step, "sha256": hashlib.sha256(packed).hexdigest()}
            _write_and_sync(part / "tensors.safetensors", packed)
            _write_and_sync(
                part / "facts.json", json.dumps({**head, "job": self.job, "facts": facts}, indent=1).encode()
            )
            shutil.rmtree(place, ignore_errors=True)
            part.rename(place)
            _sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            kept = f"the checkpoint of step {self.steps()[-1]} is intact" if self.steps() else "none was kept before"
            raise FileError(
                f"cannot write the checkpoint of step {step} to {self.folder}: {error.strerror}; {kept}: make room and "
                "run again to go on from there"
            ) from error

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts of a checkpoint of this very job."""
        place = self._place(step)
        try:
            written = json.loads((place / "facts.json").read_bytes())
            packed = (place / "tensors.safetensors").read_bytes()
            self._check(written, packed, place)
            return safetensors.torch.load(packed), dict(written["facts"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{place} is no readable checkpoint") from error

    def forget_before(self, step: int) -> None:
        """Remove what is older than this step."""
        for old in self.steps():
            if old < step:
                shutil.rmtree(self._place(old), ignore_errors=True)

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _check(self, written: dict[str, Any], packed: bytes, place: Path) -> None:
        if written["format"] != CHECKPOINT_FORMAT:
            raise FileError(
                f"{place} was written as '{written['format']}', this version reads '{CHECKPOINT_FORMAT}'; start anew"
            )
        other = first_difference(json.loads(json.dumps(self.job)), written["job"])
        if other:
            raise FileError(
                f"{place} belongs to another job: {other}; restore that setting, or start anew in another folder"
            )
        if hashlib.sha256(packed).hexdigest() != written["sha256"]:
            raise DamagedCheckpoint(f"{place} is damaged: its tensors do not match their SHA-256")


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Settings and data in a form that two runs can compare: plain values, and twelve digits for arrays


def describe(value: Any) -> Any:
    """A setting as plain JSON values, so that two can be compared.

    >>> from fedsim.splitnn.party_model import WarmCosine
    >>> describe(WarmCosine())
    {'kind': 'WarmCosine', 'warm': 0.05, 'floor': 0.01}
    """
    if is_dataclass(value):
        inside = {entry.name: describe(getattr(value, entry.name)) for entry in fields(value)}
        return {"kind": type(value).__name__, **inside}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    return [describe(entry) for entry in value] if isinstance(value, tuple) else value


def arrays_fingerprint(arrays: Iterable[NDArray[Any]]) -> str:
    """Twelve digits that stand for these arrays; they stay with the party that holds them."""
    return arrays_digest(*arrays)[:12]
