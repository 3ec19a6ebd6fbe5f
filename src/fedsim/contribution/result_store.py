"""A folder of training results: one JSON line per training and its predictions; it survives a kill."""

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
ADDED_SETTINGS = ("hidden", "decay")  # settings that the first stored results lack


class ResultStore:
    """The training results in a folder, identified by the settings of a rung and the digest of its data.

    Parameters
    ----------
    folder
        Where ``results.jsonl`` and the folder ``predictions`` are, or will be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = _read_complete_lines(folder / RESULTS_FILE).splitlines()
        stored = [_parse_line(line, folder / RESULTS_FILE) for line in lines]
        self._lines = {self.name_of(line): line for line in stored}

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The results of all trainings."""
        return list(self._lines.values())

    def has(self, key: Mapping[str, Any]) -> bool:
        """Return whether this training is stored; one whose predictions are lost or damaged does not count."""
        if self.name_of(key) not in self._lines:
            return False
        try:
            self.predictions(key)
        except (OSError, ValueError, EOFError):
            return False
        return True

    def name_of(self, key: Mapping[str, Any]) -> str:
        """Return the name of a training; equal trainings have equal names.

        The rung's name and key do not change what is trained. Settings that were added after the first results were
        stored count only if they are set, so that stored names stay valid.
        """
        settings = {
            name: value
            for name, value in key["settings"].items()
            if name not in ("key", "name") and not (name in ADDED_SETTINGS and value is None)
        }
        return hashlib.sha256(json.dumps([settings, key["data"]], sort_keys=True).encode()).hexdigest()[:24]

    def line(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of a training."""
        return self._lines[self.name_of(key)]

    def predictions(self, key: Mapping[str, Any]) -> NDArray[Any]:
        """Return its predictions of the test records."""
        return np.asarray(np.load(self._predictions_path(key), allow_pickle=False))

    def add(self, line: dict[str, Any], predictions: NDArray[Any]) -> None:
        """Store a training; the line is written last, so it is there only if the predictions are."""
        buffer = io.BytesIO()
        np.save(buffer, predictions.astype(np.float32), allow_pickle=False)
        path, results = self._predictions_path(line), self.folder / RESULTS_FILE
        ensure_folder(path.parent)
        with atomic_write(path) as part:
            part.write_bytes(buffer.getvalue())
        text = json.dumps(line, allow_nan=False)
        append_durably(results, f"{text}\n".encode(), after=len(_read_complete_lines(results).encode()))
        self._lines[self.name_of(line)] = line

    def _predictions_path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / PREDICTIONS_FOLDER / f"{self.name_of(key)}.npy"


def _read_complete_lines(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", code="cannot-read") from error
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text; fix or remove the file", code="results-not-text") from None
    return text[: text.rfind("\n") + 1]  # a line without its end was cut short by a kill


def _parse_line(line: str, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        raise FileError(f"{path} has a line of invalid JSON; fix or remove the file", code="results-not-json") from None
    if not (isinstance(parsed, dict) and isinstance(parsed.get("settings"), dict) and "data" in parsed):
        message = f"{path} has a line without settings and data; fix or remove the file"
        raise FileError(message, code="results-incomplete")
    settings = parsed["settings"]
    return {**parsed, "settings": settings | {name: settings.get(name) for name in ADDED_SETTINGS}}
