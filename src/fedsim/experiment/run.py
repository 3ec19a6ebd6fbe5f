"""Train the rungs of an experiment on prepared arrays; needs torch and numpy alone.

``python -m fedsim.experiment.run experiments/hdb.toml arrays results.jsonl`` trains every rung on every ``.npz`` of the
folder and appends one line per training; what is there already is not trained again.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsim.errors import SettingError
from fedsim.experiment.arrays import Arrays, Parts
from fedsim.experiment.outline import Outline, Rung, read_outline
from fedsim.splitnn.features import Features
from fedsim.training import Config, Goal, PrimaryData, SecondaryData, train
from fedsim.training.choices import Deviations, config_for

PLACEBO_SEED = 1234


def config_of(rung: Rung, seed: int) -> Config:
    """The rung's preset with its own settings put in."""
    deviations = Deviations(rung.epochs, rung.batch, rung.rate)
    return config_for(rung.preset, rung.method, deviations, seed=seed, device="auto")


def parties(rung: Rung, arrays: Arrays) -> tuple[PrimaryData, list[SecondaryData]]:
    """The inputs of a rung; a placebo partner keeps its links and has its feature rows shuffled."""
    own, k = _features(arrays.primary), rung.k or arrays.partner.shape[1]
    if rung.own_identifiers and not arrays.place.shape[1]:
        raise SettingError(f"rung '{rung.name}' uses the primary's own identifiers, but they are no numbers")
    if rung.own_identifiers:
        spread = (*(own.spread or ()), *range(own.numbers.shape[1], own.numbers.shape[1] + arrays.place.shape[1]))
        own = replace(own, numbers=np.hstack([own.numbers, arrays.place]), spread=spread)
    goal = Goal.NUMBERS if arrays.about["task"] == "regression" else Goal.CLASSES
    theirs = _features(arrays.secondary)
    if rung.partner == "placebo":
        theirs = theirs.take(np.random.default_rng(PLACEBO_SEED).permutation(len(theirs)))
    links = arrays.partner[arrays.list_of, :k].astype(np.int64), arrays.similarity[arrays.list_of, :k]
    return PrimaryData(own, arrays.labels, goal), [SecondaryData(theirs, *links)]


def _features(parts: Parts) -> Features:
    return Features(
        numbers=parts["numbers"],
        codes=parts["codes"].astype(np.int64),
        cardinalities=tuple(parts["cardinalities"].tolist()),
        spread=tuple(parts["spread"].tolist()),
    )


def climb(outline: Outline, folder: Path, results: Path) -> None:
    """Train what is not yet in the results file with the same settings, one line each."""
    done = {_key(json.loads(line)) for line in results.read_text().splitlines()} if results.exists() else set()
    for path in sorted(folder.glob(f"{outline.name}-*.npz")):
        arrays = Arrays.load(path)
        for rung in outline.rungs:
            if _key({**arrays.about, "settings": asdict(rung)}) in done:
                continue
            line = measure(rung, arrays)
            print(line["split"], line["seed"], line["rung"], line["test"], f"{line['seconds']:.0f} s", flush=True)
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def measure(rung: Rung, arrays: Arrays) -> dict[str, Any]:
    """One training and what came of it."""
    config = config_of(rung, arrays.about["seed"])
    start = time.perf_counter()
    result = train(*parties(rung, arrays), arrays.split, config)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {
        **arrays.about,
        "rung": rung.name,
        "settings": asdict(rung),
        "test": result.metrics["test"],
        "validation": result.metrics["validation"],
        "best_epoch": result.best.number,
        "seconds": time.perf_counter() - start,
        "device": device,
        "torch": torch.__version__,
    }


def _key(line: dict[str, Any]) -> str:
    return json.dumps([line["settings"], line["split"], line["seed"]], sort_keys=True)


if __name__ == "__main__":
    climb(read_outline(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
