"""A run leaves in the primary's folder what repeats and reports it; while it runs, a file says how far it is."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedsim.config.job import Job
from fedsim.errors import FileError, PeerError
from fedsim.linkage.private_linkage import load_private_links
from fedsim.protocol.messages import Finish, Party, Phase, Role
from fedsim.protocol.session import ConnectionState
from fedsim.runs.record import RECORD_FILE, errors_by_group, read_run_record, read_test_predictions
from fedsim.runs.run_folder import PartyProgress, publish_progress, read_ledger, run_path
from fedsim.runtime.run_local import run_local
from fedsim.training.data import classification_metrics, regression_metrics
from job_fixtures import lay_out, read_all
from session_fixtures import until

CITY, NOTARY = Party(Role.PRIMARY, "city"), Party(Role.COORDINATOR, "notary")
CLASSES = {
    "job": {'kind = "regression"': 'kind = "classification"', 'method = "fedsim"': 'method = "avgsim"'},
    "city": {"flats.csv": "classes.csv", 'column = "price"': 'column = "dear"'},
}


def run_in(folder: Path, changes: dict[str, dict[str, str]] | None = None) -> tuple[Job, dict[str, Path]]:
    lay_out(folder, changes)
    job, files = read_all(folder)
    run_local(job, list(files.values()))
    return job, {name: run_path(job, own) for name, own in files.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, dict[str, Path]]:
    return run_in(tmp_path_factory.mktemp("numbers"))


def progress_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return found


def test_the_record_has_job_data_machine_and_training(run: tuple[Job, dict[str, Path]]) -> None:
    job, folders = run
    record = read_run_record(folders["city"])
    assert (record.hash, record.job["seed"], record.table.records) == (job.hash, 7, 300)
    assert record.table.features == ["area", "storey", "age"]
    assert {"torch", "threads", "cpu"} <= set(record.versions)
    assert [epoch["number"] for epoch in record.history] == [1, 2]
    assert [phase.name for phase in record.phases] == ["join", "link", "train", "explain"]
    assert all(phase.peak_bytes > 1e7 for phase in record.phases)


def test_the_test_records_give_the_metrics_again(run: tuple[Job, dict[str, Path]]) -> None:
    folder = run[1]["city"]
    record, test = read_run_record(folder), read_test_predictions(folder)
    again = regression_metrics(test["predicted"].to_numpy(), test["truth"].to_numpy())
    assert again == pytest.approx(record.metrics["test"], rel=1e-9)


def test_links_and_gates_are_those_the_primary_saw(run: tuple[Job, dict[str, Path]]) -> None:
    record = read_run_record(run[1]["city"])
    (seen,), (curve,), (importance,) = record.lists, record.curves, record.importances
    assert (seen.secondary, seen.k, seen.records, seen.candidates) == ("rentals", 5, 300, 200)
    assert sum(times * candidates for times, candidates in seen.reuse) == 300 * 5
    assert np.all(np.diff([rank[2] for rank in seen.similarity_by_rank]) <= 0)
    assert len(curve.similarity) == len(curve.weight) == 61
    assert len(importance.values) == 5


def test_a_few_test_records_are_explained_under_numbers_of_their_own(run: tuple[Job, dict[str, Path]]) -> None:
    folder = run[1]["city"]
    examples, sent = read_run_record(folder).explained, load_private_links(folder / "lists" / "rentals.safetensors")
    test = {row["row"]: row for row in read_test_predictions(folder).to_dicts()}
    assert len(examples) == 5
    for example in examples:
        found, seen = example.explanation, test[example.row]
        assert (found.value, example.truth) == (pytest.approx(seen["predicted"]), seen["truth"])
        assert (found.lower, found.upper) == (pytest.approx(seen["lower"]), pytest.approx(seen["upper"]))
        assert found.average + sum(one.effect for one in found.partners) == pytest.approx(found.value)
        assert found.without == {"rentals": pytest.approx(found.average)}
        similarities = sorted(one.similarity for one in found.partners)
        assert similarities == pytest.approx(np.sort(sent.overall[example.row]).tolist(), rel=1e-6)
    best = [max(one.similarity for one in example.explanation.partners) for example in examples]
    assert best == sorted(best, reverse=True)
    pseudonyms = {int(partner) for example in examples for partner in sent.partner[example.row]}
    numbers = {one.partner for example in examples for one in example.explanation.partners}
    assert numbers == set(range(1, len(pseudonyms) + 1))


def test_only_the_owner_may_read_it_and_only_the_primary_has_it(run: tuple[Job, dict[str, Path]]) -> None:
    folders = run[1]
    for name in ("run.json", "test.parquet", "progress.json"):
        assert stat.S_IMODE((folders["city"] / name).stat().st_mode) == 0o600
    assert not any((folders[name] / "run.json").exists() for name in ("notary", "rentals"))


def test_every_party_says_how_far_it_came(run: tuple[Job, dict[str, Path]]) -> None:
    for name, folder in run[1].items():
        found = progress_of(folder)
        assert (found["state"], found["error"], found["party"]) == ("done", "", name)
        counted = [vars(entry) for entry in read_ledger(folder) if entry.phase in ("link", "train")]
        assert [entry for entry in found["ledger"] if entry["phase"] in ("link", "train")] == counted
    training = progress_of(run[1]["city"])["training"]
    assert training["steps"] == training["epochs"] * training["steps_per_epoch"] == 2
    assert [epoch["number"] for epoch in training["history"]] == [1, 2]


def test_classes_are_recorded_by_their_names_and_a_method_without_gates_has_none(tmp_path: Path) -> None:
    _, folders = run_in(tmp_path, CLASSES)
    record, test = read_run_record(folders["city"]), read_test_predictions(folders["city"])
    assert record.curves == record.importances == []
    assert set(test["truth"]) == {str(name) for name in record.classes}
    accuracy = float((test["truth"] == test["predicted"]).mean())  # type: ignore[arg-type]
    assert accuracy == pytest.approx(record.metrics["test"]["accuracy"])
    assert classification_metrics(np.array([[0.1, 0.9]]), np.array([1]))["accuracy"] == 1.0
    assert all(group.bias is None for group in record.groups)
    assert {one.weight for example in record.explained for one in example.explanation.partners} == {None}
    assert {example.explanation.prediction for example in record.explained} <= set(record.classes)


def test_a_party_that_fails_says_why_and_names_no_stranger(tmp_path: Path) -> None:
    lay_out(tmp_path)
    job, _ = read_all(tmp_path, approved=False)
    for error, *expected in (
        (PeerError("rentals is away"), "failed", "rentals is away"),
        (KeyError("a cell"), "failed", "KeyError"),
        (KeyboardInterrupt(), "stopped", ""),
    ):
        with (
            pytest.raises(type(error)),
            publish_progress(tmp_path, job, ConnectionState(CITY, {}, {}), PartyProgress()),
        ):
            raise error
        assert [progress_of(tmp_path)["state"], progress_of(tmp_path)["error"]] == expected


def test_a_party_that_waits_says_for_whom_until_it_ends(tmp_path: Path) -> None:
    lay_out(tmp_path)
    job, _ = read_all(tmp_path, approved=False)
    connection = ConnectionState(CITY, {}, {})
    connection.show_wait(NOTARY, 5.0)
    with publish_progress(tmp_path, job, connection, PartyProgress()):
        until((tmp_path / "progress.json").exists)
        (waits,) = progress_of(tmp_path)["waiting"]
        assert waits.startswith("coordinator 'notary' since ")
    assert progress_of(tmp_path)["waiting"] == []


def test_a_party_that_names_no_phase_is_as_far_as_its_messages() -> None:
    connection, progress = ConnectionState(CITY, {}, {}), PartyProgress(clock=iter(range(100)).__next__)
    progress.follow(connection.ledger.entries())
    connection.ledger.count(Finish(), CITY, NOTARY, 10, Phase.LINK)
    progress.follow(connection.ledger.entries())
    progress.follow(connection.ledger.entries())
    assert [stage.name for stage in progress.stages] == ["join", "link"]
    assert progress.stages[0].seconds > 0


def test_a_coordinator_waits_once_all_is_linked(run: tuple[Job, dict[str, Path]]) -> None:
    assert [phase["name"] for phase in progress_of(run[1]["notary"])["phases"]] == ["join", "link", "wait"]


def test_threads_that_enter_the_same_phase_make_one_of_it() -> None:
    progress, ready = PartyProgress(), threading.Barrier(8)

    def work() -> None:
        for number in range(200):
            ready.wait()
            progress.enter(str(number))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [stage.name for stage in progress.stages] == ["join", *map(str, range(200))]


def test_a_loss_that_is_no_number_leaves_the_file_readable_by_anybody(tmp_path: Path) -> None:
    lay_out(tmp_path)
    job, _ = read_all(tmp_path, approved=False)
    progress = PartyProgress(
        training={"history": [{"number": 1, "loss": float("nan"), "validation_loss": float("inf")}]}
    )
    with publish_progress(tmp_path, job, ConnectionState(CITY, {}, {}), progress):
        pass
    assert "NaN" not in (tmp_path / "progress.json").read_text()
    assert progress_of(tmp_path)["training"]["history"] == [{"number": 1, "loss": None, "validation_loss": None}]


def test_numbers_words_and_small_groups_are_distinguished() -> None:
    wrong = np.arange(100.0) - 50.0
    columns = {"size": pl.Series(np.arange(100.0)), "kind": pl.Series(["a"] * 60 + ["b"] * 35 + [None] * 5)}
    found = errors_by_group(columns, wrong, numbers=True)
    sizes = [group for group in found if group.by == "size"]
    assert [group.records for group in sizes] == [20] * 5
    assert [group.bias for group in sizes] == pytest.approx([-40.5, -20.5, -0.5, 19.5, 39.5])
    assert [(group.group, group.records) for group in found if group.by == "kind"] == [("a", 60), ("b", 35)]
    assert errors_by_group({"few": pl.Series(["x"] * 3)}, np.zeros(3), numbers=False) == []


@pytest.mark.parametrize("numbers", [True, False])
def test_intervals_of_all_groups_together_nearly_always_contain_the_true_error(numbers: bool) -> None:
    rng, missed, draws = np.random.default_rng(3), 0, 300
    columns = {"area": pl.Series(np.arange(500.0) % 5)}
    for _ in range(draws):
        wrong = rng.normal(0.0, 2.0, 500) if numbers else (rng.random(500) < 0.3).astype(np.float64)
        groups = errors_by_group(columns, wrong, numbers=numbers)
        true = 2.0 if numbers else 0.3
        missed += any(not (group.low or 0.0) <= true <= (group.high or 0.0) for group in groups)
    assert missed <= 0.12 * draws
    assert missed > 0


def test_no_group_is_named_by_one_records_value() -> None:
    salary = pl.Series(np.append(np.linspace(31_234.5, 71_234.5, 99), 987_654.0))
    found = errors_by_group({"salary": salary}, np.zeros(100), numbers=True)
    assert [group.group for group in found][::4] == ["below 39,400", "63,900 and more"]
    assert not any(word in group.group for group in found for word in ("31,234", "31234", "987"))


def test_columns_that_say_who_somebody_is_have_no_groups() -> None:
    values = pl.Series(np.arange(100.0))
    names = [
        "surname",
        "First",
        "e_mail",
        "phone2",
        "birthYear",
        "street_no",
        "area",
        "similarity to the nearest of mail",
    ]
    found = errors_by_group(dict.fromkeys(names, values), np.zeros(100), numbers=True)
    assert {group.by for group in found} == set(names[-2:])


def test_switches_years_and_broken_numbers_are_named_as_people_would() -> None:
    columns = {
        "lift": pl.Series([0.0, 1.0] * 50),
        "year": pl.Series(np.repeat(np.arange(2011, 2021), 10)),
        "broken": pl.Series([float("inf"), float("nan"), None, -float("inf")] * 5 + list(range(80)), strict=False),
        "nothing": pl.Series([float("nan")] * 100),
    }
    by = {
        name: [g.group for g in errors_by_group({name: values}, np.zeros(100), numbers=True)]
        for name, values in columns.items()
    }
    assert by["lift"] == ["0", "1"]
    assert by["year"] == ["below 2013", "2013 to 2014", "2015 to 2016", "2017 to 2018", "2019 and more"]
    assert len(by["broken"]) == 5
    assert not any("inf" in group or "nan" in group for group in by["broken"])
    assert by["nothing"] == []
    assert errors_by_group({"lift": columns["lift"]}, np.full(100, np.inf), numbers=True) == []


def test_a_group_of_numbers_holds_what_its_name_says() -> None:
    children = pl.Series(np.repeat([0, 1, 2, 3, 5, 9], [30, 30, 20, 10, 10, 10]))
    found = errors_by_group({"children": children}, np.zeros(110), numbers=True)
    assert [(group.group, group.records) for group in found] == [("0", 30), ("1", 30), ("2", 20), ("3 and more", 30)]
    halves = pl.Series(np.arange(100) / 2)
    names = [group.group for group in errors_by_group({"halves": halves}, np.zeros(100), numbers=True)]
    assert names == ["below 10", "10 to below 20", "20 to below 30", "30 to below 40", "40 and more"]


def test_a_folder_without_a_run_and_a_damaged_record_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        read_run_record(tmp_path)
    assert caught.value.code == "no-run-record"
    (tmp_path / RECORD_FILE).write_text('{"format": 1}')
    with pytest.raises(FileError) as caught:
        read_run_record(tmp_path)
    assert (caught.value.code, caught.value.setting) == ("invalid-run-record", "job")
    with pytest.raises(FileError) as caught:
        read_test_predictions(tmp_path)
    assert caught.value.code == "unreadable-file"


def test_the_progress_of_linking_has_a_rate() -> None:
    now = [0.0]
    progress = PartyProgress(clock=lambda: now[0])
    for now[0], done in ((3.0, 0), (5.0, 100)):
        progress.link("rentals", done, 400)
    assert progress.linking == {"rentals": {"done": 100, "total": 400, "began": 3.0, "seconds": 2.0}}
