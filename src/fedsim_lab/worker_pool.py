"""Train rungs on another machine, in one process or in several; needs torch and numpy only.

``python -m fedsim_lab.worker_pool RUNGS.json ARRAYS RESULTS`` trains every rung of the list on every ``.npz`` of the
folder ARRAYS, except those that are already among the results.

``python -m fedsim_lab.worker_pool PLAN ARRAYS RESULTS WORKERS SECONDS`` works through the trainings of a plan in order
and starts no further one after so many seconds. Every worker has its own folder of results.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedsim.contribution.rungs import ResultStore, Rung, SplitArrays, train_missing
from fedsim_lab.arrays_file import load_arrays

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class PlannedTraining:
    """One training: the file of its arrays, its rung, and what differs in the words about it."""

    arrays: str
    rung: Rung
    about: dict[str, Any]


def write_plan(orders: Sequence[PlannedTraining], path: Path) -> None:
    """Keep a plan."""
    path.write_text(json.dumps([asdict(order) for order in orders]))


def read_plan(path: Path) -> list[PlannedTraining]:
    """What :func:`write_plan` wrote."""
    found = json.loads(path.read_text())
    return [PlannedTraining(**{**words, "rung": Rung(**words["rung"])}) for words in found]


def run_plan(orders: Sequence[PlannedTraining], folder: Path, results: Path, workers: int, seconds: float) -> None:
    """Have the orders carried out."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    for order in orders:
        queue.put(order)
    deadline = time.time() + seconds
    crew = [
        context.Process(target=_worker, args=(queue, folder, results / f"worker-{number}", deadline))
        for number in range(workers)
    ]
    for worker in crew:
        worker.start()
        queue.put(None)
    for worker in crew:
        worker.join()


def collect_results(folders: Iterable[Path], into: ResultStore) -> int:
    """Take over what workers trained; gives how many trainings were new."""
    new = 0
    for folder in folders:
        theirs = ResultStore(folder)
        for line in theirs.lines:
            if theirs.has(line) and not into.has(line):
                into.add(line, theirs.predictions(line))
                new += 1
    return new


def _worker(queue: Any, folder: Path, out: Path, deadline: float) -> None:
    results, held = ResultStore(out), dict[str, SplitArrays]()
    while (order := queue.get()) is not None:
        if time.time() > deadline:
            continue
        if order.arrays not in held:
            held = {order.arrays: load_arrays(folder / order.arrays)}
        arrays = held[order.arrays]
        train_missing([replace(arrays, about={**arrays.about, **order.about})], [order.rung], results, _log_line)


def _log_line(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, flush=True)


def train_rungs(rungs: Path, arrays: Path, results: Path) -> None:
    """Train the rungs of a JSON list on every ``.npz`` file of a folder."""
    cases = (load_arrays(path) for path in sorted(arrays.glob("*.npz")))
    train_missing(cases, [Rung(**fields) for fields in json.loads(rungs.read_text())], ResultStore(results))


if __name__ == "__main__":
    paths, rest = [Path(word) for word in sys.argv[1:4]], sys.argv[4:]
    if rest:
        run_plan(read_plan(paths[0]), paths[1], paths[2], int(rest[0]), float(rest[1]))
    else:
        train_rungs(*paths)
