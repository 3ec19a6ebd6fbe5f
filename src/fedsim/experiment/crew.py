"""Many trainings at once, each worker a process of its own; needs torch and numpy alone.

``python -m fedsim.experiment.crew PLAN ARRAYS RESULTS WORKERS SECONDS`` works through the trainings of a plan, the
first ones first, and begins none when the seconds are over. Every worker has its own folder of results.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedsim.experiment.arrays import Arrays
from fedsim.experiment.results import Results
from fedsim.experiment.run import climb
from fedsim.experiment.rung import Rung

PLAN = "plan.json"


@dataclass(frozen=True)
class Order:
    """One training: the file of its arrays, its rung, and what differs in the words about it."""

    arrays: str
    rung: Rung
    about: dict[str, Any]


def write_plan(orders: Sequence[Order], path: Path) -> None:
    """Keep a plan."""
    path.write_text(json.dumps([asdict(order) for order in orders]))


def read_plan(path: Path) -> list[Order]:
    """What :func:`write_plan` wrote."""
    found = json.loads(path.read_text())
    return [Order(**{**words, "rung": Rung(**words["rung"])}) for words in found]


def work(orders: Sequence[Order], folder: Path, results: Path, workers: int, seconds: float) -> None:
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


def gathered(folders: Iterable[Path], into: Results) -> int:
    """Take over what workers trained; gives how many trainings were new."""
    new = 0
    for folder in folders:
        theirs = Results(folder)
        for line in theirs.lines:
            if theirs.has(line) and not into.has(line):
                into.add(line, theirs.predictions(line))
                new += 1
    return new


def _worker(queue: Any, folder: Path, out: Path, deadline: float) -> None:
    results, held = Results(out), dict[str, Arrays]()
    while (order := queue.get()) is not None:
        if time.time() > deadline:
            continue
        if order.arrays not in held:
            held = {order.arrays: Arrays.load(folder / order.arrays)}
        arrays = held[order.arrays]
        climb([replace(arrays, about={**arrays.about, **order.about})], [order.rung], results, _tell)


def _tell(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    work(read_plan(Path(words[0])), Path(words[1]), Path(words[2]), int(words[3]), float(words[4]))
