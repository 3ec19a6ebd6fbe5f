"""Does the ladder's interval cover the known worth of a generated city's partners?

``fedsim bench ladder_coverage prepare|train|judge`` works in ``build/coverage``. Trainings need torch and numpy alone
(``python -m fedsim.experiment.crew``), so they can run on another machine between the other two steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsim.data.datasets import Knobs, known_city
from fedsim.data.splits import random_split
from fedsim.experiment.arrays import Arrays
from fedsim.experiment.bootstrap import Judged
from fedsim.experiment.cases import Cases
from fedsim.experiment.crew import PLAN, Order, gathered, work, write_plan
from fedsim.experiment.ladder import LINKED, NOBODY, OWN, PLACEBO, RUNGS, SOLO, TREES, Ladder, best_of_both
from fedsim.experiment.measures import RootMeanSquare
from fedsim.experiment.results import Results
from fedsim.experiment.run import climb, key_of
from fedsim.types import Split

FOLDER = Path("build/coverage")
CITIES, SEEDS, FLATS, EPOCHS, WORKERS = 10, 5, 16_000, 12, 2
KINDS = {"informed": Knobs(), "uninformed": Knobs(value=0.0, school_value=0.0)}
PARTNERS = ("rentals", "schools")
NETWORKS = [replace(rung, epochs=EPOCHS) for rung in RUNGS if rung.key in (SOLO, OWN, PLACEBO, NOBODY, LINKED)]
NEEDED = [*NETWORKS, *(rung for rung in RUNGS if rung.key == TREES)]


def prepare() -> None:
    """Draw the cities, link them, and write the plan of all trainings."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in range(SEEDS):
        split = random_split(FLATS, np.random.default_rng(seed))
        parts = {name: getattr(split, name).astype(np.int32) for name in ("train", "validation", "test")}
        np.savez_compressed(FOLDER / f"split-{seed}.npz", **parts)
    orders, truths = [], {}
    for kind, knobs in KINDS.items():
        for number in range(CITIES):
            city = known_city(np.random.default_rng(1000 + number), knobs, flats=FLATS)
            name = f"{kind}-{number}"
            Cases(city.dataset(), secondaries=PARTNERS).one("random", 0).save(FOLDER / f"{name}.npz")
            truths[name] = city.truth.worth(*PARTNERS)
            orders += [
                Order(f"{name}.npz", rung, {"name": name, "seed": seed}, f"split-{seed}.npz")
                for seed in range(SEEDS)
                for rung in NETWORKS
            ]
    (FOLDER / "truths.json").write_text(json.dumps(truths))
    write_plan(orders, FOLDER / PLAN)
    print(f"{len(orders)} trainings on {len(truths)} cities")


def train() -> None:
    """Carry the plan out on this machine."""
    from fedsim.experiment.crew import read_plan  # noqa: PLC0415

    work(read_plan(FOLDER / PLAN), FOLDER, FOLDER / "workers", WORKERS, float("inf"))


def judge() -> None:
    """Intervals beside the truth."""
    results, truths = Results(FOLDER / "results"), json.loads((FOLDER / "truths.json").read_text())
    gathered(sorted((FOLDER / "workers").glob("worker-*")), results)
    print("| city | true worth | ladder's worth | 95 % interval | covers |\n|---|---|---|---|---|")
    for kind in KINDS:
        covered = 0
        for number in range(CITIES):
            name = f"{kind}-{number}"
            worth = ladder_of(name, results).partner("random")
            hit = worth.low <= truths[name] <= worth.high
            covered += hit
            print(
                f"| {name} | {truths[name]:.2f} | {worth.estimate:.2f} | {worth.low:.2f} to {worth.high:.2f} | "
                f"{'yes' if hit else 'no'} |"
            )
        print(f"{kind}: {covered} of {CITIES} covered")


def ladder_of(name: str, results: Results) -> Ladder:
    """The trainings of one city as a ladder."""
    base, judged = Arrays.load(FOLDER / f"{name}.npz"), []
    for seed in range(SEEDS):
        with np.load(FOLDER / f"split-{seed}.npz", allow_pickle=False) as parts:
            split = Split(*(parts[part].astype(np.int64) for part in ("train", "validation", "test")))
        arrays = replace(base, split=split, about={**base.about, "name": name, "seed": seed})
        climb([arrays], NEEDED, results)  # the trees, and whatever else is missing
        keys = {rung.key: key_of(rung, arrays) for rung in NEEDED}
        found = {name: results.predictions(key) for name, key in keys.items()}
        validation = {name: results.line(key)["validation"] for name, key in keys.items()}
        found |= best_of_both(found, validation)
        judged.append(Judged(arrays.labels[split.test], arrays.groups[split.test], found))
    return Ladder(base.about, RootMeanSquare(), NEEDED, {"random": judged}, {})


def main(steps: Sequence[str] | None) -> None:
    """All steps, or those named."""
    known = {"prepare": prepare, "train": train, "judge": judge}
    for step in steps or known:
        known[step]()
