"""Trainings of a study as files for a faster machine, and what it brought back.

There ``python -m fedsim.experiment.crew PLAN ARRAYS RESULTS WORKERS SECONDS`` carries the plan out with torch and numpy
alone; :func:`fedsim.experiment.crew.gathered` takes the results over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedsim.experiment.arrays import Arrays
from fedsim.experiment.choices import TREES
from fedsim.experiment.crew import PLAN, Order, write_plan
from fedsim.experiment.ladders import LadderPart
from fedsim.experiment.results import Results, made_folder
from fedsim.experiment.run import key_of
from fedsim.experiment.rung import Rung
from fedsim.experiment.study import Study
from fedsim.experiment.study_run import Bench, missing, points

Work = tuple[Arrays, Sequence[Rung]]


def study_work(study: Study, bench: Bench) -> Iterator[Work]:
    """What a study trains, where its data is there."""
    for part in study.parts:
        if not missing(part.dataset, bench.data):
            for _, rungs, cases in points(part, bench):
                yield from ((arrays, rungs) for arrays in cases)


def ladder_work(parts: Iterable[LadderPart], bench: Bench) -> Iterator[Work]:
    """What ladders train, but for trees, which need scikit-learn."""
    for part in parts:
        if not missing(part.dataset, bench.data):
            networks = [rung for rung in part.rungs() if rung.method != TREES]
            yield from ((arrays, networks) for arrays in part.cases(bench))


def save_plan(work: Iterable[Work], known: Results, folder: Path) -> int:
    """Write arrays and plan of what is not among the results yet; gives the number of trainings."""
    made_folder(folder)
    orders: dict[str, Order] = {}
    for arrays, rungs in work:
        name = f"{arrays.digest[:16]}-{arrays.about['seed']}.npz"
        wanted = {known.name_of(key_of(rung, arrays)): rung for rung in rungs if not known.has(key_of(rung, arrays))}
        new = {key: Order(name, rung, {}) for key, rung in wanted.items() if key not in orders}
        if new:
            arrays.save(folder / name)
        orders |= new
    write_plan(list(orders.values()), folder / PLAN)
    return len(orders)
