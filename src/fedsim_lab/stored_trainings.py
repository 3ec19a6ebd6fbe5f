"""Trainings as JSON lines: settings, a digest of the data, scores, the revision of the code and the time used."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from fedsim.contribution.rungs import Rung, SplitArrays, environment_info
from fedsim.errors import FileError
from fedsim.hyperparameters import RENAMED
from fedsim.storage.files import append_durably, ensure_folder
from fedsim_lab.job_training import train_study_rung

NAMES_OF_RUNG = {"key": "", "name": ""}  # these do not change what is trained


@dataclass(eq=False)
class StoredTrainings:
    """The trainings in a file of JSON lines; later lines replace earlier ones with the same settings and data."""

    path: Path
    lines: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.lines = [json.loads(line) for line in self._complete_lines().splitlines()]
        except ValueError:
            raise FileError(
                f"{self.path} has a line of invalid JSON; fix or remove the file", code="bad-line"
            ) from None
        self._found = {self._name(line): line for line in self.lines}

    def _complete_lines(self) -> bytes:
        content = self.path.read_bytes() if self.path.exists() else b""
        return content[: content.rfind(b"\n") + 1]  # a line without its end was cut short by a kill

    @staticmethod
    def _name(line: Mapping[str, Any]) -> str:
        known = {entry.name for entry in fields(Rung)}
        settings = {RENAMED.get(name, name): value for name, value in line["settings"].items()}
        given = {name: value for name, value in settings.items() if name in known and value is not None}
        rung = Rung(**{**given, **NAMES_OF_RUNG})
        return json.dumps([asdict(rung), line["data"]], sort_keys=True)

    def find(self, rung: Rung, arrays: SplitArrays) -> dict[str, Any] | None:
        """Return the line of a training, or None; a line may come from an earlier revision of the training code."""
        return self._found.get(self._name(rung.result_key(arrays)))

    def is_current(self, rung: Rung, arrays: SplitArrays) -> bool:
        """Return whether a training is stored, trained by the present revision of the training code."""
        line = self.find(rung, arrays)
        return line is not None and line.get("revision") == rung.result_key(arrays)["revision"]

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, also to what other processes have appended meanwhile, and flush it to disk."""
        ensure_folder(self.path.parent)
        text = f"{json.dumps(line, allow_nan=False)}\n"
        append_durably(self.path, text.encode(), after=len(self._complete_lines()))
        self.lines.append(line)
        self._found[self._name(line)] = line


def code_commit() -> str:
    """Return the Git commit that this code is at, with ``+`` if files were changed, or an empty string outside Git."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - fixed words


def train_line(rung: Rung, arrays: SplitArrays) -> dict[str, Any]:
    """Train one rung in this process and return what is stored of it."""
    began, used = time.perf_counter(), time.process_time()
    outcome = train_study_rung(rung, arrays)
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
    scores = {"test": outcome.test, "validation": outcome.validation}
    code = {"commit": code_commit(), "threads": torch.get_num_threads()}
    return {
        **arrays.about,
        **rung.result_key(arrays),
        **scores,
        **outcome.figures,
        **environment_info(),
        **spent,
        **code,
    }
