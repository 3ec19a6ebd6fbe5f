"""The primary's network predicts the same as an ONNX file and as a model of an MLflow registry."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

from fedsim.cli.app import app
from fedsim.errors import SettingError
from fedsim.hyperparameters import TrainingSettings
from fedsim.runtime.run_local import run_local
from fedsim.splitnn import Features
from fedsim.training import PrimaryData, SecondaryData, TaskType, boosted_trees, train
from fedsim.training.config import build_config
from fedsim.types import Links, Split
from fedsim_lab.faults.local_job import CITY, create_local_job
from fedsim_ops.onnx_export import OUTPUTS, PrimaryNetwork, WholeNetwork, register_model

STACKED = {
    "training": {"preset": "modern", "method": "stacked", "members": 1, "width": 8, "epochs": 1},
    "protection": {"embedding": "random"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a primary whose job has trees beside a network."""
    place = create_local_job(tmp_path_factory.mktemp("onnx") / "job", **STACKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted_trees, "ROUNDS", 3)
        run_local(place.job, [place.own(name) for name in place.names])
    return place.run(CITY)


def random_inputs(loaded: PrimaryNetwork, n_records: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n_records)
    return {
        name: rng.normal(size=(n_records, *zeros.shape[1:])).astype(zeros.dtype)
        for name, zeros in loaded.inputs.items()
    }


def network_outputs(loaded: PrimaryNetwork, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        return [found.numpy() for found in loaded.network(*map(torch.from_numpy, inputs.values()))]


@pytest.mark.filterwarnings("ignore")  # of MLflow about its own database
def test_a_file_and_a_registered_model_predict_what_the_network_predicts(run: Path, tmp_path: Path, monkeypatch):
    mlflow, file = pytest.importorskip("mlflow"), tmp_path / "ours.onnx"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report", str(run), "--onnx", str(file), "--register", "flats", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    facts = result["network"]
    assert (facts["method"], facts["trees"], facts["partners"]) == ("stacked", "not included", "least similar first")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    session, loaded = onnxruntime.InferenceSession(file), PrimaryNetwork.load(run)
    assert session.get_modelmeta().custom_metadata_map["job"] == facts["job"]
    registered = mlflow.pyfunc.load_model(result["registered"])
    for n_records in (1, 9):
        inputs = random_inputs(loaded, n_records)
        expected = network_outputs(loaded, inputs)
        for name, one, other in zip(OUTPUTS, session.run(None, inputs), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(registered.predict(inputs)[name], other, rtol=1e-5, atol=1e-5)
    (version,) = mlflow.MlflowClient().search_model_versions("name='flats'")
    logged = mlflow.get_run(version.run_id).data.params
    assert (logged["method"], logged["training.width"], logged["secondaries.rentals.k"]) == ("stacked", "8", "5")
    assert not any("address" in name for name in logged)


@pytest.mark.parametrize("package", ["onnxscript", "pandas", "onnxruntime", "mlflow"])
def test_a_missing_package_is_named_before_a_run_begins(package: str, run: Path, tmp_path: Path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for module in [name for name in sys.modules if name.startswith("mlflow.onnx")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingError) as caught:
        register_model(PrimaryNetwork.load(run), "flats")
    assert (caught.value.code, caught.value.package) == ("missing-package", package)
    assert mlflow.search_runs(search_all_experiments=True, output_format="list") == []


def test_a_server_that_is_away_is_reported(run: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    loaded = PrimaryNetwork.load(run)
    assert loaded.onnx
    with pytest.raises(SettingError) as caught:
        register_model(loaded, "flats")
    assert caught.value.code == "tracking-failed"


@pytest.mark.parametrize(
    ("preset", "method", "n_classes", "fields"),
    [
        ("modern", "fedsim", 0, 2),
        ("paper", "fedsim", 0, 1),
        ("paper", "avgsim", 2, 1),
        ("paper", "featuresim", 3, 2),
        ("paper", "top1sim", 2, 1),
    ],
)
def test_the_exported_network_predicts_what_the_model_predicts(preset: str, method: str, n_classes: int, fields: int):
    rng, n, m, k = np.random.default_rng(0), 60, 30, 4
    features = Features(rng.normal(size=(n, 3)), rng.integers(0, 20, (n, 1)), (20,))
    labels = rng.integers(0, n_classes, n) if n_classes else rng.normal(size=n)
    similarity = -np.sort(-rng.normal(size=(n, k, 1)), axis=1) + 0.01 * rng.normal(size=(n, k, fields))
    partner, split = rng.integers(0, m, (n, k)), Split(np.arange(40), np.arange(40, 50), np.arange(50, n))
    settings = TrainingSettings(preset=preset, epochs=1, members=2, width=8)
    config = build_config(method, settings, seed=0, device="cpu")
    kind = TaskType.CLASSES if n_classes else TaskType.NUMBERS
    secondary = SecondaryData(rng.normal(size=(m, 2)), partner, similarity)
    model = train(PrimaryData(features, labels, kind), [secondary], split, config).model
    given = config.method.arrange(Links(partner, similarity), rng)
    sent = model.groups[0][0].infer(torch.arange(m))[torch.from_numpy(given.partner)]
    tensors = torch.from_numpy(features.numbers), torch.from_numpy(features.codes)
    with torch.no_grad():
        found, _ = WholeNetwork(model)(*tensors, sent, torch.from_numpy(given.similarity).float())
    expected = model.predict(features, [Links(partner, similarity)])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
