"""A network and boosted trees combined: the weight comes from validation, and nothing is trained twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.contribution.rungs import (
    ResultStore,
    Rung,
    RungOutcome,
    SplitArrays,
    combine_outcomes,
    train_missing,
)
from fedsim.splitnn import Features
from fedsim.training.boosted_trees import WEIGHTS
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
