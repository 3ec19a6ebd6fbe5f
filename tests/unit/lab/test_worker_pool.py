"""Trainings by several processes, and on a machine with torch and NumPy alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from error_fixtures import raises
from fedsim.contribution.rungs import ResultStore, Rung, train_missing
from fedsim.errors import FedSimError
from fedsim_lab.arrays_file import load_arrays
from fedsim_lab.worker_pool import PlannedTraining, read_plan, run_plan
from lab_fixtures import Reproduced, reproduce


def test_a_worker_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    lost = PlannedTraining("lost.npz", Rung("solo", "Solo", "solo"), {})
    with raises(FedSimError, code="workers-failed"):
        run_plan([lost], tmp_path, tmp_path / "crew", workers=1, seconds=600)


WAITING = """
import multiprocessing, sys
from pathlib import Path
from fedsim_lab.worker_pool import _worker

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=_worker, args=([context.Queue()], Path(), Path(sys.argv[1]), 0.0, print))
    worker.start()
    print("started", flush=True)
    worker.join()
"""


def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    words = [sys.executable, tmp_path / "waiting.py", tmp_path / "crew"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        assert parent.communicate(timeout=300)[0] == ""  # the worker has the same output, which is closed when it ends


def test_a_plan_made_here_and_carried_out_elsewhere_leaves_nothing_to_train(folder: Path) -> None:
    plan = folder / "plan"
    assert reproduce(folder, "figure-k", "--fast", "--plan", str(plan)) == 0
    assert not (folder / "out").exists()
    orders = read_plan(plan / "plan.json")
    assert [order.rung.key for order in orders] == ["solo", "fedsim"]
    for order in orders:
        train_missing(
            [load_arrays(plan / order.arrays)],
            [order.rung],
            ResultStore(folder / "back" / "worker-0"),
            lambda _: None,
        )
    assert reproduce(folder, "figure-k", "--fast", "--gather", str(folder / "back"), "--quiet") == 0
    taken = (folder / "out" / "trainings" / "results.jsonl").read_text()
    assert taken == (folder / "back" / "worker-0" / "results.jsonl").read_text()


def test_two_workers_train_what_one_process_trains(first_run: Reproduced, folder: Path) -> None:
    assert reproduce(folder, "figure-k", "--seeds", "1", "--workers", "2", "--quiet") == 0
    alone, together = (ResultStore(place / "out" / "trainings") for place in (first_run.folder, folder))
    assert {*map(alone.name_of, alone.lines)} == {*map(together.name_of, together.lines)}
    for line in alone.lines:
        np.testing.assert_allclose(together.predictions(line), alone.predictions(line), rtol=1e-4)
    assert not (together.folder / "workers").exists()


BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "polars", "scipy", "sklearn", "narwhals", "pydantic", "pandas"}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import fedsim_lab.worker_pool
"""


def test_trainings_need_torch_and_numpy_alone() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
