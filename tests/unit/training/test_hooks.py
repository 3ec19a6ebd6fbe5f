"""Optional hooks import their libraries late and say what to install."""

from __future__ import annotations

import sys

import pytest

from fedsim.errors import SettingError
from fedsim.training import train
from fedsim.training.hooks import WRITER_MODULES, MLflowHook, ProgressBar, TensorBoardHook
from training_fixtures import SPLIT, small_config, small_primary, small_secondaries


class Recorder:
    """Stands in for a library that is not installed here."""

    def __init__(self, folder=""):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, given))


def train_with(hook):
    return train(small_primary(), small_secondaries(), SPLIT, small_config(), hooks=[hook])


def test_a_progress_bar_prints_a_line_per_epoch_without_a_terminal(capsys):
    train_with(ProgressBar())
    printed = capsys.readouterr()
    assert (printed.out, [line.split(":")[0] for line in printed.err.splitlines()]) == (
        "",
        ["epoch 1 of 2", "epoch 2 of 2"],
    )


def test_tensorboard_gets_a_scalar_per_epoch_and_metric(monkeypatch, tmp_path):
    library = Recorder()
    library.SummaryWriter = lambda folder: library
    monkeypatch.setitem(sys.modules, WRITER_MODULES[0], library)
    train_with(TensorBoardHook(tmp_path))
    names = [given[0] for name, given in library.calls if name == "add_scalar"]
    assert names.count("validation/rmse") == names.count("loss/training") == 2
    assert names.count("test/rmse") == 1


def test_mlflow_gets_metrics_by_epoch(monkeypatch):
    library = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", library)
    train_with(MLflowHook())
    logged = [given[0] for name, given in library.calls if name == "log_metrics"]
    assert len(logged) == 3
    assert "test_rmse" in logged[-1]


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    for module in ("mlflow", *WRITER_MODULES):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match="mlflow"):
        MLflowHook()
    with pytest.raises(SettingError, match="tensorboardX"):
        TensorBoardHook(tmp_path)
