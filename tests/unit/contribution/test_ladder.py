"""The honest ladder: what it trains and reports, and that it distinguishes a useful partner from a useless one."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import replace
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
    best_by_measure,
    coalition_key,
    coalitions,
    contribution_sentence,
    few_records_sentence,
    format_number,
    limit_sentence,
    partner_orders,
    shapley_shares,
    train_ladder,
    with_settings,
)
from fedsim.contribution.rungs import ResultStore, Rung, RungOutcome, SplitArrays
from fedsim.data.synthetic import CitySettings, generate_city
from fedsim.hyperparameters import TrainingSettings
from fedsim.report.run_data import read_ladder
from fedsim_lab.dataset_cases import DatasetCases
from fedsim_lab.datasets.generated import city_dataset
from job_fixtures import lay_out

PARTNERS = ("rentals", "schools")
TOP = {"format", "job", "hash", "unit", "metric", "task", "lower_is_better", "seeds", "records", "split", "worth"}
TOP |= {"limited", "models", "headline", "caveats", "sides"}


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few epochs, however much more would help: these tests tell a useful partner from a useless one all the same."""
    monkeypatch.setattr("fedsim.contribution.ladder.MAX_DOUBLINGS", 0)


def ladder_of(folder: Path, knobs: CitySettings) -> Ladder:
    city = city_dataset(generate_city(np.random.default_rng(1), knobs, flats=1200))
    rungs = with_settings(
        TrainingSettings(epochs=5, batch_size=64, members=1),
        [rung for rung in RUNGS if rung.key in (SOLO_WITH_IDENTIFIERS, FEDSIM_SHUFFLED, FEDSIM_WITH_IDENTIFIERS)],
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
    assert all(scored["low"] < scored["high"] for scored in [*ladder["rungs"], *ladder["sides"]])
    assert {side["key"] for side in ladder["sides"]} == {"alone", "placebo", "together"}
    assert read_ladder(tmp_path / "out").sides[0].models == tuple(ladder["sides"][0]["models"])
    assert ladder["headline"] in (tmp_path / "out" / "report.html").read_text().replace("&#39;", "'")
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
        (Interval(0.5, -1.0, 2.0), "rmse", ("No contribution", "0.5 S$ lower (12.5", "up to 2 S$", "gain, -1 to 2,")),
        (Interval(-0.5, -2.0, 1.0), "rmse", ("No contribution", "0.5 S$ higher", "up to 1 S$", "gain, -2 to 1,")),
        (Interval(0.02, -0.1, 0.2), "auc", ("No contribution", "curve is 0.02 higher", "up to 0.2 ")),
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


USUAL = 100  # epochs of a job with so few records, with a patience of 20


class StubTraining:
    """Networks whose error falls by one in every epoch, until each reaches its best one."""

    def __init__(self, best_epoch: dict[str, int]) -> None:
        self.best_epoch = best_epoch
        self.trained: list[tuple[str, int | None]] = []

    def __call__(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
        self.trained.append((rung.key, rung.epochs))
        limit, size = rung.epochs or USUAL, len(arrays.split.test)
        best = min(limit, self.best_epoch[rung.key.replace("-placebo", "")])
        metrics = {"rmse": 1000.0 - best}
        figures = {"best_epoch": best, "limit": limit, "patience": 20} if rung.trains_network else {"best_epoch": best}
        values = np.full(len(arrays.split.validation), float(best))
        return RungOutcome(np.full(size, float(best)), metrics, metrics, figures, values)


class StoppedTraining(StubTraining):
    """The same, stopped after some trainings."""

    def __init__(self, best_epoch: dict[str, int], after: int) -> None:
        super().__init__(best_epoch)
        self.after = after

    def __call__(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
        if len(self.trained) == self.after:
            raise KeyboardInterrupt
        return super().__call__(rung, arrays)


def stub_ladder(folder: Path, rungs: list[Rung], train: StubTraining, **options: bool) -> Ladder:
    city = city_dataset(generate_city(np.random.default_rng(1), flats=120))
    cases = DatasetCases(city).each(["random"], [0])
    return train_ladder(cases, rungs, ResultStore(folder), lambda _: None, train, **options)


def networks(epochs: int | None, *names: str) -> list[Rung]:
    return [Rung(name, name, name, epochs=epochs) for name in names]


def test_networks_train_for_the_default_length_and_then_until_they_stop_improving(tmp_path: Path) -> None:
    train = StubTraining({"solo": 30, "fedsim": 150})
    ladder = stub_ladder(tmp_path, networks(2, "solo", "fedsim"), train)
    assert train.trained[:5] == [("solo", 2), ("fedsim", 2), ("solo", None), ("fedsim", None), ("fedsim", 200)]
    assert train.trained[5:] == [("fedsim-placebo", 200)]
    assert [ladder.lines[name, "random"][0]["limit"] for name in ("solo", "fedsim")] == [USUAL, 200]
    assert not ladder.to_dict()["limited"]


def test_a_ladder_that_was_stopped_goes_on(tmp_path: Path) -> None:
    rungs, train = networks(1, "solo", "fedsim"), StubTraining({"solo": 30, "fedsim": 150})
    with pytest.raises(KeyboardInterrupt):
        stub_ladder(tmp_path, rungs, StoppedTraining(train.best_epoch, after=3))
    for _ in range(2):
        stub_ladder(tmp_path, rungs, train)
    assert train.trained == [("fedsim", None), ("fedsim", 200), ("fedsim-placebo", 200)]


def test_the_contribution_does_not_depend_on_the_first_number_of_epochs(tmp_path: Path) -> None:
    best = {"solo": 30, "fedsim": 150, "avgsim": 60}
    found = {
        epochs: stub_ladder(tmp_path / str(epochs), networks(epochs, *best), StubTraining(best)).to_dict()["gains"]
        for epochs in (2, 8, 40, USUAL, None)
    }
    assert all(gains == found[None] for gains in found.values())


def test_the_best_is_chosen_after_all_have_stopped_improving(tmp_path: Path) -> None:
    class SlowStart(StubTraining):
        def __call__(self, rung: Rung, arrays: SplitArrays) -> RungOutcome:
            outcome = super().__call__(rung, arrays)
            is_late = rung.method == "fedsim" and outcome.figures["best_epoch"] < 120
            return replace(outcome, validation={"rmse": 2000.0}) if is_late else outcome

    ladder = stub_ladder(
        tmp_path, networks(None, "solo", "avgsim", "fedsim"), SlowStart({"solo": 30, "avgsim": 60, "fedsim": 150})
    )
    assert ladder.to_dict()["chosen"]["together"] == ["fedsim"]


def test_a_placebo_partner_trains_as_long_as_the_partner_that_it_is_compared_with(tmp_path: Path) -> None:
    train = StubTraining({"solo": 30, "avgsim": 150, "fedsim": 60})
    placebo = replace(networks(2, "fedsim")[0], key="fedsim-placebo", partner="placebo")
    stub_ladder(tmp_path, [*networks(2, "solo", "avgsim", "fedsim"), placebo], train)
    lengths = {key: [epochs for name, epochs in train.trained if name == key] for key in ("fedsim", "fedsim-placebo")}
    assert lengths["fedsim-placebo"][-1] == lengths["fedsim"][-1] != 2


def test_few_test_records_are_named_in_the_headline(tmp_path: Path) -> None:
    found = stub_ladder(tmp_path, networks(2, "solo", "fedsim"), StubTraining({"solo": 3, "fedsim": 3})).to_dict()
    assert found["records"] == 24
    assert few_records_sentence(24) in found["worth"]


def test_the_network_of_a_stack_decides_how_long_it_trains(tmp_path: Path) -> None:
    train = StubTraining({"solo": 30, "stacked-network": 150, "stacked-trees": 900})  # the trees get all the weight
    stacked = Rung("stacked", "Both", "stacked", inputs="identifiers", epochs=2)
    ladder = stub_ladder(tmp_path, [*networks(2, "solo"), stacked], train)
    assert [epochs for key, epochs in train.trained if key == "stacked-network"] == [2, None, 200]
    assert ladder.lines["stacked", "random"][0]["limit"] == 200


def test_a_network_that_never_stops_is_trained_for_some_doublings_and_the_headline_says_so(tmp_path: Path) -> None:
    train = StubTraining({"solo": 30, "fedsim": 10_000})
    found = stub_ladder(tmp_path, networks(None, "solo", "fedsim"), train).to_dict()
    assert [epochs for key, epochs in train.trained if key == "fedsim"] == [None, 200, 400, 800]
    assert found["limited"]
    assert limit_sentence(2, 3) in found["worth"]  # FedSim and its placebo
    assert {rung["key"] for rung in found["rungs"] if rung["improving"]} == {"fedsim"}


def test_a_ladder_that_is_not_lengthened_says_that_its_epochs_limit_it(tmp_path: Path) -> None:
    train = StubTraining({"solo": 30, "fedsim": 150})
    found = stub_ladder(tmp_path, networks(8, "solo", "fedsim"), train, lengthen=False).to_dict()
    assert {epochs for _, epochs in train.trained} == {8}
    assert limit_sentence(3, 3) in found["worth"]


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


def test_a_ladder_without_places_does_not_repeat_the_rung_that_bins_them(tmp_path: Path) -> None:
    rungs = [Rung("solo", "Solo", "solo"), Rung("fedsim", "FedSim", "fedsim")]
    rungs += [Rung(f"solo-{inputs}", inputs, "solo", inputs=inputs) for inputs in ("identifiers", "binned")]
    best = {"solo": 3, "fedsim": 3, "solo-identifiers": 3, "solo-binned": 3}
    city = DatasetCases(city_dataset(generate_city(np.random.default_rng(1), flats=120)))
    with_places = next(iter(city.each(["random"], [0])))
    plain = [replace(part, periodic=()) for part in (with_places.primary, with_places.own)]
    for arrays, found in ((with_places, 4), (replace(with_places, primary=plain[0], own=plain[1]), 3)):
        ladder = train_ladder([arrays], rungs, ResultStore(tmp_path), lambda _: None, StubTraining(best))
        assert len(ladder.to_dict()["rungs"]) == found
