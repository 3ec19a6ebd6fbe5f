"""The primary's part of a trained model as an ONNX file, and as a model of an MLflow registry.

The secondaries' networks are not in it: they stay with their owners, who send the activations that it takes as inputs.

Letters: B records, d columns of numbers, e columns of codes, K partners, C width of the cut layer, F compared fields,
N members, T outputs of the task.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.config.job import Job
from fedsim.errors import SettingError
from fedsim.runs.record import read_run_record
from fedsim.runs.run_folder import TRAINED_MODEL
from fedsim.runtime.predictor import TrainedPrimary
from fedsim.runtime.primary import TREES_MODEL, training_config
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn import gates, layers, methods, secondary_model
from fedsim.storage.files import atomic_write
from fedsim.training import Model, NeighbourList
from fedsim.training.data import LEAST_PROBABILITY, MAX_LABEL, ClassTarget, LogTarget, NumericTarget, Target
from fedsim.types import AnyArray, Links
from fedsim.version import VERSION

OUTPUTS = ("prediction", "spread")
EXAMPLE_RECORDS = 2
LOGGED_SECTIONS = ("seed", "task", "training", "protection", "secondaries")  # of a job; not its addresses
# A server that is away is found within seconds instead of minutes; what is sent later has MLflow's own patience.
FIRST_CONTACT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class WholeNetwork(nn.Module):
    """Members, the mean of their predictions in the label's unit, and how far they disagree."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.networks = nn.ModuleList(methods.member_networks(model.primary.model.network))
        self.target, self.task = model.target, model.primary.task

    def forward(self, numbers: Tensor, codes: Tensor, *lists: Tensor) -> tuple[Tensor, Tensor]:
        branches = []
        for sent, similarity in zip(lists[::2], lists[1::2], strict=True):  # (B, K, C), (B, K, F)
            n_pairs = sent.shape[0] * sent.shape[1]
            position = torch.arange(n_pairs).reshape(sent.shape[0], sent.shape[1])  # every pair has its own row
            branches.append(gates.Branch((sent.reshape(n_pairs, sent.shape[2]),), position, similarity))
        batch = gates.Batch(layers.FeatureTensors(numbers, codes), branches)
        scores = [network(batch) for network in self.networks]  # each (B, M, T)
        found = torch.stack([self.task.predict(member)[:, 0] for member in scores])  # (N, B)
        prediction = self.task.predict(torch.cat(scores, dim=1))  # (B, T)
        return decode(self.target, prediction), found.std(dim=0, correction=0)


def decode(target: Target, prediction: Tensor) -> Tensor:
    """Return predictions of a network as :meth:`Target.decode_predictions` does, by operations of a network."""
    if isinstance(target, LogTarget):
        limit = float(np.log(MAX_LABEL))
        return decode(target.inner, prediction).clamp(-limit, limit).exp()
    if isinstance(target, NumericTarget):
        return target.shift + target.scale * prediction[:, 0]
    every = torch.cat([1 - prediction, prediction], dim=1) if prediction.shape[1] == 1 else prediction
    if not isinstance(target, ClassTarget) or target.temperature == 1.0:
        return every
    return (every.clamp_min(LEAST_PROBABILITY).log() / target.temperature).softmax(dim=1)


@dataclass(frozen=True, eq=False)
class PrimaryNetwork:
    """The network of a finished run, inputs of zeros by name (no records), and facts for its users."""

    network: WholeNetwork
    inputs: dict[str, AnyArray]
    facts: dict[str, str]
    metrics: dict[str, float]  # of the test records
    settings: dict[str, str]  # of the job, such as training.epochs

    @classmethod
    def load(cls, folder: Path) -> PrimaryNetwork:
        """Load the primary's network from its run folder."""
        record = read_run_record(folder)
        job = Job.from_dict(record.job)
        store, lists = RunStore(folder, job), []
        trained = TrainedPrimary.load(store, TRAINED_MODEL)
        for name, terms in job.secondaries.items():
            sent: Any = training_config(job).secondary.local
            holder: Any = secondary_model.AbsentSecondary(name, sent.cut, terms.k)
            lists.append(NeighbourList(Links.without_records(terms.k, terms.n_similarities), (holder,)))
        model = trained.model(job, record.party, lists)
        method, inputs = model.config.method, {}
        inputs["numbers"] = np.zeros((EXAMPLE_RECORDS, model.columns[0]), np.float32)
        inputs["codes"] = np.zeros((EXAMPLE_RECORDS, model.columns[1]), np.int64)
        for one in lists:
            used = method.arrange(one.neighbours, np.random.default_rng(0))
            (holder,) = one.holders
            inputs[f"activations_{holder.name}"] = np.zeros((EXAMPLE_RECORDS, used.k, holder.width), np.float32)
            similarity = np.zeros((EXAMPLE_RECORDS, *used.similarity.shape[1:]), np.float32)
            inputs[f"similarity_{holder.name}"] = similarity
        facts = {
            "fedsim": VERSION,
            "name": job.name,
            "job": job.hash,
            "method": job.training.method,
            "partners": "least similar first" if isinstance(method, methods.FedSim) else "most similar first",
            "trees": "not included" if store.has_weights(TREES_MODEL) else "none",
        }
        metrics = {f"test_{metric}": value for metric, value in record.metrics.get("test", {}).items()}
        logged = {section: record.job[section] for section in LOGGED_SECTIONS if section in record.job}
        return cls(WholeNetwork(model).eval(), inputs, facts, metrics, flatten_settings(logged))

    @cached_property
    def onnx(self) -> Any:
        """The network as an ONNX model for any number of records."""
        loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
        before = [logger.level for logger in loggers]
        for logger in loggers:  # they report libraries and optimisations that nothing here needs
            logger.setLevel(logging.ERROR)
        records: Any = torch.export.Dim("records", min=1)
        sizes = [{0: records} for _ in self.inputs]
        shapes = (*sizes[:2], *([tuple(sizes[2:])] if len(sizes) > 2 else []))
        try:
            import_module("onnxscript")
            tensors = tuple(torch.from_numpy(array) for array in self.inputs.values())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch about its own use of torch
                program: Any = torch.onnx.export(
                    self.network,
                    tensors,
                    dynamo=True,
                    dynamic_shapes=shapes,
                    input_names=list(self.inputs),
                    output_names=list(OUTPUTS),
                    verbose=False,
                )
        except ImportError as error:
            raise _missing_package("an ONNX file", error, "onnx") from error
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
        found = program.model_proto
        for name, fact in self.facts.items():
            found.metadata_props.add(key=name, value=fact)
        return found


def write_onnx(loaded: PrimaryNetwork, path: Path) -> None:
    """Write the network to an ONNX file that only its owner may read."""
    content = loaded.onnx.SerializeToString()
    with atomic_write(path, mode=0o600) as part:
        part.write_bytes(content)


def register_model(loaded: PrimaryNetwork, name: str) -> str:
    """Log the network to MLflow, as MLflow is set, and register it under a name; return its address there."""
    try:
        mlflow: Any = import_module("mlflow")
        flavour: Any = import_module("mlflow.onnx")
        import_module("onnxruntime")  # MLflow looks for it in the middle of a run
    except ImportError as error:
        raise _missing_package("registering a model", error, "onnx,tracking") from error
    model = loaded.onnx  # before a run begins that would remain as a failed one
    with torch.no_grad():
        found = loaded.network(*(torch.from_numpy(array) for array in loaded.inputs.values()))
    outputs = {part: values.numpy() for part, values in zip(OUTPUTS, found, strict=True)}
    signature = mlflow.models.infer_signature(loaded.inputs, outputs)
    try:
        with _defaults_in_environment(FIRST_CONTACT):
            mlflow.search_experiments(max_results=1)
        with mlflow.start_run(run_name=loaded.facts["name"]):
            mlflow.log_params({**loaded.settings, **loaded.facts})
            mlflow.log_metrics(loaded.metrics)
            logged = flavour.log_model(model, name="primary", signature=signature, registered_model_name=name)
    except mlflow.exceptions.MlflowException as error:
        message = f"MLflow did not accept the model ({type(error).__name__}); check MLFLOW_TRACKING_URI and the name"
        raise SettingError(message, code="tracking-failed") from error
    return str(logged.model_uri)


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the numbers, words and switches of nested settings by dotted names; lists and schemas are left out.

    >>> flatten_settings({"training": {"epochs": 3, "patience": None}, "seed": 7})
    {'training.epochs': '3', 'seed': '7'}
    """
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and name != "schema":
            flat |= flatten_settings(value, f"{prefix}{name}.")
        elif isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = str(value)
    return flat


def _missing_package(purpose: str, error: ImportError, extras: str) -> SettingError:
    package = (error.name or "mlflow").partition(".")[0]
    message = f"{purpose} requires the package {package}; install fedsim-vfl[{extras}]"
    return SettingError(message, code="missing-package", package=package)


@contextmanager
def _defaults_in_environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that are not set yet, until the block ends."""
    new = settings.keys() - os.environ.keys()
    os.environ.update({name: settings[name] for name in new})
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def export_network(folder: Path, onnx: Path | None, name: str | None) -> tuple[dict[str, Any], list[str]]:
    """Write the network of a run as an ONNX file, or register it under a name; return facts and lines about it."""
    network = PrimaryNetwork.load(folder)
    value: dict[str, Any] = {"network": network.facts}
    lines = []
    if network.facts["trees"] == "not included":
        lines.append("The trees beside the network are not included")
    if onnx is not None:
        write_onnx(network, onnx)
        lines.append(f"Wrote {onnx}: the primary's network; it expects partners {network.facts['partners']}")
    if name is not None:
        value["registered"] = register_model(network, name)
        lines.append(f"Registered {value['registered']} as '{name}'")
    return value, lines
