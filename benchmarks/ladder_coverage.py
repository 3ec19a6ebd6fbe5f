"""Check how often the ladder's interval covers the known contribution of a generated city's partners.

``fedsim lab bench ladder_coverage`` trains every rung from which a contribution is chosen, in every city. Options
follow two dashes: ``fedsim lab bench ladder_coverage -- --cities 3 --rungs solo fedsim``. Stored results are not
trained again. ``--plan FOLDER`` writes the trainings as files for a machine with torch, numpy and scikit-learn
(``python -m fedsim_lab.worker_pool``), ``--gather FOLDER`` collects its results.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedsim.contribution.ladder import RUNGS, WITH_PARTNER, WITHOUT_PARTNER, Interval, LadderTraining, train_ladder
from fedsim.contribution.rungs import ResultStore, Rung, SplitArrays
from fedsim.data.synthetic import CitySettings, generate_city
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import city_dataset
from fedsim_lab.study_runner import save_plan, trained_rungs
from fedsim_lab.worker_pool import collect_results

KINDS = {"informed": CitySettings(), "uninformed": CitySettings(value=0.0, school_value=0.0)}
PARTNERS = ("rentals", "schools")
CITY_SEED = 1000


def options(words: Sequence[str]) -> argparse.Namespace:
    """How many cities of which size, and what is trained on them."""
    parser = argparse.ArgumentParser("fedsim lab bench ladder_coverage --")
    parser.add_argument("--cities", type=int, default=10, help="of either kind, informed and not")
    parser.add_argument("--flats", type=int, default=4_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, help="default: those of a job")
    parser.add_argument("--batch", type=int, help="default: that of a job")
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
    """What is trained."""
    return LadderTraining(epochs=asked.epochs, batch=asked.batch).rungs(
        [rung for rung in RUNGS if rung.key in asked.rungs]
    )


def cities(asked: argparse.Namespace) -> Iterator[tuple[str, int, DatasetCases]]:
    """Every city with its kind and number."""
    for kind, knobs in KINDS.items():
        for number in range(asked.cities):
            city = generate_city(np.random.default_rng(CITY_SEED + number), knobs, flats=asked.flats)
            yield kind, number, DatasetCases(city_dataset(city), secondaries=PARTNERS)


def splits(cases: DatasetCases, asked: argparse.Namespace) -> Iterator[SplitArrays]:
    """The arrays of every seed."""
    return cases.each([asked.split], range(asked.seeds))


def plan(asked: argparse.Namespace, results: ResultStore) -> None:
    """Write what another machine can train."""
    rungs = trained_rungs(rungs_of(asked))
    work = ((arrays, rungs) for _, _, cases in cities(asked) for arrays in splits(cases, asked))
    print(f"{save_plan(work, results, asked.plan)} trainings planned in {asked.plan}")


def judge(asked: argparse.Namespace, results: ResultStore) -> None:
    """Print the estimated intervals beside the true contributions."""
    print("| city | true contribution | estimate | 95 % interval | covers |\n|---|---|---|---|---|")
    covered = dict.fromkeys(KINDS, 0)
    for kind, number, cases in cities(asked):
        ladder = train_ladder(splits(cases, asked), rungs_of(asked), results, lambda _: None, lengthen=False)
        found, truth = ladder.contribution(asked.split), ladder.about["truth"]
        covered[kind] += found.low <= truth <= found.high
        print(row(f"{kind}-{number}", found, truth), flush=True)
    for kind, count in covered.items():
        print(f"{kind}: {count} of {asked.cities} covered")


def row(name: str, found: Interval, truth: float) -> str:
    """One city's line of the table."""
    covers = "yes" if found.low <= truth <= found.high else "no"
    return f"| {name} | {truth:.2f} | {found.estimate:.2f} | {found.low:.2f} to {found.high:.2f} | {covers} |"


def main(words: Sequence[str] | None) -> None:
    """Collect results, write a plan or print the coverage."""
    asked = options(words or ())
    results = ResultStore(asked.out)
    if asked.gather:
        print(f"{collect_results(sorted(asked.gather.glob('worker-*')), results)} trainings collected")
    (plan if asked.plan else judge)(asked, results)
