"""Sealed labels on five data sets: how much of the partner's gain remains, and what leaks.

``fedsim lab bench privacy -- sealed`` trains what is missing and prints the tables. Because there are many trainings,
they can run elsewhere: ``--plan FOLDER`` writes them, ``python -m fedsim_lab.worker_pool FOLDER/plan.json
FOLDER RESULTS 12 500`` runs them where torch, NumPy and scikit-learn are installed, and ``--gather RESULTS`` collects
and prints the results.

Every split and seed is one file. Noise and secret weights are drawn anew for every seed, as in a new job.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.contribution.rungs import RESULTS_FILE, ResultStore, Rung, SplitArrays, train_missing
from fedsim.errors import SettingError
from fedsim.storage.files import ensure_folder
from fedsim.types import Floats
from fedsim_lab.arrays_file import save_arrays
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides
from fedsim_lab.sealed_training import INVERSION, PROTECTION, SEALED, SealedTerms, train_sealed
from fedsim_lab.study_runner import load_sample
from fedsim_lab.worker_pool import PLAN_FILE, PlannedTraining, add_to_plan, collect_results
from privacy_links import DATA

SPLIT = "group"
EMBEDDINGS, NOISES = ("random", "features", "autoencoder"), (1.0, 2.0)
SOLO, PLACEBO, ORDINARY = "solo", "placebo", "ordinary"
RESULTS = Path("build") / "privacy-sealed"


@dataclass(frozen=True)
class Part:
    """How a data set is linked, and whether the primary learns from its own identifiers as well."""

    k: int | None
    inputs: str


# As on the leaderboard; names as features make these networks worse.
PARTS = {
    "hdb": Part(20, "identifiers"),
    "house": Part(30, "identifiers"),
    "vgsales": Part(None, "features"),
    "city": Part(None, "identifiers"),
    "firms": Part(None, "features"),
}


@dataclass(frozen=True)
class Asked:
    """The command-line options: ``seeds`` by data set, and smaller trainings for tests."""

    seeds: Mapping[str, int]
    records: int = 0
    epochs: int | None = None


def variants() -> dict[str, SealedTerms]:
    """Return what is trained under sealed labels, by key."""
    cases = ((embedding, noise) for embedding in EMBEDDINGS for noise in (0.0, *NOISES))
    return {variant_key(embedding, noise): SealedTerms(embedding, noise) for embedding, noise in cases}


def variant_key(embedding: str, noise: float = 0.0) -> str:
    """Return the key of an embedding with this noise on features."""
    return f"{embedding}, noise {noise:g}" if noise else embedding


def planned(part: Part, arrays: SplitArrays, epochs: int | None) -> Iterator[tuple[Rung, dict[str, Any]]]:
    """Yield every rung of one split with the metadata that it adds."""
    partner = (arrays.secondaries[0].name,)
    rung = Rung(ORDINARY, ORDINARY, "fedsim", inputs=part.inputs, epochs=epochs, taking_part=partner)
    yield replace(rung, key=SOLO, name=SOLO, method="solo"), {}
    yield replace(rung, key=PLACEBO, name=PLACEBO, partner="placebo"), {}
    yield rung, {}
    for key, terms in variants().items():
        yield replace(rung, key=key, name=key), terms.as_metadata()


def work(asked: Asked) -> Iterator[tuple[SplitArrays, Rung]]:
    """Yield all trainings, seed by seed and the longest first, so that an interrupted plan has complete seeds."""
    for seed in range(max(asked.seeds.values())):
        for name, seeds in asked.seeds.items():
            if seed < seeds:
                part = PARTS[name]
                arrays = DatasetCases(load_sample(name, DATA, asked.records), LinkageOverrides(part.k)).one(SPLIT, seed)
                for rung, about in planned(part, arrays, asked.epochs):
                    yield replace(arrays, about={**arrays.about, **about}), rung


def save_plan(asked: Asked, known: ResultStore, folder: Path) -> None:
    """Write the arrays and the plan for trainings that have no results yet."""
    ensure_folder(folder)
    trainings, saved = [], set[str]()
    for arrays, rung in work(asked):
        if known.has(rung.result_key(arrays)):
            continue
        name = f"{arrays.about['name']}-{arrays.about['seed']}.npz"
        about = {key: value for key, value in arrays.about.items() if key in (PROTECTION, SEALED)}
        if name not in saved:
            plain = {key: value for key, value in arrays.about.items() if key not in (PROTECTION, SEALED)}
            save_arrays(replace(arrays, about=plain), folder / name)
            saved.add(name)
        trainings.append(PlannedTraining(name, rung, about))
    add_to_plan(trainings, folder / PLAN_FILE)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"wrote {folder}: {len(trainings)} trainings, {size / 1e6:.1f} MB")


def train_here(asked: Asked, results: ResultStore) -> None:
    """Run the trainings that have no results yet in this process."""
    for arrays, rung in work(asked):
        trainer = {"train_rung": train_sealed} if SEALED in arrays.about else {}
        train_missing([arrays], [rung], results, **trainer)


class Figures:
    """The stored results by data set, variant and seed."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._lines = {(line["name"], line["settings"]["key"], line["seed"]): line for line in lines}

    def seeds(self, name: str, *keys: str) -> list[int]:
        """Return the seeds for which all of these results are stored."""
        known = sorted({seed for each, _, seed in self._lines if each == name})
        return [seed for seed in known if all((name, key, seed) in self._lines for key in keys)]

    def rmse(self, name: str, key: str) -> Floats:
        """Return the test error of every seed that has one."""
        return np.array([self._lines[name, key, seed]["test"]["rmse"] for seed in self.seeds(name, key)])

    def kept(self, name: str, key: str) -> str:
        """Return the share of ordinary training's gain that is kept, over the seeds that have both."""
        seeds = self.seeds(name, key, PLACEBO, ORDINARY)
        if not seeds:
            return "-"
        means = {each: np.mean([self._error(name, each, seed) for seed in seeds]) for each in (key, PLACEBO, ORDINARY)}
        whole = means[PLACEBO] - means[ORDINARY]
        return f"{100 * (means[PLACEBO] - means[key]) / whole:.0f} %" if whole > 0 else "-"

    def inversion(self, name: str, key: str) -> str:
        """Return the mean R2 of the features recovered."""
        values = [self._lines[name, key, seed].get(INVERSION) for seed in self.seeds(name, key)]
        return f"{np.mean(values):.2f}" if values else "-"

    def _error(self, name: str, key: str, seed: int) -> float:
        return float(self._lines[name, key, seed]["test"]["rmse"])


def sealed_tables(figures: Figures) -> Iterator[str]:
    """Yield the table of all embeddings and the table of noise drawn once, with what the audit's inversion recovers."""
    yield f"| | seeds | solo | placebo | ordinary | {' | '.join(EMBEDDINGS)} | kept: {' / '.join(EMBEDDINGS)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in PARTS:
        errors = " | ".join(_mean(figures.rmse(name, key)) for key in (SOLO, PLACEBO, ORDINARY, *EMBEDDINGS))
        kept = " / ".join(figures.kept(name, embedding) for embedding in EMBEDDINGS)
        yield f"| {name} | {len(figures.seeds(name, ORDINARY))} | {errors} | {kept} |"
    yield ""
    yield "Noise on features, drawn once: test RMSE, share kept, R2 of the inverted features"
    yield ""
    yield f"| | embedding | {' | '.join(f'noise {noise:g}' for noise in (0.0, *NOISES))} |"
    yield "|---|---|---|---|---|"
    for name in PARTS:
        for embedding in EMBEDDINGS:
            keys = [variant_key(embedding, noise) for noise in (0.0, *NOISES)]
            cells = " | ".join(_cell(figures, name, key) for key in keys)
            yield f"| {name} | {embedding} | {cells} |"


def _cell(figures: Figures, name: str, key: str) -> str:
    return f"{_mean(figures.rmse(name, key))}, {figures.kept(name, key)}, {figures.inversion(name, key)}"


def _mean(values: Floats) -> str:
    return f"{values.mean():.4g}" if len(values) else "-"


TABLES = {"sealed": sealed_tables}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the case ``sealed``."""
    seeds = "number of seeds, for all data sets or for one: 3 house=10; without a plain number, only the named ones run"
    parser.add_argument("--seeds", nargs="+", default=["3", "house=10"], metavar="N", help=seeds)
    parser.add_argument("--records", type=int, default=0, help="maximum primary records; default: all")
    parser.add_argument("--epochs", type=int, help="epochs of each training; default: as in the preset modern")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--plan", type=Path, metavar="FOLDER", help="write the trainings for another machine")
    parser.add_argument("--gather", type=Path, metavar="FOLDER", help="collect the results of another machine")


def run(cases: Sequence[str], options: argparse.Namespace) -> None:
    """Write the plan, or gather or train, and print the tables of these cases."""
    asked = Asked(parse_seeds(options.seeds), options.records, options.epochs)
    results = ResultStore(options.out)
    if options.plan:
        save_plan(asked, results, options.plan)
        return
    if options.gather:
        folders = sorted(path.parent for path in options.gather.rglob(RESULTS_FILE))
        print(f"collected {collect_results(folders, results)} trainings from {options.gather}")
    else:
        train_here(asked, results)
    figures = Figures(results.lines)
    for case in cases:
        print(f"\n### {case}\n")
        for line in TABLES[case](figures):
            print(line, flush=True)


def parse_seeds(words: Sequence[str]) -> dict[str, int]:
    """Return the number of seeds of every data set, the longest trainings first.

    >>> parse_seeds(["3", "house=5"])["house"]
    5
    """
    found: dict[str, int] = {}
    try:
        for word in words:
            name, _, number = word.rpartition("=")
            found |= {name: int(number)} if name else dict.fromkeys(PARTS, int(number))
    except ValueError:
        message = f"--seeds {' '.join(words)}: give numbers or NAME=NUMBER, such as 3 house=10"
        raise SettingError(message, code="invalid-seeds") from None
    if unknown := found.keys() - PARTS.keys():
        message = f"--seeds names '{sorted(unknown)[0]}'; choose from {', '.join(PARTS)}"
        raise SettingError(message, code="unknown-dataset")
    return {name: found[name] for name in PARTS if found.get(name)}
