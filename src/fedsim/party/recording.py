"""The primary notes what happens while it trains, and keeps a record of the run when it is done."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedsim.linkage.blind import Delivery
from fedsim.linkage.diagnostics import QUANTILES
from fedsim.party.error_groups import grouped
from fedsim.party.example_records import examples_of, parts_of, parts_without_gates
from fedsim.party.job import Job
from fedsim.party.own_table import OwnTable
from fedsim.party.protecting import frame_digest
from fedsim.party.run_progress import Progress
from fedsim.party.run_record import (
    CONFIDENCE,
    PREDICTED,
    ROW,
    TRUTH,
    Example,
    GateCurve,
    GateImportance,
    GroupError,
    ListSeen,
    PhaseCost,
    RunRecord,
    TableFacts,
    write_record,
)
from fedsim.party.versions import versions_here
from fedsim.protocol.messages import Phase
from fedsim.splitnn.gates.order import Neighbours
from fedsim.splitnn.methods import FedSim
from fedsim.training import Hook, PrimaryData, Result
from fedsim.training.data import as_features
from fedsim.training.explain import merge_attributions, weight_curves
from fedsim.training.history import Epoch
from fedsim.training.hooks import Outline
from fedsim.training.metrics import Metrics
from fedsim.types import Floats, Integers, Split

MOST_EXPLAINED = 256  # records whose predictions are taken apart
EXPLAIN = "explain"
CPU_FILE = Path("/proc/cpuinfo")


class PreparedRecords(Protocol):
    """The primary's own records, ready to train."""

    @property
    def data(self) -> PrimaryData: ...

    @property
    def classes(self) -> list[Any]: ...

    @property
    def split(self) -> Split: ...


class Watching(Hook):
    """Writes every step and epoch into the progress of a party."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def started(self, outline: Outline) -> None:
        self._progress.enter(Phase.TRAIN.value)
        before = self._progress.training.get("history", [])
        self._progress.training = {
            "epochs": outline.epochs,
            "steps_per_epoch": outline.steps_per_epoch,
            "steps": outline.epochs_done * outline.steps_per_epoch,
            "config": dict(outline.job),
            "history": [epoch for epoch in before if epoch["number"] <= outline.epochs_done],
        }

    def stepped(self, step: int) -> None:
        self._progress.training = {**self._progress.training, "steps": step + 1}

    def epoch_ended(self, epoch: Epoch) -> None:
        history = [*self._progress.training["history"], asdict(epoch)]
        self._progress.training = {**self._progress.training, "history": history}

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._progress.enter(EXPLAIN)

    def failed(self) -> None:
        """Told where the party tells of its end."""


@dataclass(frozen=True, eq=False)
class Gates:
    """What FedSim's gates have learnt, nothing for a method that has none; and a few records taken apart."""

    curves: list[GateCurve]
    importances: list[GateImportance]
    examples: list[Example]


def look_into(result: Result, prepared: PreparedRecords, lists: Sequence[Neighbours]) -> Gates:
    """The gates as the test records show them; asks the secondaries for nothing that the test did not."""
    rows = _explained(prepared.split)
    here = [Neighbours(neighbours.partner[rows], neighbours.similarity[rows]) for neighbours in lists]
    if not isinstance(result.model.config.method, FedSim):
        names = [holders[0].name for holders in result.model.groups]
        return Gates([], [], examples_of(rows, parts_without_gates(names, here)))
    found = merge_attributions(result.model, as_features(prepared.data.features).take(rows), here)
    return Gates(
        [GateCurve(c.party, c.similarity.tolist(), c.weight.tolist()) for c in weight_curves(result.model)],
        [GateImportance(part.party, np.abs(part.values).mean(axis=0).tolist()) for part in found],
        examples_of(rows, parts_of(found)),
    )


@dataclass(frozen=True, eq=False)
class Ended:
    """A training that has come to its end, with all that its record tells."""

    job: Job
    table: OwnTable
    prepared: PreparedRecords
    lists: Mapping[str, Delivery]
    result: Result
    gates: Gates

    def __repr__(self) -> str:
        return f"Ended({self.job.name})"


def keep_record(folder: Path, ended: Ended, progress: Progress) -> None:
    """Write the record of the run and the test records with their predictions."""
    seconds = progress.clock() - progress.start
    job, result = ended.job, ended.result
    record = RunRecord(
        job=job.described(),
        hash=job.hash,
        party=ended.table.own.name,
        started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=seconds,
        versions=versions_here(),
        machine=_machine(),
        config=dict(progress.training["config"]),
        table=_table_facts(ended),
        classes=ended.prepared.classes,
        history=[asdict(epoch) for epoch in result.history],
        best_epoch=result.best.number,
        metrics=result.metrics,
        lists=[_seen(ended, name, links) for name, links in ended.lists.items()],
        curves=ended.gates.curves,
        importances=ended.gates.importances,
        groups=_groups(ended),
        phases=[PhaseCost(stage["name"], stage["seconds"], stage["peak_bytes"]) for stage in progress.phases()],
        examples=ended.gates.examples,
    )
    write_record(folder, record, _tested(ended))
    progress.enter(Phase.END.value)


def _explained(split: Split) -> Integers:
    rows = split.test if len(split.test) else split.validation
    return np.asarray(rows[:MOST_EXPLAINED])


def _table_facts(ended: Ended) -> TableFacts:
    table, split = ended.table, ended.prepared.split
    return TableFacts(
        records=len(table),
        train=len(split.train),
        validation=len(split.validation),
        test=len(split.test),
        digest=frame_digest(table.frame),
        label=str(table.columns.label),
        features=table.features().columns,
    )


def _seen(ended: Ended, name: str, links: Delivery) -> ListSeen:
    hidden = ended.job.secondaries[name].hide_rows
    candidates = next(g[0].n_records for g in ended.result.model.groups if g[0].name == name)
    uses = np.bincount(links.partner.ravel(), minlength=candidates)
    times, how_many = np.unique(uses, return_counts=True)
    return ListSeen(
        secondary=name,
        k=links.partner.shape[1],
        records=len(links),
        candidates=None if hidden else candidates,
        similarity_by_rank=np.quantile(links.similarity, QUANTILES, axis=0).T.tolist(),
        reuse=[] if hidden else list(zip(times.tolist(), how_many.tolist(), strict=True)),
    )


def _tested(ended: Ended) -> pl.DataFrame:
    rows, classes = ended.prepared.split.test, ended.prepared.classes
    truth, found = ended.prepared.data.labels[rows], ended.result.predictions.get("test", np.zeros(0))
    columns: dict[str, Any] = {ROW: rows}
    if not classes:
        return pl.DataFrame(columns | {TRUTH: truth, PREDICTED: found})
    named = np.array([str(name) for name in classes], dtype=object)
    likeliest = _likeliest(found)
    confidence = found.max(axis=1) if len(rows) else found
    return pl.DataFrame(
        columns | {TRUTH: named[truth], PREDICTED: named[likeliest], CONFIDENCE: confidence},
        schema_overrides={TRUTH: pl.String, PREDICTED: pl.String},
    )


def _likeliest(probabilities: Floats) -> NDArray[Any]:
    return probabilities.argmax(axis=1) if len(probabilities) else np.zeros(0, np.int64)


def _groups(ended: Ended) -> list[GroupError]:
    rows, data = ended.prepared.split.test, ended.prepared.data
    found = ended.result.predictions.get("test")
    if found is None:
        return []
    numbers = not ended.prepared.classes
    wrong = found - data.labels[rows] if numbers else (found.argmax(axis=1) != data.labels[rows]).astype(np.float64)
    own = ended.table.features()[rows]
    columns = {name: own[name] for name in own.columns if name not in ended.table.columns.linking}
    for name, links in ended.lists.items():
        columns[f"similarity to the nearest of {name}"] = pl.Series(links.similarity[rows, 0])
    return grouped(columns, wrong, numbers=numbers)


def _machine() -> dict[str, str]:
    found = {"system": platform.system(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    model = _cpu_model()
    return found | ({"processor": model} if model else {})


def _cpu_model() -> str:
    try:
        lines = CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
