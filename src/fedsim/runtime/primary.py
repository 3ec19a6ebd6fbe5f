"""The primary's process: prepare, link, fit and save."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedsim import training
from fedsim.config.job import Job
from fedsim.data.features import mean_trigrams, name_trigrams, text_columns
from fedsim.data.splits import single_record_error
from fedsim.pipeline.fitted_model import FitPlan, Fitted, fit
from fedsim.pipeline.party_table import PartyData
from fedsim.protocol.messages import Farewell, Phase
from fedsim.protocol.session import PeerRestarted, StopSignal, close_sessions
from fedsim.registry import METHODS, SERVICES
from fedsim.runs.input_record import run_inputs
from fedsim.runs.run_folder import TRAINED_MODEL
from fedsim.runtime.linking import open_linking
from fedsim.runtime.partner_rows import partner_model
from fedsim.runtime.party_context import PartyContext, ReconnectingPeer, software_versions
from fedsim.runtime.run_store import RunStore
from fedsim.runtime.training_record import (
    CompletedTraining,
    PreparedPrimary,
    RunProgressHook,
    absence_stretches,
    calibration_rows,
    explained_rows,
    record_links,
    save_run_record,
    some_training_rows,
    typical_inputs,
)
from fedsim.splitnn import party_model
from fedsim.training import explain
from fedsim.training.boosted_trees import MAX_TREE_RECORDS
from fedsim.training.config import build_config
from fedsim.training.data import LabelScaler, LogLabel, target_state
from fedsim.types import Floats32

log = logging.getLogger("fedsim.parties")

SOLO_MODEL, TREES_MODEL = "solo", "trees"
FAREWELL_SECONDS = 4.0  # a secondary that missed the farewell reconnects every two seconds


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
    acceptor = context.listen(context.secondaries)
    peers = {party.name: ReconnectingPeer(partial(acceptor.session_with, party)) for party in context.secondaries}
    linking = open_linking(context, peers)
    if store.has_weights(TRAINED_MODEL):
        log.info("job '%s' is already trained", context.job.name)
        linking.end(trained=False)
        acceptor.send_last(Farewell(), FAREWELL_SECONDS)
        return load_outcome(store)
    tracking = context.party_file.tracking
    if tracking:
        hooks = (*hooks, SERVICES["tracking-hook"](tracking, context.folder / "tensorboard"))
    linking.join()
    context.progress.enter(Phase.LINK.value)
    recorded = run_inputs(context.folder)
    inputs = recorded.read(context.job, [context.party_file])  # before the table, which may change meanwhile

    table = PartyData.read(context.job, context.party_file, approved=True)
    prepared = prepare_primary(table, context)

    links = {name: linker.link(table, prepared.split.train) for name, linker in linking.linkers.items()}
    quality = {name: linker.quality(table, links[name]) for name, linker in linking.linkers.items()}
    record_links(links, context.progress)
    recorded.save(inputs)

    names = tree_names(table, store.folder) if METHODS.detail(context.job.training.method, "trees") else None
    fitted = fit(prepared.data, linking.partners(links), _fit_plan(context, prepared, names, hooks))

    trigrams = _save_trees(store, prepared, fitted, names)
    _save(store, CompletedTraining(table, prepared, links, quality, fitted, trigrams), context)
    linking.end(trained=True)
    close_sessions(context.sessions(), Farewell())
    return load_outcome(store)


def _save(store: RunStore, ended: CompletedTraining, context: PartyContext) -> None:
    """Save the run record and the models; the model of the job last: where it is, nothing else is missing."""
    save_run_record(store, ended, context.progress)
    if context.party_file.serving.when_partner_is_away == "solo":
        train_solo(context, store, ended.prepared)
    further = {"absence": absence_stretches(ended)}
    _save_model(store, TRAINED_MODEL, ended.prepared, ended.result, ended.typical, further)


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
    features = preparation.apply(table.typed_features, context.folder)
    data = training.PrimaryData(features, labels, training.TaskType(job.task.kind), name)
    typical = preparation.typical_record(table.typed_features, split.train)
    return PreparedPrimary(data, preparation, classes, split, typical)


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
    context: PartyContext, prepared: PreparedPrimary, names: TreeNames | None, hooks: Sequence[training.Hook]
) -> FitPlan:
    """Return how the model is fitted."""
    job, split = context.job, prepared.split
    config = training_config(job, n_train=len(split.train), device=context.party_file.device)
    if names and len(split.train) > MAX_TREE_RECORDS:
        sample = f"{MAX_TREE_RECORDS:,} of {len(split.train):,}"
        log.info("the trees beside the network learn from %s training records, evenly spread", sample)

    requested = {"explained": explained_rows(split)}
    if config.party_dropout and not prepared.classes:
        requested["calibrated"] = calibration_rows(split)

    def report_restart(restarted: PeerRestarted) -> None:
        connection, peer, text = context.connection, restarted.peer, "%s; resuming from the last common checkpoint"
        connection.log_peer_event("resumed", peer, logging.WARNING, text, restarted)
        connection.record_peer_event("restarted", peer, {"peer": str(peer)})

    return FitPlan(
        config,
        split,
        names=names.trigrams if names else None,
        log_trees=job.task.label_scale == "log",
        requested=requested,
        folder=context.folder / "checkpoints",
        hooks=(OwnerStopHook(context.connection.stop_signal), *hooks, RunProgressHook(context.progress)),
        restarted=report_restart,
    )


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
            store.save_weights(partner_model(party), weights, {})
    store.save_weights(name, result.model.primary.model.network.state_dict(), facts)


def load_outcome(store: RunStore) -> TrainingOutcome:
    """Load the outcome of a completed training."""
    facts = store.load_weights(TRAINED_MODEL)[1]
    unlabelled = facts.get("unlabelled", 0)  # models of version 0.1 have none
    return TrainingOutcome(facts["metrics"], facts["best_epoch"], len(facts["history"]), unlabelled)
