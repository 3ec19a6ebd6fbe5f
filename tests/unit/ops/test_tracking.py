"""Training curves go to MLflow and TensorBoard, whose packages are imported late."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fedsim.errors import SettingError
from fedsim.estimator import FedSimRegressor
from fedsim.training import train
from fedsim_ops.tracking import WRITER_MODULES, MLflowHook, TensorBoardHook, tracking_hook
from training_fixtures import SPLIT, small_config, small_primary, small_secondaries


class Recorder:
    """Stands in for a library that is not installed here."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, given or named))


class MLflow(Recorder):
    """Counts the runs that are open."""

    exceptions = SimpleNamespace(MlflowException=ConnectionError)

    def __init__(self, runs=0):
        super().__init__()
        self.runs = runs

    def active_run(self):
        return self.runs or None

    def start_run(self, **named):
        self.calls.append(("start_run", named))
        self.runs += 1
        return SimpleNamespace(info=SimpleNamespace(run_id="an id"))

    def end_run(self, status="FINISHED"):
        self.calls.append(("end_run", status))
        self.runs -= 1


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


@pytest.mark.parametrize("open_runs", [0, 1])
def test_mlflow_gets_metrics_by_epoch_in_a_run_that_ends_unless_the_user_opened_it(monkeypatch, open_runs):
    library = MLflow(open_runs)
    monkeypatch.setitem(sys.modules, "mlflow", library)
    train_with(tracking_hook("mlflow:file:curves"))
    logged = [given[0] for name, given in library.calls if name == "log_metrics"]
    assert len(logged) == 3
    assert "test_rmse" in logged[-1]
    assert library.runs == open_runs
    assert ("set_tracking_uri", ("file:curves",)) in library.calls


def test_training_after_a_restart_goes_on_in_the_same_run_of_mlflow(monkeypatch):
    library = MLflow()
    monkeypatch.setitem(sys.modules, "mlflow", library)
    hook = MLflowHook(name="prices")
    for end in (hook.failed, lambda: hook.ended({})):
        hook.started(SimpleNamespace(epochs=1, device="cpu", job={}))
        end()
    runs = [call for call in library.calls if call[0] in ("start_run", "end_run")]
    assert runs == [
        ("start_run", {"run_name": "prices"}),
        ("end_run", "FAILED"),
        ("start_run", {"run_id": "an id"}),
        ("end_run", "FINISHED"),
    ]


def test_a_tracker_that_is_away_is_an_error_at_the_start_and_a_warning_later(monkeypatch, caplog):
    library = MLflow()
    monkeypatch.setitem(sys.modules, "mlflow", library)

    def fail(*_given, **_named):
        raise ConnectionError

    library.log_metrics = fail
    assert train_with(MLflowHook()).metrics
    assert "MLflow" in caplog.text
    library.start_run = fail
    with pytest.raises(SettingError) as caught:
        train_with(MLflowHook())
    assert caught.value.code == "tracking-failed"


def test_an_estimator_tracks_by_one_setting(monkeypatch):
    library = MLflow()
    monkeypatch.setitem(sys.modules, "mlflow", library)
    numbers = [[float(row)] for row in range(40)]
    FedSimRegressor(tracking="mlflow", members=1, epochs=1, device="cpu").fit(numbers, list(range(40)))
    assert [name for name, _ in library.calls].count("log_metrics") == 2
    with pytest.raises(SettingError) as caught:
        FedSimRegressor(tracking="tensorboard", epochs=1).fit(numbers, list(range(40)))
    assert caught.value.code == "unknown-tracking"


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    for module in ("mlflow", *WRITER_MODULES):
        monkeypatch.setitem(sys.modules, module, None)
    for create in (MLflowHook, lambda: TensorBoardHook(tmp_path)):
        with pytest.raises(SettingError) as caught:
            create()
        assert caught.value.code == "missing-package"
