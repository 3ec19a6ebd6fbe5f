"""A folder of training results: one JSON line per training and its predictions; survives being killed."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import FileError
from fedsim.storage.files import append_durably, atomic_write, ensure_folder

RESULTS_FILE, PREDICTIONS_FOLDER = "results.jsonl", "predictions"
ADDED_SETTINGS = ("hidden", "decay")


class ResultStore:
    """The results in a folder, known by what was trained: the settings of a rung and the digest of its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = [
            _parse_line(line, folder / RESULTS_FILE)
            for line in _read_complete_lines(folder / RESULTS_FILE).splitlines()
        ]
        self._known = {_training_digest(line): line for line in lines}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What is known of every training."""
        return list(self._known.values())

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether this was trained; where its predictions are lost or damaged, it counts as not trained."""
        return _training_digest(key) in self._known and self._predicted(key)

    def name_of(self, key: Mapping[str, Any]) -> str:
        """What stands for a training; equal trainings have equal names."""
        return _training_digest(key)

    def line(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of a training."""
        return self._known[_training_digest(key)]

    def predictions(self, key: Mapping[str, Any]) -> NDArray[Any]:
        """Its predictions of the test records."""
        return np.asarray(np.load(self._file(key), allow_pickle=False))

    def add(self, line: dict[str, Any], predictions: NDArray[Any]) -> None:
        """Keep a training; the line, written last, says that all of it is there."""
        buffer = io.BytesIO()
        np.save(buffer, predictions.astype(np.float32), allow_pickle=False)
        ensure_folder(self._file(line).parent)
        with atomic_write(self._file(line)) as part:
            part.write_bytes(buffer.getvalue())
        _append_line(self.folder / RESULTS_FILE, json.dumps(line, allow_nan=False))
        self._known[_training_digest(line)] = line

    def _predicted(self, key: Mapping[str, Any]) -> bool:
        try:
            self.predictions(key)
        except (OSError, ValueError, EOFError):
            return False
        return True

    def _file(self, key: Mapping[str, Any]) -> Path:
        return self.folder / PREDICTIONS_FOLDER / f"{_training_digest(key)}.npy"


def _training_digest(line: Mapping[str, Any]) -> str:
    """The name and the key of a rung do not change what is trained; nor do settings it leaves as the preset has them.

    Of the latter only those that came after the first results were kept: the names of these must not change.
    """
    settings = {
        name: value
        for name, value in line["settings"].items()
        if name not in ("key", "name") and not (name in ADDED_SETTINGS and value is None)
    }
    return hashlib.sha256(json.dumps([settings, line["data"]], sort_keys=True).encode()).hexdigest()[:24]


def _read_complete_lines(path: Path) -> str:
    try:
        whole = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise FileError(f"{path} holds bytes that are no text; mend or remove the file") from None
    return whole[: whole.rfind("\n") + 1]  # a line that a kill cut short was not written


def _parse_line(line: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        raise FileError(f"{path} holds a line that is no JSON; mend or remove the file") from None
    if not (isinstance(found, dict) and isinstance(found.get("settings"), dict) and "data" in found):
        raise FileError(f"{path} holds a line without settings and data; mend or remove the file")
    return {**found, "settings": found["settings"] | {name: found["settings"].get(name) for name in ADDED_SETTINGS}}


def _append_line(path: Path, line: str) -> None:
    """Add a line after the last whole one, and have it on the disk."""
    append_durably(path, f"{line}\n".encode(), after=len(_read_complete_lines(path).encode()))
