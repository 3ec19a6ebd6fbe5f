"""The record of a training at the primary: what explains and judges the model, and its progress until then."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsim import training
from fedsim.data.features import FeaturePreprocessor
from fedsim.data.table_reader import frame_digest
from fedsim.linkage.encoding.quality import ReceivedQuality
from fedsim.linkage.private_linkage import count_links, mean_similarity
from fedsim.linkage.soft_linkage import QUANTILES
from fedsim.pipeline.fitted_model import Fitted
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Phase
from fedsim.registry import METHODS
from fedsim.runs import record
from fedsim.runs.run_folder import PartyProgress
from fedsim.runtime.party_context import software_versions
from fedsim.runtime.run_store import RunStore
from fedsim.splitnn import Features, FedSim
from fedsim.training import explain
from fedsim.training.boosted_trees import StackedTrees
from fedsim.training.data import (
    ClassTarget,
    LogTarget,
    Metrics,
    calibration_error,
    classification_metrics,
    half_widths,
    interval_stretch,
    scale_probabilities,
)
from fedsim.types import Floats, Integers, Links, Split

N_EXAMPLES = 5
MAX_EXPLAINED = 256  # test records whose predictions are explained
MAX_CALIBRATED = 2048  # validation records that calibrate intervals while a secondary is away
MAX_SUMMARISED = 100_000  # training records from which means are computed
EXPLAIN_STAGE = "explain"
CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True, eq=False)
class PreparedPrimary:
    """The primary's records, ready for training."""

    data: training.PrimaryData
    preparation: FeaturePreprocessor
    classes: list[Any]
    split: Split
    typical: Features  # one record with the median or the most frequent cell of every column


@dataclass(frozen=True, eq=False, repr=False)
class CompletedTraining:
    """A completed training, from which its record is made.

    ``names`` are mean counts of the trigrams of the primary's columns of text that trees see.
    """

    table: PartyData
    prepared: PreparedPrimary
    links: Mapping[str, Links]
    quality: Mapping[str, ReceivedQuality]
    fitted: Fitted
    names: Mapping[str, Sequence[float]]

    @property
    def result(self) -> training.TrainingResult:
        """Metrics and predictions of the network and the trees together."""
        return self.fitted.result

    @property
    def explained(self) -> explain.LinkedRecords:
        """The records from which the model is explained."""
        return self.fitted.linked["explained"]

    @cached_property
    def typical(self) -> explain.TypicalInputs:
        """What predictions are compared with."""
        return typical_inputs(self.prepared, self.explained, self.names)

    @property
    def trees(self) -> StackedTrees | None:
        """The trees by which the explained records may be judged."""
        return self.fitted.trees if len(self.prepared.split.test) else self.fitted.chosen_trees


# What explains the model. Example records stay in the primary's folder. A record is known by its row in the primary's
# table, which a report omits unless its owner asks for it; a partner by a number that counts from one, because the
# pseudonyms of a job are meaningful to the secondary, these numbers to no party.


def explained_rows(split: Split) -> Integers:
    """Return the records from which the model is explained."""
    return np.asarray((split.test if len(split.test) else split.validation)[:MAX_EXPLAINED])


def calibration_rows(split: Split) -> Integers:
    """Return validation records, evenly spread, that calibrate intervals while a secondary is away."""
    return np.asarray(split.validation[:: 1 + len(split.validation) // MAX_CALIBRATED])


def typical_inputs(
    prepared: PreparedPrimary,
    records: explain.LinkedRecords | None = None,
    names: Mapping[str, Sequence[float]] | None = None,
) -> explain.TypicalInputs:
    """Return what predictions are compared with.

    ``records`` have the partners of which the average is taken, ``names`` are mean counts of the trigrams that trees
    see.
    """
    sent = () if records is None else explain.average_sent(records)
    return explain.TypicalInputs(prepared.typical, sent, prepared.preparation.places, names or {})


def _explain_examples(ended: CompletedTraining) -> list[record.ExampleRecord]:
    """Explain a few records, from the best to the worst linked one."""
    prepared, records, trees = ended.prepared, ended.explained, ended.trees
    rows = explained_rows(prepared.split)
    if not records.lists or not len(rows):
        return []
    best = records.lists[0].similarity.nanmean(dim=2).amax(dim=1).cpu().numpy()
    order = np.argsort(-best, kind="stable")
    places = order[np.unique(np.linspace(0, len(order) - 1, N_EXAMPLES).round().astype(np.int64))]
    combine, classes = None if trees is None else trees.combine, prepared.classes
    options: dict[str, Any] = {"combine": combine, "classes": classes}
    found = explain.explain_records(ended.result.model, records.take(places), ended.typical, **options)
    labels = prepared.data.labels[rows[places]].tolist()
    truth = [classes[label] for label in labels] if classes else labels
    numbered = explain.number_partners(found)
    return [record.ExampleRecord(int(rows[at]), *one) for at, *one in zip(places, truth, numbered, strict=True)]


def _summarise_gates(ended: CompletedTraining) -> dict[str, Any]:
    """Return what the gates of FedSim have learned; nothing for other methods."""
    model, records = ended.result.model, ended.explained
    if not isinstance(model.config.method, FedSim):
        return {"curves": [], "importances": [], "absence": []}
    curves, found = explain.weight_curves(model), explain.merge_attributions(model, records)
    return {
        "curves": [record.GateCurve(one.party, one.similarity.tolist(), one.weight.tolist()) for one in curves],
        "importances": [record.GateImportance(one.party, np.abs(one.values).mean(axis=0).tolist()) for one in found],
        "absence": _measure_absence(ended),
    }


def record_links(links: Mapping[str, Links], progress: PartyProgress) -> None:
    """Add the number of linked records and quantiles of their best similarity to the progress."""
    for name, found in links.items():
        quantiles = np.quantile(mean_similarity(found.similarity[:, :1]), QUANTILES).tolist()
        progress.links[name] = {"records": len(found), "similarity": quantiles, "shares": {}}


class RunProgressHook(training.Hook):
    """Writes every step and epoch to the progress of a party."""

    def __init__(self, progress: PartyProgress) -> None:
        self._progress = progress

    def started(self, outline: training.TrainingOutline) -> None:
        before = self._progress.training.get("history", [])
        facts = {
            "epochs": outline.epochs,
            "steps_per_epoch": outline.steps_per_epoch,
            "steps": outline.epochs_done * outline.steps_per_epoch,
            "config": dict(outline.job),
            "history": [epoch for epoch in before if epoch["number"] <= outline.epochs_done],
        }
        self._progress.begin_training(facts)

    def stepped(self, step: int) -> None:
        self._progress.step(step)

    def epoch_ended(self, epoch: training.Epoch) -> None:
        self._progress.end_epoch(asdict(epoch))

    def ended(self, metrics: Mapping[str, Metrics]) -> None:
        self._progress.enter(EXPLAIN_STAGE)

    def failed(self) -> None:
        """Do nothing: the party itself reports its failure."""


def _measure_absence(ended: CompletedTraining) -> list[record.AbsenceMetrics]:
    """Return the metrics of the explained records without each secondary; none if no record did so in training."""
    model, records = ended.result.model, ended.explained
    if not model.config.party_dropout:
        return []
    labels, found = ended.prepared.data.labels[explained_rows(ended.prepared.split)], []
    for place in (None, *range(len(records.lists))):
        values, _ = _predict(model, records if place is None else records.without(place), ended.trees)
        away = None if place is None else " and ".join(holder.name for holder in model.groups[place])
        found.append(record.AbsenceMetrics(away, len(labels), model.target.measure(values, labels)))
    return found


def _predict(
    model: training.Model, records: explain.LinkedRecords, trees: StackedTrees | None
) -> tuple[Floats, Floats | None]:
    values, ends = explain.predict_records(model, records)
    return (values, ends) if trees is None else trees.combine(values, ends, records.features, records.columns)


def absence_stretches(ended: CompletedTraining) -> list[tuple[list[str], float]]:
    """Return by which factor intervals are wider while each list of partners is missing, and while all are.

    A list has the name of its secondary; without calibration records there is no factor.
    """
    model, records = ended.result.model, ended.fitted.linked.get("calibrated")
    if records is None:
        return []
    names, found = [holders[0].name for holders in model.groups], []
    cases = [([name], records.without(place)) for place, name in enumerate(names)]
    cases += [(names, records.without_all())] if len(names) > 1 else []
    scale: Any = np.log if isinstance(model.target, LogTarget) else np.asarray
    truth = scale(ended.prepared.data.labels[calibration_rows(ended.prepared.split)])
    for away, left in cases:
        values, ends = _predict(model, left, ended.fitted.chosen_trees)
        if ends is not None:
            found.append((away, interval_stretch(truth - scale(values), half_widths(scale(ends)))))
    return found


def save_run_record(store: RunStore, ended: CompletedTraining, progress: PartyProgress) -> None:
    """Write the record of the run, and the test records with their predictions."""
    seconds = progress.clock() - progress.start
    job, result, table, split = ended.table.job, ended.result, ended.table, ended.prepared.split
    machine = {"system": platform.system(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    with suppress(OSError):
        lines = CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        machine |= {"processor": models[0]} if models and models[0] else {}
    written = record.RunRecord(
        job=job.to_dict(),
        hash=job.hash,
        party=table.own.name,
        started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        seconds=seconds,
        versions=software_versions(),
        machine=machine,
        config=dict(progress.training["config"]),
        table=record.TableSummary(
            records=len(table),
            train=len(split.train),
            validation=len(split.validation),
            test=len(split.test),
            digest=frame_digest(table.frame),
            label=str(table.columns.label),
            features=table.features.columns,
            unlabelled=len(split.unlabelled),
            kinds=ended.prepared.preparation.describe(),
        ),
        classes=ended.prepared.classes,
        history=[asdict(epoch) for epoch in result.history],
        best_epoch=result.best.number,
        metrics=result.metrics,
        lists=[_link_list_summary(ended, name) for name in ended.links],
        **_summarise_gates(ended),
        groups=_errors_by_group(ended),
        phases=[record.PhaseCost(stage["name"], stage["seconds"], stage["peak_bytes"]) for stage in progress.phases()],
        explained=_explain_examples(ended),
        trees=_summarise_trees(ended) if METHODS.detail(job.training.method, "trees") else None,
        calibration=_summarise_calibration(ended.prepared, ended.fitted),
    )
    for summary in written.lists:
        shares = {"fill": summary.fill, "tied": summary.tied, "far": summary.far, "unmatched": summary.unmatched}
        progress.links[summary.secondary]["shares"] = shares
    record.write_run_record(store.folder, written, _test_predictions(ended), _unlabelled_predictions(ended))
    progress.enter(Phase.END.value)


def _link_list_summary(ended: CompletedTraining, name: str) -> record.LinkListSummary:
    links = ended.links[name]
    similarity, k = links.overall, links.k
    candidates = next(g[0].n_records for g in ended.result.model.groups if g[0].name == name)
    matches = explain.matches_of(ended.result.model, ended.explained.lists)
    unmatched = next((float(one.unmatched.mean()) for one in matches if one.party == name), None)
    uses = count_links(links.partner, candidates)
    times, how_many = np.unique(uses, return_counts=True)
    return record.LinkListSummary(
        secondary=name,
        k=k,
        records=len(links),
        candidates=candidates,
        similarity_by_rank=[np.quantile(similarity[:, rank], QUANTILES).tolist() for rank in range(k)],
        reuse=list(zip(times.tolist(), how_many.tolist(), strict=True)),
        unmatched=unmatched,
        **asdict(ended.quality[name]),
    )


def _test_predictions(ended: CompletedTraining) -> pl.DataFrame:
    rows, classes = ended.prepared.split.test, ended.prepared.classes
    truth, found = ended.prepared.data.labels[rows], ended.result.predictions.get("test", np.zeros(0))
    columns: dict[str, Any] = {record.ROW_COLUMN: rows}
    if not classes:
        columns |= {record.TRUTH_COLUMN: truth, record.PREDICTED_COLUMN: found}
        return pl.DataFrame(columns | _interval_columns(ended, "test"))
    named = np.array([str(name) for name in classes], dtype=object)
    likeliest = found.argmax(axis=1) if len(found) else np.zeros(0, np.int64)
    confidence = found.max(axis=1) if len(rows) else found
    columns |= {record.TRUTH_COLUMN: named[truth], record.PREDICTED_COLUMN: named[likeliest]}
    texts = dict.fromkeys((record.TRUTH_COLUMN, record.PREDICTED_COLUMN), pl.String)
    return pl.DataFrame(columns | {record.CONFIDENCE_COLUMN: confidence}, schema_overrides=texts)


def _interval_columns(ended: CompletedTraining, part: str) -> dict[str, Floats]:
    ends = ended.result.intervals.get(part)
    return {} if ends is None else {record.LOWER_COLUMN: ends[:, 0], record.UPPER_COLUMN: ends[:, 1]}


def _unlabelled_predictions(ended: CompletedTraining) -> pl.DataFrame:
    """Return what `fedsim predict` would write for the records without a label: rows count from one."""
    rows, classes = ended.prepared.split.unlabelled, ended.prepared.classes
    found = ended.result.predictions.get("unlabelled", np.zeros((0, len(classes))))
    if not classes or not len(rows):
        columns: dict[str, Any] = {record.ROW_COLUMN: rows + 1, record.PREDICTION_COLUMN: found.ravel()}
        return pl.DataFrame(columns | _interval_columns(ended, "unlabelled"))
    likeliest = [str(classes[place]) for place in found.argmax(axis=1)]
    columns = {record.ROW_COLUMN: rows + 1, record.PREDICTION_COLUMN: likeliest}
    return pl.DataFrame(columns | {f"probability {name}": found[:, place] for place, name in enumerate(classes)})


def _errors_by_group(ended: CompletedTraining) -> list[record.GroupError]:
    rows, data = ended.prepared.split.test, ended.prepared.data
    found = ended.result.predictions.get("test")
    if found is None:
        return []
    numbers = not ended.prepared.classes
    wrong = found - data.labels[rows] if numbers else (found.argmax(axis=1) != data.labels[rows]).astype(np.float64)
    own = ended.table.features[rows]
    columns = {name: own[name] for name in own.columns if name not in ended.table.columns.linking}
    for name, links in ended.links.items():
        columns[f"similarity to the nearest of {name}"] = pl.Series(links.overall[rows, 0])
    return record.errors_by_group(columns, wrong, numbers=numbers)


def _summarise_trees(ended: CompletedTraining) -> record.TreeSummary:
    """Return the weight of the trees and what they see."""
    trees = ended.fitted.trees
    if trees is None:
        return record.TreeSummary(0.0)
    partners = [holder.name for holders in ended.result.model.groups for holder in holders] if trees.pools else []
    return record.TreeSummary(round(1.0 - trees.weight, 6), list(ended.names), partners)


def _summarise_calibration(prepared: PreparedPrimary, fitted: Fitted) -> list[record.CalibrationSummary]:
    """Return what calibration changed: of the network, and with trees beside it of both together; none for numbers."""
    target = fitted.network.model.target
    if not isinstance(target, ClassTarget):
        return []
    steps = [("network", fitted.network.predictions, target.temperature)]
    if fitted.trees is not None:
        steps.append(("network and trees", fitted.result.predictions, fitted.trees.temperature))
    found = []
    for name, predictions, temperature in steps:
        for part, rows in (("validation", prepared.split.validation), ("test", prepared.split.test)):
            if not len(rows):
                continue
            classes = target.columns_of(prepared.data.labels[rows])
            both = scale_probabilities(predictions[part], 1.0 / temperature), predictions[part]
            before, after = (classification_metrics(one, classes)["log_loss"] for one in both)
            gaps = calibration_error(both[0], classes), calibration_error(both[1], classes)
            found.append(record.CalibrationSummary(name, part, temperature, (before, after), gaps))
    return found


def some_training_rows(split: Split) -> Integers:
    """Return the training records, or an evenly spread part of many."""
    return np.asarray(split.train[:: 1 + len(split.train) // MAX_SUMMARISED])
