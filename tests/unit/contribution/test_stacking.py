"""A network and boosted trees combined: the weight comes from validation, and nothing is trained twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.contribution.rungs import (
    LinkedSecondary,
    ResultStore,
    Rung,
    RungOutcome,
    SplitArrays,
    combine_outcomes,
    run_training,
    train_missing,
)
from fedsim.errors import SettingError
from fedsim.splitnn import Features
from fedsim.training.boosted_trees import WEIGHTS, ChosenTrees, TreeModel
from fedsim.types import Split

N = 60
SPLIT = Split(np.arange(30), np.arange(30, 45), np.arange(45, N))


def arrays_of(labels: np.ndarray, task: str = "regression") -> SplitArrays:
    columns = Features(np.zeros((N, 1), np.float32))
    return SplitArrays(columns, columns, (), labels, np.arange(N), SPLIT, {"task": task, "seed": 0, "split": "random"})


def test_the_weight_is_the_best_on_the_validation_records() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=N)
    first, second = labels + 0.5 * rng.normal(size=N), labels + 0.5 * rng.normal(size=N)
    found = combine_outcomes(
        arrays_of(labels), *([part[rows] for part in (first, second)] for rows in (SPLIT.test, SPLIT.validation))
    )
    errors = [np.square(w * first + (1 - w) * second - labels)[SPLIT.validation].mean() for w in WEIGHTS]
    assert found.figures["weight"] == WEIGHTS[int(np.argmin(errors))]
    assert found.validation["rmse"] == pytest.approx(min(errors) ** 0.5)
    np.testing.assert_allclose(
        found.predictions, (found.figures["weight"] * first + (1 - found.figures["weight"]) * second)[SPLIT.test]
    )


def test_probabilities_are_combined_by_their_log_loss() -> None:
    labels = np.arange(N) % 2
    sure = np.where(labels[:, None] == [[0, 1]], 0.9, 0.1)
    unsure = np.full((N, 2), 0.5)
    parts = ([part[rows] for part in (sure, unsure)] for rows in (SPLIT.test, SPLIT.validation))
    assert combine_outcomes(arrays_of(labels, "classification"), *parts).figures["weight"] == 1.0


def test_components_of_a_ladder_are_not_trained_again(tmp_path: Path) -> None:
    trained: list[tuple[str, str]] = []

    def train_rung(rung: Rung, arrays: SplitArrays) -> RungOutcome:
        trained.append((rung.method, rung.partner))
        zeros = {"rmse": 1.0}
        return RungOutcome(np.zeros(15), zeros, zeros, {"best_epoch": 2, "limit": 3}, np.zeros(15))

    rungs = [
        Rung("fedsim-identifiers", "FedSim", "fedsim", inputs="identifiers", epochs=3),
        Rung("trees-identifiers", "Trees", "trees", inputs="identifiers"),
        Rung("stacked", "Both", "stacked", inputs="identifiers", epochs=3),
    ]
    results, arrays = ResultStore(tmp_path), arrays_of(np.arange(N, dtype=float))
    train_missing([arrays], rungs, results, lambda _: None, train_rung)
    assert trained == [("fedsim", "real"), ("trees", "real")]
    assert results.line(rungs[2].result_key(arrays))["limit"] == 3


EMBEDDED = Rung("stacked", "Both", "stacked", inputs="embedded", epochs=3)


def linked_arrays(n: int = 400, rows: int = 50) -> SplitArrays:
    """Labels that follow from the embedding of the first partner alone, which only trees can see here."""
    rng = np.random.default_rng(0)
    embedding, partner = rng.normal(size=(rows, 3)).astype(np.float32), rng.integers(rows, size=(n, 2))
    columns, similarity = Features(rng.normal(size=(n, 1)).astype(np.float32)), np.tile([5.0, 0.0], (n, 1))
    secondary = LinkedSecondary(
        Features(embedding), np.arange(n), partner, similarity, np.full(n, -1), embedding=embedding
    )
    split, about = Split(*np.split(np.arange(n), [280, 320])), {"task": "regression", "seed": 0, "split": "random"}
    labels = 10.0 * embedding[partner[:, 0], 0].astype(np.float64)
    return SplitArrays(columns, columns, (secondary,), labels, np.arange(n), split, about)


def stack(folder: Path, rung: Rung, arrays: SplitArrays, train_trees: Any = None) -> dict[str, Any]:
    def train_rung(rung: Rung, arrays: SplitArrays) -> RungOutcome:
        if train_trees and not rung.trains_network:
            return train_trees(rung, arrays)
        metrics, split = {"rmse": 10.0}, arrays.split
        figures = {"best_epoch": 1, "limit": 3}
        return RungOutcome(np.zeros(len(split.test)), metrics, metrics, figures, np.zeros(len(split.validation)))

    results = ResultStore(folder)
    train_missing([arrays], [rung], results, lambda _: None, train_rung)
    return results.line(rung.result_key(arrays))


def test_trees_see_the_embedding_of_the_real_partner_and_learn_nothing_from_others(tmp_path: Path) -> None:
    arrays = linked_arrays()
    found = {kind: stack(tmp_path, replace(EMBEDDED, partner=kind), arrays) for kind in ("real", "placebo", "shuffled")}
    own = stack(tmp_path, replace(EMBEDDED, inputs="identifiers"), arrays)
    spread = float(arrays.labels[arrays.split.test].std())
    assert found["real"]["trees_see_partners"]
    assert found["real"]["test"]["rmse"] < 0.3 * spread
    # A placebo keeps the links, so trees may still tell its rows apart; another record's links say nothing.
    assert found["placebo"]["test"]["rmse"] > found["real"]["test"]["rmse"]
    assert found["shuffled"]["test"]["rmse"] > 0.9 * spread
    assert own["test"]["rmse"] > 0.9 * spread


@pytest.mark.parametrize("inputs", ["identifiers", "embedded"])
def test_validation_records_judge_trees_that_did_not_learn_them(
    inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refit = ChosenTrees.refit

    def absurd(chosen: ChosenTrees, *more: Any) -> TreeModel:
        model = refit(chosen, *more)
        return replace(model, trees=replace(model.trees, baseline=model.trees.baseline + 1e6))

    monkeypatch.setattr(ChosenTrees, "refit", absurd)
    arrays = linked_arrays()
    arrays = replace(arrays, own=Features(arrays.labels[:, None].astype(np.float32)))
    found = stack(tmp_path, replace(EMBEDDED, inputs=inputs), arrays, run_training)
    assert 100 * found["validation"]["rmse"] < found["test"]["rmse"]


def test_a_placebo_has_the_embedding_of_the_rows_that_its_network_sees() -> None:
    arrays, rung = linked_arrays(), replace(EMBEDDED, partner="placebo")
    (partners,), (secondary,) = rung.embedded_partners(arrays), rung.secondary_data(arrays)
    assert secondary.neighbours is not None
    np.testing.assert_array_equal(
        partners.rows[partners.neighbours.partner], secondary.features.numbers[secondary.neighbours.partner]
    )


def test_embedded_trees_are_another_training_beside_the_same_network() -> None:
    arrays, plain = linked_arrays(), replace(EMBEDDED, inputs="identifiers")
    store = ResultStore(Path("nowhere"))
    names = [store.name_of(rung.result_key(arrays)) for rung in (EMBEDDED, plain)]
    networks = [store.name_of(rung.components[0].result_key(arrays)) for rung in (EMBEDDED, plain)]
    assert names[0] != names[1]
    assert networks[0] == networks[1]


def test_without_an_embedding_there_is_nothing_to_see() -> None:
    arrays = linked_arrays()
    without = replace(arrays, secondaries=(replace(arrays.secondaries[0], embedding=None),))
    with raises(SettingError, "no-embedding"):
        EMBEDDED.embedded_partners(without)
