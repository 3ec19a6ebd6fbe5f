"""A trained estimator on the disk: one folder per party, JSON and safetensors, nothing that must be unpickled.

::

    model/primary/      model.json, features.json, weights.safetensors
    model/coordinator/  links.json
    model/secondary-1/  features.json, weights.safetensors

A secondary's folder holds its own preparation and network; no party's table is stored.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedsim.errors import FileError
from fedsim.estimator.pairs import COORDINATOR, PRIMARY

FORMAT = "fedsim estimator 1"
MODEL, FEATURES, LINKS, WEIGHTS = "model.json", "features.json", "links.json", "weights.safetensors"
FACTS = (
    "parameters",
    "seed",
    "config",
    "identifiers",
    "n_features_in",
    "feature_names_in",
    "classes",
    "target",
    "history",
)


@dataclass(frozen=True, eq=False)
class Stored:
    """What the folders hold: facts of the primary and the coordinator, features and weights of each party with data."""

    facts: Mapping[str, Any]
    links: Mapping[str, Any]
    features: Mapping[str, str]
    weights: Mapping[str, Mapping[str, Tensor]]


def write_folder(path: Path, stored: Stored) -> None:
    """Write all folders, or leave what was there; only a model's folder is ever replaced."""
    if path.exists() and not (path / PRIMARY / MODEL).is_file():
        raise FileError(f"{path} exists and holds no model; choose another folder")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        _write_parties(part, stored)
        _replace(path, part)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror or 'the disk refused'}; check folder and space"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def read_folder(path: Path) -> Stored:
    """What :func:`write_folder` wrote."""
    try:
        facts = json.loads((path / PRIMARY / MODEL).read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise FileError(f"{path} was written as '{facts['format']}', this version reads '{FORMAT}'; train again")
        lost = [name for name in FACTS if name not in facts]
        if lost:
            raise FileError(f"{path}: {PRIMARY}/{MODEL} has lost '{lost[0]}'; save the model again")
        links = json.loads((path / COORDINATOR / LINKS).read_text(encoding="utf-8"))
        parties = [PRIMARY, *links]
        features = {party: (path / party / FEATURES).read_text(encoding="utf-8") for party in parties}
        weights = {party: safetensors.torch.load((path / party / WEIGHTS).read_bytes()) for party in parties}
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise FileError(
            f"{path} is no readable model ({type(error).__name__}); give the folder that save() wrote, with all parties"
        ) from error
    return Stored(facts, links, features, weights)


def _write_parties(folder: Path, stored: Stored) -> None:
    for party, features in stored.features.items():
        (folder / party).mkdir(parents=True)
        (folder / party / FEATURES).write_text(features, encoding="utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in stored.weights[party].items()}
        (folder / party / WEIGHTS).write_bytes(safetensors.torch.save(tensors))
    (folder / COORDINATOR).mkdir()
    (folder / COORDINATOR / LINKS).write_text(json.dumps(stored.links, indent=1), encoding="utf-8")
    (folder / PRIMARY / MODEL).write_text(json.dumps({"format": FORMAT, **stored.facts}, indent=1), encoding="utf-8")


def _replace(path: Path, part: Path) -> None:
    """Put the new folder in the old one's place; the old one comes back if that fails."""
    old = part.with_suffix(".old")
    if path.exists():
        path.rename(old)
    try:
        part.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)
