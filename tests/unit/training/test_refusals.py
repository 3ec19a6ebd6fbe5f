"""What training refuses, and how it goes on from damage."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_fixtures import raises
from fedsim.errors import FedSimError, FileError, InputError, SettingError
from fedsim.splitnn.methods import FedSim, Solo
from fedsim.training import Config, Hook, PrimaryData, SecondaryData, TaskType, modern_preset, train
from fedsim.types import Split
from fedsim_lab.ablations import MeanMerge, SimilarityAsWeight
from fedsim_lab.paper_networks import ConvolutionMerge

RNG = np.random.default_rng(0)
SPLIT = Split(np.arange(30), np.arange(30, 40), np.arange(40, 50))
PRIMARY = PrimaryData(RNG.normal(size=(50, 3)), RNG.normal(size=50))
SECONDARY = SecondaryData(RNG.normal(size=(20, 2)), RNG.integers(0, 20, (50, 4)), RNG.normal(size=(50, 4)))
SHORT = Config(epochs=2, batch=16, device="cpu")


def weights(result: Any) -> list[np.ndarray]:
    return [tensor.numpy() for part in result.parts.values() for tensor in part.values()]


@pytest.mark.parametrize("goal", [TaskType.NUMBERS, TaskType.CLASSES])
def test_a_mean_needs_as_many_outputs_as_the_task(goal: TaskType) -> None:
    labels = PRIMARY.labels if goal is TaskType.NUMBERS else np.arange(50) % 3
    primary = PrimaryData(PRIMARY.features, labels, goal)
    with raises(SettingError, "mean-merge-outputs"):
        train(primary, [SECONDARY], SPLIT, replace(SHORT, method=FedSim(merge=MeanMerge())))


def test_signed_similarities_cannot_weigh_a_mean() -> None:
    method = FedSim(outputs=1, merge=MeanMerge(), weight=SimilarityAsWeight())
    with raises(SettingError, "mean-of-similarities"):
        train(PRIMARY, [SECONDARY], SPLIT, replace(SHORT, method=method))


@pytest.mark.parametrize(
    "settings",
    [{"epochs": "3"}, {"epochs": 1.5}, {"batch": True}, {"seed": -1}, {"seed": "x"}, {"patience": 0}],
    ids=str,
)
def test_settings_that_are_no_whole_numbers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Config(**settings)


@pytest.mark.parametrize(
    "method",
    [
        FedSim(merge=ConvolutionMerge(dropout=2.0)),
        FedSim(merge=ConvolutionMerge(dropout=1.0)),
        FedSim(merge=ConvolutionMerge(kernel=0)),
        FedSim(outputs=0),
    ],
    ids=["dropout 2", "dropout 1", "kernel 0", "outputs 0"],
)
def test_impossible_sizes_are_refused(method: FedSim) -> None:
    with pytest.raises(SettingError):
        train(PRIMARY, [SECONDARY], SPLIT, replace(SHORT, method=method))


@pytest.mark.parametrize(
    "primary",
    [
        PrimaryData(PRIMARY.features, PRIMARY.labels * 1e200),
        PrimaryData(PRIMARY.features, PRIMARY.labels + 1j),
        PrimaryData(np.zeros((50, 0)), PRIMARY.labels),
    ],
    ids=["too large", "complex", "no columns"],
)
def test_records_that_teach_nothing_are_refused(primary: PrimaryData) -> None:
    with pytest.raises(InputError):
        train(primary, [SECONDARY], SPLIT, SHORT)


def test_rows_of_a_split_are_whole_numbers() -> None:
    with raises(InputError, "split-rows"):
        train(PRIMARY, [SECONDARY], Split(np.arange(30) + 0.5, SPLIT.validation, SPLIT.test), SHORT)


def test_numpy_settings_are_written_as_plain_ones(tmp_path: Path) -> None:
    config = replace(SHORT, seed=np.int64(1), epochs=np.int32(1))
    train(PRIMARY, [SECONDARY], SPLIT, config, folder=str(tmp_path))
    assert (tmp_path / "log.jsonl").exists()


def test_test_records_do_not_shape_the_network() -> None:
    flags = RNG.integers(0, 2, (50, 3)).astype(float)
    other = flags.copy()
    other[45, 0] = 7.0
    alone = replace(modern_preset(Solo()), epochs=1, device="cpu")
    results = [train(PrimaryData(numbers, PRIMARY.labels), [], SPLIT, alone) for numbers in (flags, other)]
    first, second = ([tensor.shape for tensor in weights(result)] for result in results)
    assert first == second


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    longer = replace(SHORT, epochs=4)
    whole = train(PRIMARY, [SECONDARY], SPLIT, longer, folder=tmp_path / "whole")
    train(PRIMARY, [SECONDARY], SPLIT, longer, folder=tmp_path / "damaged")
    (tmp_path / "damaged" / "secondary" / "step-old").mkdir()
    newest = sorted((tmp_path / "damaged" / "secondary").glob("step-0*"))[-1]
    (newest / "tensors.safetensors").write_bytes(b"garbage")
    again = train(PRIMARY, [SECONDARY], SPLIT, longer, folder=tmp_path / "damaged")
    for ours, theirs in zip(weights(whole), weights(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_without_a_readable_checkpoint_training_starts_again_once_the_named_folder_is_gone(tmp_path: Path) -> None:
    whole = train(PRIMARY, [SECONDARY], SPLIT, SHORT, folder=tmp_path)
    shutil.rmtree(tmp_path / "secondary")
    with raises(FileError, "no-readable-checkpoint") as caught:
        train(PRIMARY, [SECONDARY], SPLIT, SHORT, folder=tmp_path)
    shutil.rmtree(caught.value.folder)
    again = train(PRIMARY, [SECONDARY], SPLIT, SHORT, folder=tmp_path)
    for ours, theirs in zip(weights(whole), weights(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_hooks_hear_of_a_run_that_breaks_off() -> None:
    class Watching(Hook):
        heard = False

        def stepped(self, step: int) -> None:
            raise KeyboardInterrupt

        def failed(self) -> None:
            self.heard = True

    hook = Watching()
    with pytest.raises(KeyboardInterrupt):
        train(PRIMARY, [SECONDARY], SPLIT, SHORT, hooks=[hook])
    assert hook.heard


def test_predicting_for_nobody_is_refused() -> None:
    model = train(PRIMARY, [], SPLIT, replace(SHORT, method=Solo())).model
    with raises(FedSimError, "no-records"):
        model.predict(np.zeros((0, 3)), [])
