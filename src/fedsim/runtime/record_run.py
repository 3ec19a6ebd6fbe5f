"""Track the primary's training and write the record of the run, with gates and example records."""

from __future__ import annotations

import math
import os
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from fedsim.config.job import Job
from fedsim.linkage.private_linkage import PrivateLinks
from fedsim.linkage.soft_linkage import QUANTILES
from fedsim.protocol.messages import Phase
from fedsim.runs.progress import PartyProgress
from fedsim.runs.record import (
    CONFIDENCE_COLUMN,
    PREDICTED_COLUMN,
    ROW_COLUMN,
    TRUTH_COLUMN,
    ExamplePartner,
    ExampleRecord,
    GateCurve,
    GateImportance,
    GroupError,
    LinkListSummary,
    PhaseCost,
    RunRecord,
    TableSummary,
    errors_by_group,
    write_run_record,
)
from fedsim.runtime.party_context import software_versions
from fedsim.runtime.party_data import PartyData
from fedsim.runtime.run_store import frame_digest
from fedsim.splitnn.gates import Neighbours
from fedsim.splitnn.methods import FedSim
from fedsim.training import Hook, TrainingResult
from fedsim.training.data import as_features
from fedsim.training.explain import Attribution, merge_attributions, weight_curves
from fedsim.training.labels import Metrics
from fedsim.training.loop import Epoch, TrainingOutline
from fedsim.types import Floats, Integers

if TYPE_CHECKING:
    from fedsim.runtime.primary import PreparedPrimary

N_EXAMPLES = 5
MAX_EXAMPLE_PARTNERS = 5
MAX_EXPLAINED = 256  # test records whose predictions are explained
EXPLAIN_STAGE = "explain"
CPU_FILE = Path("/proc/cpuinfo")


# Example records stay in the primary's folder. A record is known by its row in the primary's table, which a report
# omits unless its owner asks for it; a partner by a number that counts from one, because the pseudonyms of a job mean
# something to the secondary and these numbers to nobody. Letters: n records, K partners.


@dataclass(frozen=True, eq=False)
class PartnerContributions:
    """The partners of records in one list; weight and share are NaN if the method has no gates."""

    secondary: str
    partner: Integers  # (n, K)
    similarity: Floats  # (n, K)
    weight: Floats  # (n, K)
    share: Floats  # (n, K) of all contributions to a prediction


def partner_contributions(attributions: Sequence[Attribution]) -> list[PartnerContributions]:
    """Return the share of every partner in the contributions of all lists."""
    sizes = [np.abs(one.values).sum(axis=2) for one in attributions]  # (n, K)
    total = np.maximum(sum(size.sum(axis=1) for size in sizes), np.finfo(float).tiny)  # (n,)
    return [
        PartnerContributions(one.party, one.partner, one.similarity, one.weight, size / total[:, None])
        for one, size in zip(attributions, sizes, strict=True)
    ]


def contributions_without_gates(names: Sequence[str], lists: Sequence[Neighbours]) -> list[PartnerContributions]:
    """Return the similarities alone."""
    return [
        PartnerContributions(name, one.partner, one.similarity, *[np.full(one.similarity.shape, math.nan)] * 2)
        for name, one in zip(names, lists, strict=True)
    ]


def choose_examples(rows: Integers, parts: Sequence[PartnerContributions]) -> list[ExampleRecord]:
    """Choose some records, from the best to the worst linked one; ``rows`` are their rows in the table."""
    if not parts or not len(rows):
        return []
    order = np.argsort(-parts[0].similarity.max(axis=1), kind="stable")
    places = order[np.unique(np.linspace(0, len(order) - 1, N_EXAMPLES).round().astype(np.int64))]
    found = []
    for one in parts:
        fresh = count(1)
        number: defaultdict[int, int] = defaultdict(fresh.__next__)
        found += [
            ExampleRecord(int(rows[place]), one.secondary, _example_partners(one, place, number)) for place in places
        ]
    return found


def _example_partners(one: PartnerContributions, place: int, number: defaultdict[int, int]) -> list[ExamplePartner]:
    """Return the most similar partners first; a repeated partner keeps its number, and gaps are left out."""
    best = np.argsort(-one.similarity[place], kind="stable")[:MAX_EXAMPLE_PARTNERS]
    known = [at for at in best if one.partner[place, at] >= 0]
    weights, shares = ([float(v) if math.isfinite(v) else None for v in m[place]] for m in (one.weight, one.share))
    return [
        ExamplePartner(number[int(one.partner[place, at])], float(one.similarity[place, at]), weights[at], shares[at])
        for at in known
    ]


class RunProgressHook(Hook):
    """Writes every step and epoch to the progress of a party."""

    def __init__(self, progress: PartyProgress) -> None:
        self._progress = progress

    def started(self, outline: TrainingOutline) -> None:
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
        self._progress.enter(EXPLAIN_STAGE)

    def failed(self) -> None:
        """Do nothing: the party itself reports its failure."""


@dataclass(frozen=True, eq=False)
class GateSummary:
    """What the gates of FedSim have learned (empty for other methods), and a few example records."""

    curves: list[GateCurve]
    importances: list[GateImportance]
    examples: list[ExampleRecord]


def summarise_gates(result: TrainingResult, prepared: PreparedPrimary, lists: Sequence[Neighbours]) -> GateSummary:
    """Summarise the gates on test records; requests nothing from the secondaries that the test did not."""
    split = prepared.split
    rows = np.asarray((split.test if len(split.test) else split.validation)[:MAX_EXPLAINED])
    here = [Neighbours(neighbours.partner[rows], neighbours.similarity[rows]) for neighbours in lists]
    if not isinstance(result.model.config.method, FedSim):
        names = [holders[0].name for holders in result.model.groups]
        return GateSummary([], [], choose_examples(rows, contributions_without_gates(names, here)))
    found = merge_attributions(result.model, as_features(prepared.data.features).take(rows), here)
    return GateSummary(
        [GateCurve(c.party, c.similarity.tolist(), c.weight.tolist()) for c in weight_curves(result.model)],
        [GateImportance(part.party, np.abs(part.values).mean(axis=0).tolist()) for part in found],
        choose_examples(rows, partner_contributions(found)),
    )


@dataclass(frozen=True, eq=False)
class CompletedTraining:
    """A completed training, with everything that goes into its record."""

    job: Job
    table: PartyData
    prepared: PreparedPrimary
    lists: Mapping[str, PrivateLinks]
    result: TrainingResult
    gates: GateSummary

    def __repr__(self) -> str:
        return f"CompletedTraining({self.job.name})"


def save_run_record(folder: Path, ended: CompletedTraining, progress: PartyProgress) -> None:
    """Write the record of the run, and the test records with their predictions."""
    seconds = progress.clock() - progress.start
    job, result = ended.job, ended.result
    record = RunRecord(
        job=job.to_dict(),
        hash=job.hash,
        party=ended.table.own.name,
        started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=seconds,
        versions=software_versions(),
        machine=_machine_facts(),
        config=dict(progress.training["config"]),
        table=_table_summary(ended),
        classes=ended.prepared.classes,
        history=[asdict(epoch) for epoch in result.history],
        best_epoch=result.best.number,
        metrics=result.metrics,
        lists=[_link_list_summary(ended, name, links) for name, links in ended.lists.items()],
        curves=ended.gates.curves,
        importances=ended.gates.importances,
        groups=_errors_by_group(ended),
        phases=[PhaseCost(stage["name"], stage["seconds"], stage["peak_bytes"]) for stage in progress.phases()],
        examples=ended.gates.examples,
    )
    write_run_record(folder, record, _test_predictions(ended))
    progress.enter(Phase.END.value)


def _table_summary(ended: CompletedTraining) -> TableSummary:
    table, split = ended.table, ended.prepared.split
    return TableSummary(
        records=len(table),
        train=len(split.train),
        validation=len(split.validation),
        test=len(split.test),
        digest=frame_digest(table.frame),
        label=str(table.columns.label),
        features=table.features().columns,
    )


def _link_list_summary(ended: CompletedTraining, name: str, links: PrivateLinks) -> LinkListSummary:
    hidden = ended.job.secondaries[name].hide_rows
    candidates = next(g[0].n_records for g in ended.result.model.groups if g[0].name == name)
    uses = np.bincount(links.partner.ravel(), minlength=candidates)
    times, how_many = np.unique(uses, return_counts=True)
    return LinkListSummary(
        secondary=name,
        k=links.partner.shape[1],
        records=len(links),
        candidates=None if hidden else candidates,
        similarity_by_rank=np.quantile(links.similarity, QUANTILES, axis=0).T.tolist(),
        reuse=[] if hidden else list(zip(times.tolist(), how_many.tolist(), strict=True)),
    )


def _test_predictions(ended: CompletedTraining) -> pl.DataFrame:
    rows, classes = ended.prepared.split.test, ended.prepared.classes
    truth, found = ended.prepared.data.labels[rows], ended.result.predictions.get("test", np.zeros(0))
    columns: dict[str, Any] = {ROW_COLUMN: rows}
    if not classes:
        return pl.DataFrame(columns | {TRUTH_COLUMN: truth, PREDICTED_COLUMN: found})
    named = np.array([str(name) for name in classes], dtype=object)
    likeliest = found.argmax(axis=1) if len(found) else np.zeros(0, np.int64)
    confidence = found.max(axis=1) if len(rows) else found
    return pl.DataFrame(
        columns | {TRUTH_COLUMN: named[truth], PREDICTED_COLUMN: named[likeliest], CONFIDENCE_COLUMN: confidence},
        schema_overrides={TRUTH_COLUMN: pl.String, PREDICTED_COLUMN: pl.String},
    )


def _errors_by_group(ended: CompletedTraining) -> list[GroupError]:
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
    return errors_by_group(columns, wrong, numbers=numbers)


def _machine_facts() -> dict[str, str]:
    facts = {"system": platform.system(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    with suppress(OSError):
        lines = CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        facts |= {"processor": models[0]} if models and models[0] else {}
    return facts
