"""``fedsim lab bench privacy -- sealed``: planned here, trained elsewhere, gathered into tables."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from error_fixtures import raises
from fedsim.contribution.rungs import ResultStore, Rung
from fedsim.errors import SettingError
from fedsim_lab.arrays_file import load_arrays
from fedsim_lab.sealed_training import INVERSION, SealedTerms, train_sealed
from fedsim_lab.worker_pool import collect_results, read_plan, run_plan

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("privacy_sealed")
    sys.path.remove(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.startswith("privacy_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def asked(bench: ModuleType):
    return bench.Asked({"city": 1}, records=150, epochs=1)


@pytest.fixture(scope="module")
def plan(bench: ModuleType, asked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    bench.save_plan(asked, ResultStore(folder / "known"), folder)
    return folder


def test_a_plan_has_one_file_per_seed_for_every_embedding_and_noise(bench, plan):
    trainings = read_plan(plan / "plan.json")
    assert {training.arrays for training in trainings} == {"city-0.npz"}
    assert len(trainings) == 3 + len(bench.EMBEDDINGS) * (1 + len(bench.NOISES))
    assert sum("protection" in training.about for training in trainings) == len(trainings) - 3


def test_planned_trainings_run_by_workers_are_known_afterwards_and_shown(bench, asked, plan, tmp_path):
    wanted = ("placebo", "ordinary", "random")
    trainings = [training for training in read_plan(plan / "plan.json") if training.rung.key in wanted]
    run_plan(trainings, plan, tmp_path / "workers", workers=1, seconds=600)
    results = ResultStore(tmp_path / "store")
    assert collect_results(sorted((tmp_path / "workers").glob("worker-*")), results) == len(wanted)
    bench.save_plan(asked, results, tmp_path / "rest")
    assert not {training.rung.key for training in read_plan(tmp_path / "rest" / "plan.json")} & set(wanted)
    figures = bench.Figures(results.lines)
    assert figures.seeds("city", *wanted) == [0]
    assert any("city" in line for line in bench.sealed_tables(figures))


def test_noise_that_is_drawn_once_hides_features_from_who_knows_some_rows(plan):
    arrays = load_arrays(plan / "city-0.npz")
    rung = Rung("x", "x", "fedsim", epochs=1, inputs="identifiers")
    scores = []
    for terms in (SealedTerms(), SealedTerms(noise=2.0)):
        outcome = train_sealed(rung, replace(arrays, about={**arrays.about, **terms.as_metadata()}))
        scores.append(outcome.figures[INVERSION])
    assert scores[0] > 0.9
    assert scores[1] < 0.5


@pytest.mark.parametrize(("word", "code"), [("paris=3", "unknown-dataset"), ("many", "invalid-seeds")])
def test_seeds_that_cannot_be_read_are_refused(bench, word, code):
    with raises(SettingError, code=code):
        bench.parse_seeds([word])
