"""Tables and figures as data: files that describe them, what they train, and what comes beside the paper's figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from error_fixtures import raises
from fedsim.cli import main
from fedsim.contribution.rungs import LinkedSecondary, ResultStore, Rung, train_missing
from fedsim.errors import FedSimError, SettingError
from fedsim_lab import study_runner
from fedsim_lab.analysis_figures import attacker_table
from fedsim_lab.arrays_file import load_arrays
from fedsim_lab.cost_tables import PAPER_PARAMETERS, method_parameters
from fedsim_lab.dataset_cases import DatasetCases, LinkageOverrides, _text_filter
from fedsim_lab.datasets.dataset import TITLE_FILTERS, Dataset
from fedsim_lab.reproduce import REPRODUCTIONS, STUDIES
from fedsim_lab.study_config import PaperStudy, StudyPart, read_study
from fedsim_lab.study_runner import StudyContext, load_sample, read_ladders
from fedsim_lab.worker_pool import PlannedTraining, read_plan, run_plan

FILES = Path(__file__).parents[3] / "experiments" / "paper"
STUDY = """
title = "Firms"
place = "nowhere"
axis = "partners"

[[parts]]
dataset = "firms"
measure = "rmse"
records = 150
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
    words = [
        "lab",
        "reproduce",
        name,
        "--studies",
        str(folder),
        "--data",
        str(folder),
        "--out",
        str(folder / "out"),
        *more,
    ]
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "figure-k.toml").write_text(STUDY)
    return tmp_path


@dataclass(frozen=True)
class Reproduced:
    """The study after one run: its folder, and what was printed as its result and as its progress."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    folder = tmp_path_factory.mktemp("study")
    (folder / "figure-k.toml").write_text(STUDY)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert reproduce(folder, "figure-k", "--seeds", "1") == 0
    return Reproduced(folder, out.getvalue(), err.getvalue())


@pytest.fixture
def reproduced(once: Reproduced, tmp_path: Path) -> Reproduced:
    """A copy of it, to go on with."""
    return replace(once, folder=Path(shutil.copytree(once.folder, tmp_path / "study")))


def test_every_study_of_the_project_can_be_read_and_shortened() -> None:
    for name in STUDIES:
        study = read_study(FILES / f"{name}.toml")
        assert study.shortened().parts
    assert {part.dataset for part in read_ladders(FILES / "leaderboard.toml")} >= {"city", "hdb"}
    assert set(STUDIES) < set(REPRODUCTIONS)


def test_ours_stand_beside_the_papers_and_missing_data_is_named(once: Reproduced) -> None:
    folder = once.folder
    assert "40.00 ± 1.00" in once.out
    assert "taxi: not trained" in once.out
    sheet = json.loads((folder / "out" / "figure-k.json").read_text())
    assert sheet["facts"]["trainings"] == 4
    assert sheet["charts"][0]["places"] == ["3", "6"]
    trainings = pl.read_parquet(folder / "out" / "figure-k.parquet")
    assert trainings["settings.k"].to_list() == [None, 3, None, None]  # six are all that were linked
    assert "<svg" in (folder / "out" / "figure-k.html").read_text()
    assert (folder / "out" / "figure-k-1.svg").read_text().count("http://www.w3.org/2000/svg") == 1


def test_a_second_run_trains_nothing_and_solo_is_trained_once_for_all_values(reproduced: Reproduced) -> None:
    results = reproduced.folder / "out" / "trainings" / "results.jsonl"
    lines = results.read_text()
    assert len(lines.splitlines()) == 3
    assert reproduce(reproduced.folder, "figure-k", "--seeds", "1", "--quiet") == 0
    assert results.read_text() == lines


def test_two_parts_with_one_dataset_are_told_apart_by_a_label(folder: Path) -> None:
    first = STUDY[: STUDY.index('[[parts]]\ndataset = "taxi"')]
    second = first[first.index("[[parts]]") :].replace("records = 150", 'records = 100\nlabel = "fewer"')
    (folder / "table-real.toml").write_text(first + second)
    assert reproduce(folder, "table-real", "--fast") == 0
    sheet = json.loads((folder / "out" / "fast" / "table-real.json").read_text())
    assert [table["title"].partition(":")[0] for table in sheet["tables"]] == ["firms", "firms, fewer"]
    assert all(len(table["rows"]) == 2 for table in sheet["tables"])


def test_fast_sheets_are_marked_and_leave_the_others_alone(
    reproduced: Reproduced, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reproduced.folder
    whole = (folder / "out" / "figure-k.html").read_text()
    reproduce(folder, "figure-k", "--fast")
    mark = "--fast: at most 1 epochs: shows that everything runs, not what it reaches"
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "Firms (nowhere), --fast: at most 1 epochs"
    assert mark in output
    sheet = json.loads((folder / "out" / "fast" / "figure-k.json").read_text())
    assert (sheet["notes"][0], sheet["facts"]["fast"]) == (mark, "at most 1 epochs")
    assert mark in (folder / "out" / "fast" / "figure-k.html").read_text()
    assert (folder / "out" / "figure-k.html").read_text() == whole


def test_fast_may_take_smaller_batches_and_larger_steps(folder: Path) -> None:
    quick = STUDY.replace("fast = { epochs = 1,", "fast = { batch = 16, rate = 0.01,")
    (folder / "figure-k.toml").write_text(quick)
    rungs = read_study(folder / "figure-k.toml").shortened().parts[0].rungs_at(3)
    assert [(rung.epochs, rung.batch, rung.rate) for rung in rungs] == [(2, 16, 0.01)] * 2


def test_a_figure_of_the_paper_that_no_value_changes_is_named_without_one(folder: Path) -> None:
    (folder / "figure-k.toml").write_text(STUDY.replace("paper = { ", "paper = { Solo = [50.0], "))
    part = read_study(folder / "figure-k.toml").parts[0]
    solo, fedsim = part.rungs_at(3)
    assert (part.in_paper(solo, 3), part.in_paper(solo, 6)) == ((50.0, 0.0), (50.0, 0.0))
    assert part.in_paper(fedsim, 3) is None


def test_table_one_stands_beside_whatever_no_value_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taxi = STUDY[STUDY.index('[[parts]]\ndataset = "taxi"') :].replace('["fedsim"]', '["top1sim", "fedsim"]')
    (folder / "figure-k.toml").write_text(f'title = "Rides"\nplace = "nowhere"\n{taxi}vary = "k"\nvalues = [5, 10]\n')
    assert reproduce(folder, "figure-k") == 0
    output = capsys.readouterr().out
    assert output.count("256.19 ± 1.39") == 2
    assert "235.67" not in output


def test_pieces_of_a_secondary_do_not_touch_who_learns_alone() -> None:
    part = read_study(FILES / "table-multiparty.toml").parts[0]
    assert {rung.key: rung.pieces for rung in part.rungs_at("13")} == {"fedsim": "13", "solo": ""}


def test_every_training_is_told_with_its_dataset_value_and_number(once: Reproduced) -> None:
    output = [line.strip() for line in once.err.splitlines()]
    places = ["[1 of 4] firms, k 3, ", "[2 of 4] firms, k 3, ", "[4 of 4] firms, k 6, "]
    assert len(output) == 3
    assert all(line.startswith(place) for line, place in zip(output, places, strict=True))


def test_the_papers_scores_are_those_of_its_split() -> None:
    part = StudyPart("hdb", ["fedsim"], "rmse", vary="split", values=["fixed", "random", "group"])
    (rung,) = part.rungs_at("fixed")
    assert study_runner._published_score(part, "fixed", rung) == (27.13, 0.06)
    assert {study_runner._published_score(part, split, rung) for split in ("random", "group")} == {None}


def test_delta_keeps_its_trainings_on_the_papers_split_and_its_time(folder: Path) -> None:
    both = 'k = 3\nvary = "split"\nvalues = ["random", "group"]'
    (folder / "table-real.toml").write_text(
        STUDY.replace('vary = "k"\nvalues = [3, 6]', both).replace(", values = [3]", "")
    )
    assert reproduce(folder, "figure-delta", "--fast", "--quiet") == 0
    sheet = json.loads((folder / "out" / "fast" / "figure-delta.json").read_text())
    assert sheet["facts"]["seconds"] > 0
    assert pl.read_parquet(folder / "out" / "fast" / "figure-delta.parquet")["split"].to_list() == ["fixed"] * 2


@pytest.mark.parametrize(("option", "name"), [("--out", "figure-k.toml"), ("--out", "figure-k.toml/below")])
def test_a_folder_that_cannot_be_made_is_refused(
    folder: Path, option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(folder, "figure-k", option, str(folder / name)) == 2
    assert "the folder" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--data", "--gather"])
def test_a_folder_to_read_that_is_not_there_is_refused(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(folder, "figure-k", option, str(folder / "nowhere")) == 2
    assert str(folder / "nowhere") in capsys.readouterr().err


def test_all_can_be_planned_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in STUDIES:
        (folder / f"{name}.toml").write_text(STUDY)
    (folder / "leaderboard.toml").write_text('[[parts]]\ndataset = "firms"\nrecords = 60\nepochs = 1\n')
    assert reproduce(folder, "all", "--fast", "--plan", str(folder / "plan")) == 0
    ladder = [order.rung.key for order in read_plan(folder / "plan" / "plan.json")[2:]]
    assert "fedsim" in ladder
    assert str(2 + len(ladder)) in capsys.readouterr().out


def test_who_stops_is_told_that_nothing_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsim.contribution.rungs.train", stopped)
    assert reproduce(folder, "figure-k") == 130
    assert "stopped" in capsys.readouterr().err


def test_fast_trains_less(folder: Path) -> None:
    reproduce(folder, "figure-k", "--fast", "--quiet")
    lines = [json.loads(line) for line in (folder / "out" / "trainings" / "results.jsonl").read_text().splitlines()]
    assert [(line["settings"]["k"], line["settings"]["epochs"]) for line in lines] == [(None, 1)] * 2


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
    assert {name: method_parameters("FedSim", name) for name in PAPER_PARAMETERS["FedSim"]} == PAPER_PARAMETERS[
        "FedSim"
    ]


def test_three_pieces_of_a_secondary_are_aligned_parties() -> None:
    arrays = DatasetCases(load_sample("firms", Path(), 60)).one("random", 0)
    rung = Rung("fedsim", "FedSim", "fedsim", pieces="13")
    first, third = rung.secondary_data(arrays)
    whole = arrays.secondaries[0].features.numbers
    np.testing.assert_array_equal(first.features.numbers, whole[:, :1])
    np.testing.assert_array_equal(third.features.numbers, whole[:, 2:])
    assert third.aligned_with == first.name


def similarity_of_every_record(linked: LinkedSecondary) -> np.ndarray:
    return linked.similarity[linked.list_of]


def test_noise_moves_similarities_and_leaves_the_partners() -> None:
    firms = load_sample("firms", Path(), 200)
    plain, noisy = (
        DatasetCases(firms, LinkageOverrides(sigma=sigma)).one("random", 0).secondaries[0] for sigma in (0.0, 0.5)
    )
    np.testing.assert_array_equal(plain.partner[plain.list_of], noisy.partner[noisy.list_of])
    moved = similarity_of_every_record(plain) - similarity_of_every_record(noisy)
    assert np.std(moved) == pytest.approx(0.5, rel=0.05)


@pytest.fixture(scope="module")
def twice() -> Dataset:
    """Firms, each of which is in the primary's table twice."""
    firms = load_sample("firms", Path(), 100)
    return replace(firms, primary=replace(firms.primary, frame=pl.concat([firms.primary.frame] * 2)))


def test_noise_is_drawn_per_record_as_in_the_paper_or_per_identifier(twice: Dataset) -> None:
    arrays = DatasetCases(twice, LinkageOverrides(sigma=0.5)).one("random", 0)
    by_record, by_identifier = (
        Rung("fedsim", "FedSim", "fedsim", partner=partner).secondary_data(arrays)[0].similarity
        for partner in ("real", "same-noise")
    )
    assert np.std(by_record[:100] - by_record[100:]) == pytest.approx(0.5 * np.sqrt(2), rel=0.05)
    np.testing.assert_array_equal(by_identifier[:100], by_identifier[100:])


def test_without_noise_both_are_one_training(twice: Dataset) -> None:
    arrays = DatasetCases(twice).one("random", 0)
    keys = [Rung("x", "X", "fedsim", partner=partner).result_key(arrays) for partner in ("real", "same-noise")]
    assert keys[0] == keys[1]


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


def test_two_workers_train_what_one_process_trains(once: Reproduced, folder: Path) -> None:
    assert reproduce(folder, "figure-k", "--seeds", "1", "--workers", "2", "--quiet") == 0
    alone, together = (ResultStore(place / "out" / "trainings") for place in (once.folder, folder))
    assert {*map(alone.name_of, alone.lines)} == {*map(together.name_of, together.lines)}
    for line in alone.lines:
        np.testing.assert_allclose(together.predictions(line), alone.predictions(line), rtol=1e-4)
    assert not (together.folder / "workers").exists()


def test_text_filters_are_sized_for_the_grams_they_encode() -> None:
    titles = pl.Series(["abcdefghij", "klmnopqrst"])  # ten letters, padded by three on both sides: 13 grams of four
    encoding = _text_filter(titles, titles, TITLE_FILTERS)
    assert len(encoding.grams(titles[0])) == 13
    assert encoding.bits == 872  # 2 x 1 edit x 10 hashes x 13 grams / (3 x .1) = 866.7, in whole bytes


def test_figure_6_says_what_attackers_guess_at_its_bounds() -> None:
    part = StudyPart("sklearn", ["fedsim"], "accuracy", metric="hamming", records=100, vary="tau", values=[1.0, 0.1])
    table = attacker_table(PaperStudy("x", "", "", (part,)), StudyContext(None, Path(), 1))
    bare, noisy = ([float(cell) for cell in row[1:]] for row in table.rows)
    assert bare == [1.0, 0.0, 1.0, 1.0]
    assert noisy[2] <= noisy[3] < 1  # the greedy attacker guesses less than the one who knows the distances


def test_hamming_needs_the_papers_filters() -> None:
    with pytest.raises(SettingError, match="has no filters in the paper"):
        DatasetCases(load_sample("city", Path(), 60), LinkageOverrides(metric="hamming")).one("random", 0)


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


def test_a_study_says_how_each_method_was_trained() -> None:
    part = read_study(FILES / "table-real.toml").parts[-1]
    notes = list(study_runner.training_settings_notes(part, load_sample("firms", Path(), 200), 3))
    assert notes[0].startswith("firms: up to 3 seeds, one split for all seeds; a random split for every seed; ")
    assert notes[0].endswith("K = 10")
    (steps,) = notes[1:]
    assert steps.endswith("batches of 128, learning rate 0.003, at most 60 epochs, ends 20 epochs after the best")
