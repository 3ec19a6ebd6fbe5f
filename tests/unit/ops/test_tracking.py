"""Training curves go to TensorBoard, whose package is imported late."""

from __future__ import annotations

import sys

import pytest

from fedsim.errors import SettingError
from fedsim.estimator import FedSimRegressor
from fedsim.training import train
from fedsim_ops.tracking import WRITER_MODULES, TensorBoardHook, tracking_hook
from training_fixtures import SPLIT, small_config, small_primary, small_secondaries


class Recorder:
    """Stands in for a library that is not installed here."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, given or named))


def train_with(hook):
    return train(small_primary(), small_secondaries(), SPLIT, small_config(), hooks=[hook])


def test_tensorboard_gets_a_scalar_per_epoch_and_metric(monkeypatch, tmp_path):
    library = Recorder()
    library.SummaryWriter = lambda folder: library
    monkeypatch.setitem(sys.modules, WRITER_MODULES[0], library)
    train_with(tracking_hook(f"tensorboard:{tmp_path}"))
    names = [given[0] for name, given in library.calls if name == "add_scalar"]
    assert names.count("validation/rmse") == names.count("loss/training") == 2
    assert names.count("test/rmse") == 1


def test_an_estimator_tracks_by_one_setting(monkeypatch, tmp_path):
    library = Recorder()
    library.SummaryWriter = lambda folder: library
    monkeypatch.setitem(sys.modules, WRITER_MODULES[0], library)
    numbers = [[float(row)] for row in range(40)]
    settings = {"members": 1, "epochs": 1, "device": "cpu"}
    FedSimRegressor(tracking=f"tensorboard:{tmp_path}", **settings).fit(numbers, list(range(40)))
    assert "close" in [name for name, _ in library.calls]
    for unknown in ("tensorboard", "mlflow"):
        with pytest.raises(SettingError) as caught:
            FedSimRegressor(tracking=unknown, **settings).fit(numbers, list(range(40)))
        assert caught.value.code == "unknown-tracking"


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    for module in WRITER_MODULES:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError) as caught:
        TensorBoardHook(tmp_path)
    assert caught.value.code == "missing-package"
