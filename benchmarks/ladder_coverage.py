"""Check how often the ladder's interval covers the known contribution of a generated city's partners.

``fedsim lab bench ladder_coverage`` trains, for every city, every rung that a contribution can be based on. Options
follow two dashes: ``fedsim lab bench ladder_coverage -- --cities 3 --rungs solo fedsim``. Stored results are not
trained again. ``--plan FOLDER`` writes the trainings as files for a machine with torch, NumPy and scikit-learn
(``python -m fedsim_lab.worker_pool``); ``--gather FOLDER`` collects its results and evaluates the cities that are
complete.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.contribution.ladder import (
    ALONE,
    BOOTSTRAP_SEED,
    RMSE,
    RUNGS,
    TOGETHER,
    WITH_PARTNER,
    WITHOUT_PARTNER,
    SeedPredictions,
    TrainedCase,
    bootstrap_scores,
    with_settings,
)
from fedsim.contribution.rungs import RESULTS_FILE, ResultStore, Rung, SplitArrays, train_missing
from fedsim.data.synthetic import CitySettings, generate_city
from fedsim.hyperparameters import TrainingSettings
from fedsim.types import Floats
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import city_dataset
from fedsim_lab.study_runner import save_plan, trained_rungs
from fedsim_lab.worker_pool import collect_results

KINDS = {"informed": CitySettings(), "uninformed": CitySettings(value=0.0, school_value=0.0)}
PARTNERS = ("rentals", "schools")
CITY_SEED = 1000


def options(words: Sequence[str]) -> argparse.Namespace:
    """Parse the number and size of cities, and what is trained on them."""
    parser = argparse.ArgumentParser("fedsim lab bench ladder_coverage --")
    parser.add_argument("--cities", type=int, default=10, help="cities of each kind, informed and not")
    parser.add_argument("--flats", type=int, default=4_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="default: as in a job")
    parser.add_argument("--batch-size", type=int, help="default: as in a job")
    parser.add_argument("--split", choices=("random", "group"), default="group")
    keys = [*WITHOUT_PARTNER, *WITH_PARTNER]
    parser.add_argument("--rungs", nargs="+", choices=keys, default=keys, metavar="RUNG", help=", ".join(keys))
    parser.add_argument("--out", type=Path, default=Path("build/coverage/ladders"))
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--gather", type=Path)
    asked = parser.parse_args(words)
    if not (set(asked.rungs) & set(WITHOUT_PARTNER) and set(asked.rungs) & set(WITH_PARTNER)):
        parser.error("--rungs needs one without the partner and one with it, such as: solo fedsim")
    return asked


def rungs_of(asked: argparse.Namespace) -> list[Rung]:
    """Return the rungs to train."""
    settings = TrainingSettings(epochs=asked.epochs, batch_size=asked.batch_size)
    return with_settings(settings, [rung for rung in RUNGS if rung.key in asked.rungs])


def cities(asked: argparse.Namespace) -> Iterator[tuple[str, int, DatasetCases]]:
    """Yield every city with its kind and number."""
    for kind, knobs in KINDS.items():
        for number in range(asked.cities):
            city = generate_city(np.random.default_rng(CITY_SEED + number), knobs, flats=asked.flats)
            yield kind, number, DatasetCases(city_dataset(city), secondaries=PARTNERS)


def splits(cases: DatasetCases, asked: argparse.Namespace) -> Iterator[SplitArrays]:
    """Yield the arrays of every seed."""
    return cases.each([asked.split], range(asked.seeds))


def plan(asked: argparse.Namespace, results: ResultStore) -> None:
    """Write what another machine can train."""
    rungs = trained_rungs(rungs_of(asked))
    work = ((arrays, rungs) for _, _, cases in cities(asked) for arrays in splits(cases, asked))
    print(f"{save_plan(work, results, asked.plan)} trainings planned in {asked.plan}")


@dataclass(frozen=True)
class Contribution:
    """A contribution estimated by the ladder; the share of resamples below the truth decides about coverage."""

    estimate: float
    resamples: Floats
    truth: float

    def interval(self, percent: float) -> tuple[float, float]:
        """Return the interval with this confidence."""
        low, high = np.percentile(self.resamples, [(100 - percent) / 2, (100 + percent) / 2])
        return float(low), float(high)

    def covers(self, percent: float) -> bool:
        low, high = self.interval(percent)
        return low <= self.truth <= high


def estimate(cases: DatasetCases, asked: argparse.Namespace, results: ResultStore) -> Contribution | None:
    """Train what is missing and return the ladder's contribution; with gathered results, None if any is missing."""
    seeds, truth, rungs = [], 0.0, rungs_of(asked)
    for arrays in splits(cases, asked):
        stored = [part for rung in rungs for part in rung.components or (rung,)]
        if asked.gather and not all(results.has(part.result_key(arrays)) for part in stored):
            return None
        train = partial(train_missing, [arrays], results=results, report=lambda _: None)
        case = TrainedCase(arrays, rungs, results, train, RMSE, doublings=0)
        predictions = {side: results.predictions(case.key_of(rung)) for side, rung in case.choose_ends().items()}
        test, truth = arrays.split.test, arrays.about["truth"]
        seeds.append(SeedPredictions(arrays.labels[test], arrays.groups[test], predictions))
    scores = bootstrap_scores(seeds, RMSE, np.random.default_rng(BOOTSTRAP_SEED))
    gain = scores.gain(ALONE, TOGETHER, lower_is_better=True)
    return Contribution(gain.estimate, scores.resamples[ALONE] - scores.resamples[TOGETHER], truth)


def judge(asked: argparse.Namespace, results: ResultStore) -> None:
    """Print the estimated intervals next to the true contributions."""
    print("| city | true contribution | estimate | 95 % interval | covers |\n|---|---|---|---|---|")
    found: dict[str, list[Contribution]] = {kind: [] for kind in KINDS}
    for kind, number, cases in cities(asked):
        one = estimate(cases, asked, results)
        if one is not None:
            found[kind].append(one)
            low, high = one.interval(95)
            covers = "yes" if one.covers(95) else "no"
            cells = f"{one.truth:.2f} | {one.estimate:.2f} | {low:.2f} to {high:.2f} | {covers}"
            print(f"| {kind}-{number} | {cells} |", flush=True)
    for kind, cities_found in found.items():
        print(summary(kind, cities_found))


def summary(kind: str, found: Sequence[Contribution]) -> str:
    """Describe how many intervals cover the truth and, if there is a contribution, which share of it is found."""
    covered = ", ".join(f"{sum(one.covers(percent) for one in found)} at {percent} %" for percent in (95, 90))
    truth, mean = sum(one.truth for one in found), sum(one.estimate for one in found)
    share = f"; {mean / truth:.1%} of the contribution found" if truth else ""
    average = f"mean estimate {mean / max(1, len(found)):.2f}"
    return f"{kind}: of {len(found)} intervals {covered} cover the truth; {average}{share}"


def main(words: Sequence[str] | None) -> None:
    """Collect results, write a plan or print the coverage."""
    asked = options(words or ())
    results = ResultStore(asked.out)
    if asked.gather:
        folders = sorted(path.parent for path in asked.gather.rglob(RESULTS_FILE))
        print(f"{collect_results(folders, results)} trainings collected")
    (plan if asked.plan else judge)(asked, results)
