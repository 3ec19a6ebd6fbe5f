"""The honest ladder: what it trains and reports, and that it distinguishes a useful partner from a useless one."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.cli import main
from fedsim.contribution.ladder import (
    AUC,
    FEDSIM_SHUFFLED,
    FEDSIM_WITH_IDENTIFIERS,
    RUNGS,
    SOLO_WITH_IDENTIFIERS,
    WITH_PARTNER,
    WITHOUT_PARTNER,
    BootstrapScores,
    GainUnit,
    Interval,
    Ladder,
    LadderTraining,
    best_by_measure,
    coalition_key,
    coalitions,
    contribution_sentence,
    format_number,
    partner_orders,
    shapley_shares,
    train_ladder,
)
from fedsim.contribution.rungs import ResultStore, Rung, RungOutcome, SplitArrays
from fedsim.data.synthetic import CitySettings, generate_city
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import city_dataset
from job_fixtures import lay_out

PARTNERS = ("rentals", "schools")
TOP = {"format", "job", "hash", "unit", "metric", "task", "lower_is_better", "seeds", "records", "worth", "parts"} | {
    "split"
}


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few epochs, however much more would help: these tests tell a useful partner from a useless one all the same."""
    monkeypatch.setattr("fedsim.contribution.ladder.MAX_DOUBLINGS", 0)


def ladder_of(folder: Path, knobs: CitySettings) -> Ladder:
    city = city_dataset(generate_city(np.random.default_rng(1), knobs, flats=1200))
    rungs = LadderTraining(epochs=5, batch=64, members=1).rungs(
        [rung for rung in RUNGS if rung.key in (SOLO_WITH_IDENTIFIERS, FEDSIM_SHUFFLED, FEDSIM_WITH_IDENTIFIERS)]
    )
    cases = DatasetCases(city, secondaries=PARTNERS).each(["random"], range(1))
    return train_ladder(cases, rungs, ResultStore(folder), lambda _: None, tell_apart=True)


@pytest.mark.usefixtures("_short")
def test_a_partner_that_shows_the_hidden_value_is_worth_something_and_the_other_is_not(tmp_path: Path) -> None:
    ladder = ladder_of(tmp_path, CitySettings(value=1.0, school_value=0.0))
    assert ladder.contribution("random").low > 5.0
    found = ladder.to_dict()
    rentals, schools = found["partners"]
    whole = next(gain["estimate"] for gain in found["gains"] if gain["key"] == "contribution")
    assert (rentals["secondary"], schools["secondary"]) == PARTNERS
    assert rentals["estimate"] + schools["estimate"] == pytest.approx(whole)
    assert rentals["low"] > 5.0 > schools["high"]
    assert rentals["features"]["low"] > 5.0 > schools["features"]["high"]


@pytest.mark.usefixtures("_short")
def test_partners_that_show_nothing_are_worth_nothing(tmp_path: Path) -> None:
    gain = ladder_of(tmp_path, CitySettings(value=0.0, school_value=0.0)).contribution("random")
    assert gain.covers_zero
    assert gain.high < 5.0


def compare(folder: Path, *more: str) -> dict[str, object]:
    files = [str(folder / f"{name}.toml") for name in ("job", "city", "rentals")]
    with pytest.raises(SystemExit) as end:
        main(["compare", *files, "--out", str(folder / "out"), "--seeds", "1", "--epochs", "1", "--quiet", *more])
    assert not end.value.code
    return dict(json.loads((folder / "out" / "ladder.json").read_text()))


@pytest.mark.usefixtures("_short")
def test_compare_climbs_every_rung_of_both_splits_once(tmp_path: Path) -> None:
    lay_out(tmp_path, flats=80)
    ladder = compare(tmp_path, "--unit", "S$")
    assert set(ladder) == TOP | {"chosen", "rungs", "gains", "partners"}
    assert ladder["partners"] == []  # there is nothing to share out
    assert {(rung["key"], rung["split"]) for rung in ladder["rungs"]} == {
        (rung.key, split) for rung in RUNGS for split in ("random", "group")
    }
    assert {gain["key"] for gain in ladder["gains"]} == {"identifiers", "links", "features", "contribution", "total"}
    assert {rung["deviation"] for rung in ladder["rungs"]} == {None}  # one seed has none
    assert "S$" in ladder["worth"]
    assert ladder["split"] == "random"  # as the job
    trained = (tmp_path / "out" / "results.jsonl").read_text()
    assert compare(tmp_path, "--unit", "S$") == ladder
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert (tmp_path / "out" / "results.jsonl").read_text() == trained


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compared")
    lay_out(folder, flats=80)
    return compare(folder)


def test_the_parts_of_the_gain_add_up_to_the_headline(compared: dict[str, Any]) -> None:
    ladder = compared
    found = {gain["key"]: gain["estimate"] for gain in ladder["gains"] if gain["split"] == ladder["split"]}
    assert found["links"] + found["features"] == pytest.approx(found["contribution"])
    assert found["identifiers"] + found["contribution"] == pytest.approx(found["total"])
    score = {rung["key"]: rung["mean"] for rung in ladder["rungs"] if rung["split"] == ladder["split"]}
    (alone,), (together,) = ladder["chosen"]["alone"], ladder["chosen"]["together"]
    assert score[alone] - score[together] == pytest.approx(found["contribution"])


def test_the_rungs_that_the_worth_compares_are_named(compared: dict[str, Any]) -> None:
    ladder = compared
    score = {rung["key"]: rung["mean"] for rung in ladder["rungs"] if rung["split"] == ladder["split"]}
    (alone,), (together,) = ladder["chosen"]["alone"], ladder["chosen"]["together"]
    assert alone in WITHOUT_PARTNER
    assert together in WITH_PARTNER
    assert format_number(score[alone], 4) in ladder["worth"]
    assert format_number(score[together], 4) in ladder["worth"]
    assert "error in price" in ladder["worth"]  # no unit was given


@pytest.mark.parametrize(
    ("gain", "metric", "words"),
    [
        (Interval(3.1, 2.2, 4.0), "rmse", ("reduces the error by 3.1 S$", "interval 2.2 to 4)")),
        (Interval(-3.1, -4.0, -2.2), "rmse", ("increases the error by 3.1 S$", "interval 2.2 to 4)")),
        (Interval(0.5, -1.0, 2.0), "rmse", ("No contribution", "up to 2 S$ may have been missed", "interval -1 to 2)")),
        (Interval(0.1, 0.05, 0.2), "auc", ("increases the area under the curve by 0.1 ", "interval 0.05 to 0.2)")),
        (Interval(-0.1, -0.2, -0.05), "auc", ("reduces the area under the curve by 0.1 ", "interval 0.05 to 0.2)")),
    ],
)
def test_the_headline_states_direction_size_and_interval(gain: Interval, metric: str, words: tuple[str, ...]) -> None:
    sentence = contribution_sentence(gain, (15.6, 12.5), GainUnit(metric, "S$"), "group")
    assert all(word in sentence for word in words)


SURE = {"accuracy": 0.90, "log_loss": 0.30, "auc": 0.80}
RANKS_WELL = {"accuracy": 0.89, "log_loss": 0.35, "auc": 0.85}


def test_the_validation_records_choose_by_the_measure_that_the_ladder_is_judged_by() -> None:
    assert best_by_measure(AUC, {"sure": SURE, "ranks well": RANKS_WELL}) == "ranks well"


def test_trainings_that_were_not_measured_so_are_chosen_by_accuracy_and_then_log_loss() -> None:
    older = {"accuracy": 0.90, "log_loss": 0.25}
    assert best_by_measure(AUC, {"sure": SURE, "older": older, "ranks well": RANKS_WELL}) == "older"


def test_a_ladder_that_was_stopped_goes_on(tmp_path: Path) -> None:
    city = city_dataset(generate_city(np.random.default_rng(1), flats=200))
    rungs = LadderTraining(epochs=1).rungs(
        [rung for rung in RUNGS if rung.key in (SOLO_WITH_IDENTIFIERS, FEDSIM_SHUFFLED, FEDSIM_WITH_IDENTIFIERS)]
    )
    messages: list[str] = []

    def stop_after_two(message: str) -> None:
        messages.append(message)
        if len(messages) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_ladder(DatasetCases(city).each(["random"], [0]), rungs, ResultStore(tmp_path), stop_after_two)
    for _ in range(2):
        train_ladder(DatasetCases(city).each(["random"], [0]), rungs, ResultStore(tmp_path), messages.append)
    trained = ResultStore(tmp_path).lines
    assert len(messages) == len(trained)
    assert {line["settings"]["epochs"] for line in trained} > {1}


def test_a_network_that_stands_for_a_side_is_trained_until_it_stops_improving(tmp_path: Path) -> None:
    city = city_dataset(generate_city(np.random.default_rng(1), flats=120))
    (arrays,) = DatasetCases(city).each(["random"], [0])
    error = {2: 10.0, 4: 8.0, 8: 7.99, 16: 1.0}
    trained: list[tuple[str, int]] = []

    def train_rung(rung: Rung, arrays: SplitArrays) -> RungOutcome:
        trained.append((rung.key, rung.epochs))
        metrics = {"rmse": error[rung.epochs] + (rung.key != "fedsim")}
        figures = {"best_epoch": rung.epochs if rung.key == "fedsim" else 1, "limit": rung.epochs}
        return RungOutcome(np.zeros(len(arrays.split.test)), metrics, metrics, figures, np.zeros(0))

    rungs = [Rung("solo", "Solo", "solo", epochs=2), Rung("fedsim", "FedSim", "fedsim", epochs=2)]
    ladder = train_ladder([arrays], rungs, ResultStore(tmp_path), lambda _: None, train_rung)
    assert trained == [("solo", 2), ("fedsim", 2), ("fedsim", 4), ("fedsim", 8), ("fedsim-placebo", 8)]
    assert ladder.lines["fedsim", "random"][0]["limit"] == 8


@pytest.mark.parametrize("n", [3, 6])
def test_shares_are_shapley_values_that_add_up(n: int) -> None:
    names, rng = "abcdef"[:n], np.random.default_rng(0)
    worth = {members: float(rng.random()) for members in [(), *coalitions(names), tuple(names)]}
    keys = {(): "alone", tuple(names): "together"}
    scores = {keys.get(members) or coalition_key(members): -value for members, value in worth.items()}
    stored = BootstrapScores(scores, {key: np.full(5, value) for key, value in scores.items()})
    found = shapley_shares(stored, partner_orders(names), lower_is_better=True)
    assert sum(share.estimate for share in found.values()) == pytest.approx(worth[tuple(names)] - worth[()])
    if n > 4:  # only some orders are drawn, and the interval knows
        assert all(share.low < share.estimate < share.high for share in found.values())
        return
    for name, share in found.items():
        others = [members for members in worth if name not in members]
        weights = [math.factorial(len(m)) * math.factorial(n - len(m) - 1) / math.factorial(n) for m in others]
        gains = [worth[tuple(sorted((*members, name)))] - worth[members] for members in others]
        assert share.estimate == pytest.approx(float(np.dot(weights, gains)))
        assert share.low == pytest.approx(share.estimate) == share.high
