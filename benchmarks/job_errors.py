"""The test error of the job that ``fedsim init --yes`` writes, on public datasets, by split and seed.

``fedsim lab bench job_errors`` lets ``init`` propose a job for hdb, house, vgsales and 60,000 bike trips (taxi), links
their records as the job specifies, and trains its model from arrays: the network, with the rounding of the job's wire
format, and two boosted trees; the validation records choose one of the trees or their mean. It prints RMSE, with R2 in
brackets. ``fedsim lab bench job_errors -- house --splits random --placebos 5`` also trains the job with five placebo
partners in addition to the real one.

Stored results are not trained again. ``--plan FOLDER`` writes the trainings as files for a machine with torch, numpy
and scikit-learn (``python -m fedsim_lab.worker_pool``), ``--gather FOLDER`` collects its results and prints what is
complete. Tables are read from ``FEDSIM_DATA``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from default_job import FILES, init
from fedsim.config import read_job, read_party_file
from fedsim.contribution.job_ladder import JobCases
from fedsim.contribution.ladder import with_settings
from fedsim.contribution.rungs import RESULTS_FILE, ResultStore, Rung, SplitArrays, train_missing
from fedsim.data.features import name_trigrams, text_columns
from fedsim.splitnn import Features
from fedsim.storage.files import ensure_folder
from fedsim_lab.arrays_file import save_arrays
from fedsim_lab.datasets.taxi import MOST_SECONDS
from fedsim_lab.job_training import (
    NETWORK,
    OWN_TREES,
    SEEING_TREES,
    add_placebos,
    combine_job,
    compact_lists,
    placebo_names,
    train_job_part,
)
from fedsim_lab.study_runner import load_sample
from fedsim_lab.worker_pool import PLAN_FILE, PlannedTraining, add_to_plan, collect_results
from linkage_data import DATA

DATASETS, SPLITS = ("hdb", "house", "vgsales", "taxi"), ("random", "group")
TAXI_RECORDS = 60_000  # of its bike trips, unless another number is requested
COLUMNS = (*(rung.name for rung in (OWN_TREES, SEEING_TREES, NETWORK)), "Job")


def options(words: Sequence[str]) -> argparse.Namespace:
    """Parse which jobs are trained, and where."""
    parser = argparse.ArgumentParser("fedsim lab bench job_errors --")
    parser.add_argument(
        "datasets", nargs="*", default=DATASETS, metavar="DATASET", help=f"default: {' '.join(DATASETS)}"
    )
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--placebos", type=int, default=0, help="placebo partners added in a second training")
    parser.add_argument("--epochs", type=int, help="maximum epochs; default: as in init")
    parser.add_argument("--records", type=int, help="maximum primary records; default: all (taxi: 60,000)")
    parser.add_argument("--out", type=Path, default=Path("build/job_errors"))
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--gather", type=Path)
    return parser.parse_args(words)


@dataclass(frozen=True, eq=False)
class JobCase:
    """One split and seed of a job, its trainings, and the factor by which errors are reported."""

    stored: SplitArrays  # without placebos, as it is written to a file
    rungs: tuple[Rung, ...]
    factor: float = 1.0

    @property
    def arrays(self) -> SplitArrays:
        return add_placebos(self.stored)

    @property
    def placebos(self) -> int:
        return len(placebo_names(self.stored.about))


def tables(name: str, records: int | None) -> tuple[pl.DataFrame, pl.DataFrame, str]:
    """Return both parties' tables and the label; unlike in the paper, bike trips include their start times."""
    data = load_sample(name, DATA, records or 0)
    theirs = data.secondaries[0].table.frame
    if name != "taxi":
        return data.primary.frame, theirs, data.label
    trips = pl.read_csv(DATA / "taxi" / "bike_trips.csv.gz", infer_schema=False)
    short = trips.filter(pl.col("duration").cast(pl.Float64) < MOST_SECONDS)
    return short.sample(records or TAXI_RECORDS, seed=0), theirs, "duration"


def cases(name: str, asked: argparse.Namespace) -> Iterator[JobCase]:
    """Yield every split and seed of a dataset's job, without and with placebo partners."""
    folder = asked.out / name
    if not (folder / "job.toml").is_file():
        ensure_folder(folder)
        init(folder, *tables(name, asked.records))
    job, parties = read_job(folder / "job.toml"), [read_party_file(folder / file) for file in FILES]
    drawn = JobCases.read(job, parties, folder / "cases", as_in_job=True)
    names = drawn.primary.own_identifiers
    # The job's network has its identifiers among its features, except for names; the trees see trigrams of those.
    own = Features(name_trigrams(names, text_columns(names)))
    protection = json.dumps(job.protection.model_dump(exclude_none=True) | {"wire": job.training.wire})
    training = replace(job.training.settings, **({"epochs": asked.epochs} if asked.epochs else {}))
    for arrays in drawn.cases(asked.seeds, asked.splits):
        about = {**arrays.about, "name": name, "protection": protection, "wire": job.training.wire}
        secondaries = tuple(replace(compact_lists(linked), embedding=None) for linked in arrays.secondaries)
        one = replace(arrays, own=own, secondaries=secondaries, about=about)
        factor = 1 / np.log(10) if job.task.label_scale == "log" else 1.0
        limits = {"epochs": asked.epochs} if asked.epochs else {}
        rungs = [
            *with_settings(training, [NETWORK]),
            *(replace(trees, **limits) for trees in (OWN_TREES, SEEING_TREES)),
        ]
        yield JobCase(one, tuple(rungs), factor)
        if asked.placebos:
            joined = {**about, "added_placebos": asked.placebos}
            some = {"partner": "placebo", "placebos": placebo_names(joined)}
            rungs = [rung if rung.needs_no_partner else replace(rung, **some) for rung in rungs]
            yield JobCase(replace(one, about=joined), tuple(rungs), factor)


def plan(asked: argparse.Namespace, results: ResultStore) -> None:
    """Write what another machine can train, the longest trainings first."""
    ensure_folder(asked.plan)
    orders: dict[str, PlannedTraining] = {}
    for name in asked.datasets:
        for case in cases(name, asked):
            file = f"{name}-{case.stored.about['split']}-{case.stored.about['seed']}.npz"
            about = {key: case.stored.about[key] for key in ("added_placebos",) if case.placebos}
            for rung in case.rungs:
                key = rung.result_key(case.arrays)
                if not results.has(key):
                    orders.setdefault(results.name_of(key), PlannedTraining(file, rung, about))
            if not case.placebos:
                save_arrays(case.stored, asked.plan / file)
    add_to_plan(list(orders.values()), asked.plan / PLAN_FILE)
    print(f"{len(orders)} trainings planned in {asked.plan}")


def errors(case: JobCase, results: ResultStore) -> list[tuple[float, float]] | None:
    """Return the RMSE and R2 of both trees, the network and the job; None if a training is missing."""
    arrays = case.arrays
    keys = {rung.key: rung.result_key(arrays) for rung in case.rungs}
    if not all(map(results.has, keys.values())):
        return None
    lines = {name: results.line(key) for name, key in keys.items()}
    found = {name: (results.predictions(key), results.validation_predictions(key)) for name, key in keys.items()}
    job = combine_job(arrays, found[NETWORK.key], [found[rung.key] for rung in (OWN_TREES, SEEING_TREES)])
    order = (OWN_TREES, SEEING_TREES, NETWORK)
    tests = [*(lines[rung.key]["test"] for rung in order), job.test]
    return [(case.factor * test["rmse"], test["r2"]) for test in tests]


def judge(asked: argparse.Namespace, results: ResultStore) -> None:
    """Print the errors of every job by split: mean, deviation and every seed of the job."""
    print(f"| dataset, split | {' | '.join(COLUMNS)} | by seed |\n{'|---' * (len(COLUMNS) + 2)}|")
    missing = 0
    for name in asked.datasets:
        rows: dict[tuple[str, int], list[list[tuple[float, float]]]] = {}
        for case in cases(name, asked):
            if not asked.gather:
                train_missing([case.arrays], case.rungs, results, train_rung=train_job_part)
            found = errors(case, results)
            missing += found is None
            if found is not None:
                rows.setdefault((case.stored.about["split"], case.placebos), []).append(found)
        for (split, placebos), values in rows.items():
            title = f"{name}, {split}" + (f", {placebos} placebo partners added" if placebos else "")
            means, deviations = np.mean(values, axis=0), np.std(values, axis=0, ddof=min(1, len(values) - 1))
            both = zip(means, deviations, strict=True)
            cells = [f"{rmse:.4g} ± {deviation:.2g} ({r2:.3f})" for (rmse, r2), (deviation, _) in both]
            seeds = ", ".join(f"{rmse:.4g} ({r2:.3f})" for rmse, r2 in (value[-1] for value in values))
            print(f"| {' | '.join([title, *cells, seeds])} |", flush=True)
        for split, placebos in rows:
            if placebos:
                before, after = (np.mean(rows[split, count], axis=0)[-1, 0] for count in (0, placebos))
                print(f"\n{name}, {split}: {placebos} placebo partners change the error by {after / before - 1:+.2%}\n")
    if missing:
        print(f"\n{missing} cases lack a training; run the rest of the plan, or the same command without --gather")


def main(words: Sequence[str] | None) -> None:
    """Collect results, write a plan or print the errors."""
    asked = options(words or ())
    results = ResultStore(asked.out / "trainings")
    if asked.gather:
        folders = sorted(path.parent for path in asked.gather.rglob(RESULTS_FILE))
        print(f"{collect_results(folders, results)} trainings collected")
    (plan if asked.plan else judge)(asked, results)
