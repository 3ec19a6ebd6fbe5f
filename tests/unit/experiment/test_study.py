"""Tables and figures as data: files that describe them, what they train, and what comes beside the paper's figures."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedsim.cli import main
from fedsim.errors import FedSimError, SettingError
from fedsim.experiment.arrays import Arrays
from fedsim.experiment.cases import Cases, Linkage
from fedsim.experiment.crew import Order, gathered, read_plan, work, write_plan
from fedsim.experiment.ladders import read_ladders
from fedsim.experiment.parameters import PAPER, parameters_of
from fedsim.experiment.reproductions import NAMES, STUDIES
from fedsim.experiment.results import Results
from fedsim.experiment.run import climb, secondaries_of
from fedsim.experiment.rung import Rung
from fedsim.experiment.study import read_study
from fedsim.experiment.study_run import Bench, sampled
from fedsim.experiment.sweep import Grid, Subject, Sweep

FILES = Path(__file__).parents[3] / "experiments" / "paper"
STUDY = """
title = "Firms"
place = "nowhere"
axis = "partners"

[[parts]]
dataset = "firms"
measure = "rmse"
records = 300
vary = "k"
values = [3, 6]
rungs = ["solo", "fedsim"]
paper = { "FedSim, 6" = [40.0, 1.0] }
settings = { all = { epochs = 2 } }
fast = { epochs = 1, values = [3] }

[[parts]]
dataset = "taxi"
measure = "rmse"
rungs = ["fedsim"]
"""


def reproduce(folder: Path, name: str, *more: str) -> int:
    words = ["reproduce", name, "--studies", str(folder), "--data", str(folder), "--out", str(folder / "out"), *more]
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "figure-k.toml").write_text(STUDY)
    return tmp_path


def test_every_study_of_the_project_can_be_read_and_shortened() -> None:
    for name in STUDIES:
        study = read_study(FILES / f"{name}.toml")
        assert study.shortened().parts
    assert {part.dataset for part in read_ladders(FILES / "ladder.toml")} >= {"city", "hdb"}
    assert set(STUDIES) < set(NAMES)


def test_ours_stand_beside_the_papers_and_missing_data_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(folder, "figure-k", "--seeds", "1") == 0
    told = capsys.readouterr().out
    assert "40.00 ± 1.00" in told
    assert "taxi: not trained" in told
    sheet = json.loads((folder / "out" / "figure-k.json").read_text())
    assert sheet["facts"]["trainings"] == 4
    assert sheet["charts"][0]["places"] == ["3", "6"]
    trainings = pl.read_parquet(folder / "out" / "figure-k.parquet")
    assert trainings["settings.k"].to_list() == [None, 3, None, 6]
    assert "<svg" in (folder / "out" / "figure-k.html").read_text()
    assert (folder / "out" / "figure-k-1.svg").read_text().count("http://www.w3.org/2000/svg") == 1


def test_a_second_run_trains_nothing_and_solo_is_trained_once_for_all_values(folder: Path) -> None:
    reproduce(folder, "figure-k", "--seeds", "1", "--quiet")
    lines = (folder / "out" / "trainings" / "results.jsonl").read_text()
    assert len(lines.splitlines()) == 3
    reproduce(folder, "figure-k", "--seeds", "1", "--quiet")
    assert (folder / "out" / "trainings" / "results.jsonl").read_text() == lines


def test_two_parts_with_one_dataset_are_told_apart_by_a_label(folder: Path) -> None:
    first = STUDY[: STUDY.index('[[parts]]\ndataset = "taxi"')]
    second = first[first.index("[[parts]]") :].replace("records = 300", 'records = 200\nlabel = "fewer"')
    (folder / "table-real.toml").write_text(first + second)
    assert reproduce(folder, "table-real", "--fast") == 0
    sheet = json.loads((folder / "out" / "table-real.json").read_text())
    assert [table["title"].partition(":")[0] for table in sheet["tables"]] == ["firms", "firms, fewer"]
    assert all(len(table["rows"]) == 2 for table in sheet["tables"])


def test_fast_trains_less(folder: Path) -> None:
    reproduce(folder, "figure-k", "--fast", "--quiet")
    lines = [json.loads(line) for line in (folder / "out" / "trainings" / "results.jsonl").read_text().splitlines()]
    assert [(line["settings"]["k"], line["settings"]["epochs"]) for line in lines] == [(None, 1), (3, 1)]


@pytest.mark.parametrize(
    ("word", "other", "seen"),
    [('"fedsim"]', '"fedsin"]', "fedsin"), ('vary = "k"', 'vary = "q"', "vary 'q'"), ("records", "recrods", "recrods")],
)
def test_a_faulty_study_is_answered_with_a_sentence(folder: Path, word: str, other: str, seen: str) -> None:
    (folder / "figure-k.toml").write_text(STUDY.replace(word, other, 1))
    with pytest.raises(FedSimError, match=seen):
        read_study(folder / "figure-k.toml")


def test_a_mistyped_name_is_corrected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(folder, "tabel-real") == 2
    assert "did you mean 'table-real'?" in capsys.readouterr().err


def test_parameters_equal_the_papers_for_fedsim() -> None:
    assert {name: parameters_of("FedSim", name) for name in PAPER["FedSim"]} == PAPER["FedSim"]


def test_three_pieces_of_a_secondary_are_aligned_parties() -> None:
    arrays = Cases(sampled("firms", Path(), 60)).one("random", 0)
    rung = Rung("fedsim", "FedSim", "fedsim", pieces="13")
    first, third = secondaries_of(rung, arrays)
    whole = arrays.secondaries[0].features.numbers
    np.testing.assert_array_equal(first.features.numbers, whole[:, :1])
    np.testing.assert_array_equal(third.features.numbers, whole[:, 2:])
    assert third.aligned_with == first.name


def test_noise_moves_similarities_and_leaves_the_partners() -> None:
    firms = sampled("firms", Path(), 200)
    plain, noisy = (Cases(firms, Linkage(sigma=sigma)).one("random", 0).secondaries[0] for sigma in (0.0, 0.5))
    np.testing.assert_array_equal(plain.partner, noisy.partner)
    assert np.std(plain.similarity - noisy.similarity) == pytest.approx(0.5, rel=0.05)


def test_a_crew_trains_what_one_process_trains(tmp_path: Path) -> None:
    arrays = Cases(sampled("firms", Path(), 120)).one("random", 0)
    arrays.save(tmp_path / "firms.npz")
    rungs = [Rung(word, word, word, epochs=1) for word in ("solo", "top1sim")]
    write_plan([Order("firms.npz", rung, {"seed": 3}) for rung in rungs], tmp_path / "plan.json")
    work(read_plan(tmp_path / "plan.json"), tmp_path, tmp_path / "crew", workers=2, seconds=600)
    together, alone = Results(tmp_path / "together"), Results(tmp_path / "alone")
    assert gathered(sorted((tmp_path / "crew").glob("worker-*")), together) == 2
    loaded = Arrays.load(tmp_path / "firms.npz")
    climb([replace(loaded, about={**loaded.about, "seed": 3})], rungs, alone, lambda _: None)
    for line in alone.lines:
        np.testing.assert_allclose(together.predictions(line), alone.predictions(line), rtol=1e-5)


def test_a_plan_made_here_and_carried_out_elsewhere_leaves_nothing_to_train(folder: Path) -> None:
    plan = folder / "plan"
    assert reproduce(folder, "figure-k", "--fast", "--plan", str(plan)) == 0
    assert not (folder / "out").exists()
    orders = read_plan(plan / "plan.json")
    assert [order.rung.key for order in orders] == ["solo", "fedsim"]
    for order in orders:
        climb([Arrays.load(plan / order.arrays)], [order.rung], Results(folder / "back" / "worker-0"), lambda _: None)
    assert reproduce(folder, "figure-k", "--fast", "--gather", str(folder / "back"), "--quiet") == 0
    taken = (folder / "out" / "trainings" / "results.jsonl").read_text()
    assert taken == (folder / "back" / "worker-0" / "results.jsonl").read_text()


def sweep_in(folder: Path) -> Sweep:
    return Sweep(Subject("firms", epochs=1, records=120), Bench(Path(), folder, 1, lambda _: None))


def test_a_grid_is_ranked_by_validation_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    grid = Grid(k=(2, 4), rate=(1e-3, 1e-2))
    first = sweep_in(tmp_path).grid(grid)
    errors = [tried.validation["rmse"] for tried in first]
    assert errors == sorted(errors)
    lines = (tmp_path / "results.jsonl").read_text()
    assert [tried.setting for tried in sweep_in(tmp_path).grid(grid)] == [tried.setting for tried in first]
    assert (tmp_path / "results.jsonl").read_text() == lines


def test_a_search_stays_within_the_grid_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    grid = Grid(k=(2, 4), rate=(1e-3, 1e-2))
    sweep_in(tmp_path).search(grid, 2, tmp_path / "search.log")
    found = sweep_in(tmp_path).search(grid, 3, tmp_path / "search.log")
    assert all(tried.setting.k in (2, 4) and 1e-3 <= tried.setting.rate <= 1e-2 for tried in found)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


def test_hamming_needs_the_papers_filters() -> None:
    with pytest.raises(SettingError, match="has no filters in the paper"):
        Cases(sampled("firms", Path(), 60), Linkage(metric="hamming")).one("random", 0)


BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "polars", "scipy", "sklearn", "narwhals", "pydantic", "pandas"}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import fedsim.experiment.crew
"""


def test_trainings_need_torch_and_numpy_alone() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
