"""The primary's process: fetches its links, trains with the remote secondaries, saves its model and the run record."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from fedsim import errors, training
from fedsim.config.job import Job
from fedsim.data.features import FeaturePreprocessor, mean_trigrams, name_trigrams, text_columns
from fedsim.data.splits import single_record_error
from fedsim.data.table_reader import frame_digest
from fedsim.linkage.encoding.quality import judge_received_links
from fedsim.linkage.private_linkage import count_links, mean_similarity
from fedsim.linkage.soft_linkage import QUANTILES
from fedsim.pipeline.fit import FitPlan, Fitted, fit
from fedsim.pipeline.partner_features import PartnerFeatures
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Farewell, Party, Phase, Role
from fedsim.protocol.roles.primary import send_finish
from fedsim.protocol.session import PeerRestarted, StopSignal, close_sessions
from fedsim.registry import METHODS, SERVICES
from fedsim.runs import earlier_run, record
from fedsim.runs.inputs import run_inputs
from fedsim.runs.run_folder import TRAINED_MODEL, PartyProgress
from fedsim.runtime import partner_rows
from fedsim.runtime.coordinator_linker import CoordinatorLinker
from fedsim.runtime.partner_rows import RemoteRows, fetch_stored_rows
from fedsim.runtime.party_context import FAILURE_NOTICE_SECONDS, PartyContext, ReconnectingPeer, software_versions
from fedsim.runtime.run_store import RunStore, load_earlier_model
from fedsim.splitnn import Features, FedSim, party_model
from fedsim.splitnn.methods import EarlierWeights
from fedsim.training import explain
from fedsim.training.boosted_trees import MAX_TREE_RECORDS, StackedTrees
from fedsim.training.config import build_config
from fedsim.training.data import (
    ClassTarget,
    LabelScaler,
    LogLabel,
    LogTarget,
    Metrics,
    as_features,
    calibration_error,
    classification_metrics,
    half_widths,
    interval_stretch,
    scale_probabilities,
    target_state,
)
from fedsim.training.hooks import tracking_hook
from fedsim.types import Floats, Floats32, Integers, Links, Split

log = logging.getLogger("fedsim.parties")

SOLO_MODEL, TREES_MODEL = "solo", "trees"
N_EXAMPLES = 5
MAX_EXPLAINED = 256  # test records whose predictions are explained
MAX_CALIBRATED = 2048  # validation records that calibrate intervals while a secondary is away
MAX_SUMMARISED = 100_000  # training records from which bins of drift and means are computed
EXPLAIN_STAGE = "explain"
CPU_FILE = Path("/proc/cpuinfo")
FINISH_SECONDS = 120.0  # for a coordinator that restarts while training ends
FAREWELL_SECONDS = 4.0  # a secondary that missed the farewell reconnects every two seconds


@dataclass(frozen=True, eq=False)
class PreparedPrimary:
    """The primary's records, ready for training."""

    data: training.PrimaryData
    preparation: FeaturePreprocessor
    classes: list[Any]
    split: Split
    typical: Features  # one record with the median or the most frequent cell of every column


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of a job at the primary."""

    metrics: dict[str, dict[str, float]]
    best_epoch: int
    epochs: int
    unlabelled: int = 0  # records without a label, which were predicted


def run_primary(context: PartyContext, hooks: Sequence[training.Hook] = ()) -> TrainingOutcome:
    """Link, train, evaluate and save, then notify all parties that the job is done.

    Parameters
    ----------
    context
        The running party, from :func:`open_party_context`.
    hooks
        Called during training, before the hook that records the progress.
    """
    party_model.resolve_device(context.party_file.device)  # fails before other parties wait for this one
    torch.set_num_threads(context.job.training.threads)
    context.connection.record_event("computes with", software_versions())
    store = RunStore.of(context)
    coordinator = ReconnectingPeer(lambda: context.dial(Role.COORDINATOR))
    acceptor = context.listen(context.secondaries)
    if store.has_weights(TRAINED_MODEL):
        log.info("job '%s' is already trained", context.job.name)
        _notify_coordinator(coordinator, context, trained=False)
        acceptor.send_last(Farewell(), FAREWELL_SECONDS)
        return load_outcome(store)
    tracking = context.party_file.tracking
    if tracking:
        hooks = (*hooks, tracking_hook(tracking, context.job.name, context.folder / "tensorboard"))
    coordinator.session()  # compares job and release, before any data is read
    context.progress.enter(Phase.LINK.value)
    recorded = run_inputs(context.folder)
    inputs = recorded.read(context.job, [context.party_file])  # before the table, which may change meanwhile
    table = PartyData.read(context.job, context.party_file, approved=True)
    prepared = starting = prepare_primary(table, context)
    if context.job.training.start_from is not None:
        earlier = _earlier_weights(table, context.job.training.start_from)
        starting = replace(prepared, data=replace(prepared.data, earlier=earlier))
    peers = {party: ReconnectingPeer(partial(acceptor.session_with, party)) for party in context.secondaries}
    lists = {
        party: CoordinatorLinker(store, party.name, coordinator).link(table, prepared.split.train)
        for party in context.secondaries
        if party.name in context.job.lists
    }
    for party, found in lists.items():
        quantiles = np.quantile(mean_similarity(found.similarity[:, :1]), QUANTILES).tolist()
        context.progress.links[party.name] = {"records": len(found), "similarity": quantiles, "shares": {}}
    recorded.save(inputs)
    hooks = (*hooks, RunProgressHook(context.progress))
    names = tree_names(table, store.folder) if METHODS.detail(context.job.training.method, "trees") else None
    fitted = fit(starting.data, *_fit_plan(context, starting, lists, peers, names, hooks))
    result, links = fitted.result, {party.name: one for party, one in lists.items()}
    mean_names = _save_trees(store, prepared, fitted, names)
    typical = typical_inputs(prepared, fitted.explained, mean_names, context.job.withheld)
    explaining = fitted.trees if len(prepared.split.test) else fitted.chosen_trees
    gates = summarise_gates(result.model, prepared, fitted.explained, typical, explaining)
    calibration = summarise_calibration(prepared, fitted)
    summary = summarise_trees(fitted, mean_names)
    completed = CompletedTraining(context.job, table, prepared, links, result, gates, summary, calibration)
    save_run_record(store, completed, context.progress)
    if context.party_file.serving.when_partner_is_away == "solo":
        train_solo(context, store, prepared)
    further = {
        "drift": _training_bins(prepared, links),
        "absence": absence_stretches(result.model, prepared, fitted.calibrated, fitted.chosen_trees),
    }
    _save_model(store, TRAINED_MODEL, prepared, result, typical, further)  # last: where it is, nothing else is missing
    _notify_coordinator(coordinator, context, trained=True)
    close_sessions(context.sessions(), Farewell())
    return load_outcome(store)


def prepare_primary(table: PartyData, context: PartyContext) -> PreparedPrimary:
    """Split the records, and fit the preprocessing of features to the training rows."""
    job, name = context.job, context.party_file.name
    rng = party_model.RandomSource(job.seed, name).rng("split")
    split = table.draw_split(job.task.split, rng)
    if len(split.unlabelled):
        log.info(
            "%s of %s have no label; they are predicted after training",
            f"{len(split.unlabelled):,}",
            f"{len(table):,} records",
        )
    labels, classes = table.labels
    if classes and (error := single_record_error(table.frame[str(table.columns.label)], table.source)):
        raise error
    preparation = table.fit_features(split.train)
    features = Features.of(preparation.apply(table.typed_features, context.folder))
    data = training.PrimaryData(features, labels, training.TaskType(job.task.kind), name)
    typical = Features.of(preparation.typical_record(table.typed_features, split.train))
    return PreparedPrimary(data, preparation, classes, split, typical)


def _earlier_weights(table: PartyData, start: str) -> EarlierWeights:
    """Return the weights of the job of ``start_from``, if all that they and its split depend on is unchanged."""
    folder, weights, _ = load_earlier_model(table.own, start)
    here = frame_digest(table.frame), table.features.columns
    earlier_run.require_suitable_start(table.job, record.read_run_record(folder), here)
    known = tuple(table.job.starts_from_earlier(name) for name in table.job.secondaries)
    return EarlierWeights(weights, known)


def training_config(
    job: Job, method: str | None = None, n_train: int | None = None, *, device: str = "cpu"
) -> training.Config:
    """Return the training configuration of a job for a number of training records."""
    own = job.training
    config = build_config(method or own.method, own.settings, seed=job.seed, device=device, n_train=n_train)
    label: LabelScaler = LogLabel(config.label) if job.task.label_scale == "log" else config.label
    return replace(config, save_steps=own.checkpoint_steps, label=label)


@dataclass(frozen=True, eq=False)
class OwnerStopHook(training.Hook):
    """Stops a training without partners on the owner's request."""

    stop_signal: StopSignal

    def stepped(self, step: int) -> None:
        self.stop_signal.check_interrupt()


def train_solo(context: PartyContext, store: RunStore, prepared: PreparedPrimary) -> None:
    """Train on the primary's features alone, for predictions while a partner is unreachable."""
    config = training_config(context.job, "solo", len(prepared.split.train), device=context.party_file.device)
    hooks = [OwnerStopHook(context.connection.stop_signal)]
    result = training.train(prepared.data, [], prepared.split, config, hooks=hooks)
    _save_model(store, SOLO_MODEL, prepared, result, typical_inputs(prepared))


@dataclass(frozen=True, eq=False)
class TreeNames:
    """The primary's columns of text, and what trees see of their cells."""

    columns: tuple[str, ...]
    trigrams: Floats32


def tree_names(table: PartyData, folder: Path) -> TreeNames:
    """Return what trees see of the primary's identifiers."""
    columns = text_columns(table.own_identifiers)
    return TreeNames(tuple(columns), name_trigrams(table.frame, columns, folder))


def _fit_plan(
    context: PartyContext,
    prepared: PreparedPrimary,
    lists: Mapping[Party, Links],
    peers: Mapping[Party, ReconnectingPeer],
    names: TreeNames | None,
    hooks: Sequence[training.Hook],
) -> tuple[Sequence[PartnerFeatures], FitPlan]:
    """Return the partners' features and how the model is fitted; whatever must be fetched first is fetched here."""
    job, split = context.job, prepared.split
    config = training_config(job, n_train=len(split.train), device=context.party_file.device)
    partners: Sequence[PartnerFeatures]
    if job.protection.sealed:
        partners = [fetch_stored_rows(context, peers[party], party, links) for party, links in lists.items()]
        context.dismiss_callers(Farewell())  # now, because the time that training takes depends on labels
        hooks = (OwnerStopHook(context.connection.stop_signal), *hooks)
    else:
        by_name = {party.name: peer for party, peer in peers.items()}
        partners = [
            RemoteRows(context, [by_name[name] for name in job.holders(party.name)], links)
            for party, links in lists.items()
        ]
    if names and len(split.train) > MAX_TREE_RECORDS:
        sample = f"{MAX_TREE_RECORDS:,} of {len(split.train):,}"
        log.info("the trees beside the network learn from %s training records, evenly spread", sample)

    def report_restart(restarted: PeerRestarted) -> None:
        connection, peer, text = context.connection, restarted.peer, "%s; resuming from the last common checkpoint"
        connection.log_peer_event("resumed", peer, logging.WARNING, text, restarted)
        connection.record_peer_event("restarted", peer, {"peer": str(peer)})

    plan = FitPlan(
        config,
        split,
        names=names.trigrams if names else None,
        log_trees=job.task.label_scale == "log",
        explained=explained_rows(split),
        calibrated=calibration_rows(split) if config.party_dropout and not prepared.classes else None,
        folder=context.folder / "checkpoints",
        hooks=hooks,
        restarted=report_restart,
    )
    return partners, plan


def _save_trees(
    store: RunStore, prepared: PreparedPrimary, fitted: Fitted, names: TreeNames | None
) -> dict[str, list[float]]:
    """Save the trees, if there are any; return the mean counts of the trigrams that they see, by column."""
    if names is None:
        return {}
    if fitted.trees is None:
        log.info("the trees do not improve the predictions of the validation records; the network predicts alone")
        return {}
    tensors, facts = fitted.trees.state()
    store.save_weights(TREES_MODEL, tensors, {**facts, "texts": list(names.columns)})
    return mean_trigrams(names.trigrams[some_training_rows(prepared.split)], names.columns)


def summarise_trees(fitted: Fitted, names: Mapping[str, Sequence[float]]) -> record.TreeSummary:
    """Return the weight of the trees and what they see; ``names`` are the columns of text among it."""
    if fitted.trees is None:
        return record.TreeSummary(0.0)
    groups = fitted.result.model.groups if fitted.trees.pools else ()
    partners = [holder.name for holders in groups for holder in holders]
    return record.TreeSummary(round(1.0 - fitted.trees.weight, 6), list(names), partners)


def summarise_calibration(prepared: PreparedPrimary, fitted: Fitted) -> list[record.CalibrationSummary]:
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


def _save_model(
    store: RunStore,
    name: str,
    prepared: PreparedPrimary,
    result: training.TrainingResult,
    typical: explain.TypicalInputs,
    further: Mapping[str, Any] | None = None,
) -> None:
    facts = {
        "preparation": prepared.preparation.to_json(),
        "target": target_state(result.model.target),
        "classes": prepared.classes,
        "metrics": result.metrics,
        "history": [asdict(epoch) for epoch in result.history],
        "best_epoch": result.best.number,
        "unlabelled": len(prepared.split.unlabelled),
        "typical": typical.state(),
        "party_dropout": result.model.config.party_dropout,
        **(further or {}),
    }
    for party, weights in result.parts.items():
        if party != prepared.data.name:  # under sealed labels the primary trains all networks
            store.save_weights(partner_rows.partner_model(party), weights, {})
    store.save_weights(name, result.model.primary.model.network.state_dict(), facts)


def _training_bins(prepared: PreparedPrimary, lists: Mapping[str, Links]) -> dict[str, Any]:
    """Return how the training records, or many of them, are distributed; served records are compared with them."""
    rows = some_training_rows(prepared.split)
    features = as_features(prepared.data.features).take(rows)
    best = {name: mean_similarity(links.similarity[rows, :1])[:, 0] for name, links in lists.items()}
    bins: dict[str, Any] = SERVICES["training-bins"](features.numbers, features.codes, features.cardinalities, best)
    return bins


def some_training_rows(split: Split) -> Integers:
    """Return the training records, or an evenly spread part of many."""
    return np.asarray(split.train[:: 1 + len(split.train) // MAX_SUMMARISED])


def load_outcome(store: RunStore) -> TrainingOutcome:
    """Load the outcome of a completed training."""
    facts = store.load_weights(TRAINED_MODEL)[1]
    unlabelled = facts.get("unlabelled", 0)  # models of version 0.1 have none
    return TrainingOutcome(facts["metrics"], facts["best_epoch"], len(facts["history"]), unlabelled)


def _notify_coordinator(coordinator: ReconnectingPeer, context: PartyContext, *, trained: bool) -> None:
    """Notify the coordinator that training is complete.

    If this process ``trained``, the coordinator waits for the notice, and is waited for while it restarts. Otherwise it
    may have received it from an earlier process and be gone for good.
    """
    state = context.connection
    seconds = min(state.wait_seconds, FINISH_SECONDS) if trained else FAILURE_NOTICE_SECONDS
    state.wait_seconds = seconds
    try:
        coordinator.ask(send_finish)
    except errors.PeerError:
        if trained:
            hint = "the model is saved; if the coordinator still waits for this party, run this again"
            log.warning("the coordinator did not confirm the end within %.0f seconds; %s", seconds, hint)
        else:
            log.info("the coordinator has already exited")


# What explains the model. Example records stay in the primary's folder. A record is known by its row in the primary's
# table, which a report omits unless its owner asks for it; a partner by a number that counts from one, because the
# pseudonyms of a job mean something to the secondary and these numbers to nobody.


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
    withheld: Sequence[str] = (),
) -> explain.TypicalInputs:
    """Return what predictions are compared with.

    ``records`` have the partners of which the average is taken, ``names`` are mean counts of the trigrams that trees
    see, ``withheld`` the secondaries whose records explanations must not show.
    """
    sent = () if records is None else explain.average_sent(records)
    return explain.TypicalInputs(prepared.typical, sent, prepared.preparation.places, names or {}, tuple(withheld))


def explain_examples(
    model: training.Model,
    prepared: PreparedPrimary,
    records: explain.LinkedRecords,
    typical: explain.TypicalInputs,
    trees: StackedTrees | None,
) -> list[record.ExampleRecord]:
    """Explain a few records, from the best to the worst linked one."""
    rows = explained_rows(prepared.split)
    if not records.lists or not len(rows):
        return []
    best = np.zeros(len(rows))
    for one in records.lists[::-1]:  # the first list counts, of those that may be shown
        if not any(holder.name in typical.withheld for holder in one.holders):
            best = one.similarity.nanmean(dim=2).amax(dim=1).cpu().numpy()
    order = np.argsort(-best, kind="stable")
    places = order[np.unique(np.linspace(0, len(order) - 1, N_EXAMPLES).round().astype(np.int64))]
    combine, classes = None if trees is None else trees.combine, prepared.classes
    found = explain.explain_records(model, records.take(places), typical, combine=combine, classes=classes)
    labels = prepared.data.labels[rows[places]].tolist()
    truth = [classes[label] for label in labels] if classes else labels
    numbered = explain.number_partners(found)
    return [record.ExampleRecord(int(rows[at]), *one) for at, *one in zip(places, truth, numbered, strict=True)]


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


@dataclass(frozen=True, eq=False)
class GateSummary:
    """What the gates of FedSim have learned (empty for other methods), and a few example records."""

    curves: list[record.GateCurve]
    importances: list[record.GateImportance]
    examples: list[record.ExampleRecord]
    unmatched: dict[str, float] = field(default_factory=dict)  # mean probability of no match, by secondary
    absence: list[record.AbsenceMetrics] = field(default_factory=list)


def summarise_gates(
    model: training.Model,
    prepared: PreparedPrimary,
    records: explain.LinkedRecords,
    typical: explain.TypicalInputs,
    trees: StackedTrees | None = None,
) -> GateSummary:
    """Summarise the gates on test records, and explain a few of them."""
    examples = explain_examples(model, prepared, records, typical, trees)
    if not isinstance(model.config.method, FedSim):
        return GateSummary([], [], examples)
    found, curves = explain.merge_attributions(model, records), explain.weight_curves(model)
    return GateSummary(
        [record.GateCurve(curve.party, curve.similarity.tolist(), curve.weight.tolist()) for curve in curves],
        [record.GateImportance(part.party, np.abs(part.values).mean(axis=0).tolist()) for part in found],
        examples,
        {one.party: float(one.unmatched.mean()) for one in explain.matches_of(model, records.lists)},
        measure_absence(model, prepared, records, trees),
    )


def measure_absence(
    model: training.Model, prepared: PreparedPrimary, records: explain.LinkedRecords, trees: StackedTrees | None
) -> list[record.AbsenceMetrics]:
    """Return the metrics of the explained records without each secondary; none if no record did so in training."""
    if not model.config.party_dropout:
        return []
    labels, found = prepared.data.labels[explained_rows(prepared.split)], []
    for place in (None, *range(len(records.lists))):
        left = records if place is None else records.without(place)
        values, _ = explain.predict_records(model, left)
        if trees is not None:
            values, _ = trees.combine(values, None, left.features, left.columns)
        away = None if place is None else " and ".join(holder.name for holder in model.groups[place])
        found.append(record.AbsenceMetrics(away, len(labels), model.target.measure(values, labels)))
    return found


def absence_stretches(
    model: training.Model,
    prepared: PreparedPrimary,
    records: explain.LinkedRecords | None,
    trees: StackedTrees | None,
) -> list[tuple[list[str], float]]:
    """Return by which factor intervals are wider while each list of partners is missing, and while all are.

    A list has the name of its secondary; it is missing too while one is away that is aligned with it. ``records`` are
    those of :func:`calibration_rows`; without them there is no factor.
    """
    if records is None:
        return []
    names, found = [holders[0].name for holders in model.groups], []
    cases = [([name], records.without(place)) for place, name in enumerate(names)]
    cases += [(names, records.without_all())] if len(names) > 1 else []
    scale: Any = np.log if isinstance(model.target, LogTarget) else np.asarray
    truth = scale(prepared.data.labels[calibration_rows(prepared.split)])
    for away, left in cases:
        values, ends = explain.predict_records(model, left)
        if trees is not None:
            values, ends = trees.combine(values, ends, left.features, left.columns)
        if ends is not None:
            found.append((away, interval_stretch(truth - scale(values), half_widths(scale(ends)))))
    return found


@dataclass(frozen=True, eq=False, repr=False)
class CompletedTraining:
    """A completed training, with everything that goes into its record."""

    job: Job
    table: PartyData
    prepared: PreparedPrimary
    lists: Mapping[str, Links]
    result: training.TrainingResult
    gates: GateSummary
    trees: record.TreeSummary
    calibration: list[record.CalibrationSummary]


def save_run_record(store: RunStore, ended: CompletedTraining, progress: PartyProgress) -> None:
    """Write the record of the run, and the test records with their predictions."""
    seconds = progress.clock() - progress.start
    job, result, table, split = ended.job, ended.result, ended.table, ended.prepared.split
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
        lists=[_link_list_summary(store, ended, name, links) for name, links in ended.lists.items()],
        curves=ended.gates.curves,
        importances=ended.gates.importances,
        groups=_errors_by_group(ended),
        phases=[record.PhaseCost(stage["name"], stage["seconds"], stage["peak_bytes"]) for stage in progress.phases()],
        explained=ended.gates.examples,
        absence=ended.gates.absence,
        trees=ended.trees if METHODS.detail(job.training.method, "trees") else None,
        calibration=ended.calibration,
    )
    for summary in written.lists:
        shares = {"fill": summary.fill, "tied": summary.tied, "far": summary.far, "unmatched": summary.unmatched}
        progress.links[summary.secondary]["shares"] = shares
    record.write_run_record(store.folder, written, _test_predictions(ended), _unlabelled_predictions(ended))
    progress.enter(Phase.END.value)


def _link_list_summary(store: RunStore, ended: CompletedTraining, name: str, links: Links) -> record.LinkListSummary:
    terms = ended.job.secondaries[name]
    noisy = bool(terms.tau or terms.sigma)
    encoded, similarity, k = store.encoded(ended.table, name), links.overall, links.k
    ends = similarity[:, [0, *range(max(1, k - 2), k)]].astype(np.float64)  # the nearest and the two furthest
    candidates = next(g[0].n_records for g in ended.result.model.groups if g[0].name == name)
    uses = count_links(links.partner, candidates)
    times, how_many = np.unique(uses, return_counts=True)
    return record.LinkListSummary(
        secondary=name,
        k=k,
        records=len(links),
        candidates=candidates,
        similarity_by_rank=[np.quantile(similarity[:, rank], QUANTILES).tolist() for rank in range(k)],
        reuse=list(zip(times.tolist(), how_many.tolist(), strict=True)),
        unmatched=ended.gates.unmatched.get(name),
        **asdict(judge_received_links(terms.encoding, encoded, ends, noisy=noisy)),
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
    for name, links in ended.lists.items():
        columns[f"similarity to the nearest of {name}"] = pl.Series(links.overall[rows, 0])
    return record.errors_by_group(columns, wrong, numbers=numbers)
