"""Train rungs on another machine, in one or several processes; requires only torch and NumPy.

``python -m fedsim_lab.worker_pool PLAN ARRAYS RESULTS WORKERS SECONDS`` runs the trainings of a plan in order and
starts no more of them after SECONDS. Every worker has its own results folder. Boosted trees, which need scikit-learn,
come last; processors that no worker uses start with them at once (set ``OMP_NUM_THREADS=1``). Trainings under sealed
labels, which are also attacked, need scikit-learn, too.
"""

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any

from fedsim.contribution.rungs import MessageCallback, ResultStore, Rung, RungOutcome, SplitArrays, train_missing
from fedsim.errors import FedSimError
from fedsim_lab.arrays_file import load_arrays
from fedsim_lab.job_training import ONE_TO_ONE, add_placebos, train_job_part, train_study_rung

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class PlannedTraining:
    """One training: the file of its arrays, its rung, and the metadata that differs from that file's."""

    arrays: str
    rung: Rung
    about: dict[str, Any]


def add_to_plan(trainings: Sequence[PlannedTraining], path: Path) -> None:
    """Append trainings to the plan in a JSON file."""
    earlier = read_plan(path) if path.is_file() else []
    new = [training for training in trainings if training not in earlier]
    path.write_text(json.dumps([asdict(training) for training in (*earlier, *new)]))


def read_plan(path: Path) -> list[PlannedTraining]:
    """Read a plan written by :func:`add_to_plan`."""
    found = json.loads(path.read_text())
    return [PlannedTraining(**{**fields, "rung": _parse_rung(fields["rung"])}) for fields in found]


def _parse_rung(fields: Mapping[str, Any]) -> Rung:
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Rung(**plain)


def log_line(message: str) -> None:
    """Print a message with the time."""
    print(time.strftime("%H:%M:%S"), message, flush=True)


def run_plan(
    trainings: Sequence[PlannedTraining],
    folder: Path,
    results: Path,
    workers: int,
    seconds: float = math.inf,
    report: MessageCallback = log_line,
) -> None:
    """Run the planned trainings in parallel worker processes, which share a GPU; start none after ``seconds``."""
    context, n_trees = multiprocessing.get_context("spawn"), sum(not each.rung.trains_network for each in trainings)
    helpers = min(n_trees, max(0, (os.cpu_count() or 1) - workers))
    networks, trees = context.Queue(), context.Queue()
    for training in trainings:
        (networks if training.rung.trains_network else trees).put(training)
    deadline = time.time() + seconds
    processes = []
    for number in range(workers + helpers):
        queues = [networks, trees] if number < workers else [trees]
        for queue in queues:
            queue.put(None)
        arguments = (queues, folder, results / f"worker-{number}", deadline, report)
        processes.append(context.Process(target=_worker, args=arguments))
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = sum(process.exitcode != 0 for process in processes)
    if failed:
        message = f"{failed} of {len(processes)} workers failed, see their errors above; what is stored is complete"
        raise FedSimError(f"{message}: correct the cause and run the rest of the plan", code="workers-failed")


def collect_results(folders: Iterable[Path], into: ResultStore) -> int:
    """Copy the results of workers into a store; return how many were new."""
    new = 0
    for folder in folders:
        theirs = ResultStore(folder)
        for line in theirs.lines:
            if theirs.has(line) and not into.has(line):
                into.add(line, theirs.predictions(line), theirs.validation_predictions(line))
                new += 1
    return new


def _worker(queues: Sequence[Any], folder: Path, out: Path, deadline: float, report: MessageCallback) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    results, held = ResultStore(out), dict[str, SplitArrays]()
    for training in (training for queue in queues for training in iter(queue.get, None)):
        if time.time() > deadline:
            continue
        if training.arrays not in held:
            held = {training.arrays: load_arrays(folder / training.arrays)}
        arrays = held[training.arrays]
        case = add_placebos(replace(arrays, about={**arrays.about, **training.about}))
        train_missing([case], [training.rung], results, report, _train)


def _end_with_parent() -> None:
    """End this process when its parent ends, for whatever reason; stored results are always complete."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _train(rung: Rung, arrays: SplitArrays) -> RungOutcome:
    if arrays.about.get(ONE_TO_ONE):
        return train_study_rung(rung, arrays)
    if not arrays.about.get("sealed"):
        return train_job_part(rung, arrays)
    from fedsim_lab.sealed_training import train_sealed  # noqa: PLC0415 - needs more than torch and numpy

    return train_sealed(rung, arrays)


if __name__ == "__main__":
    plan, arrays, results, workers, seconds = sys.argv[1:]
    run_plan(read_plan(Path(plan)), Path(arrays), Path(results), int(workers), float(seconds))
